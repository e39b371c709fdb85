package report

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Plot is one picture of a part: bars by carrier, or lines over the condition.
type Plot struct {
	File, Title string
	Part        string
	Summary     bool // the project's page shows it
	unit        string
	bars        []Metric          // one bar each for every carrier; none: lines
	beside      map[string]string // what is written above a carrier's bars
	line        Metric
	x           string  // title of the condition
	scale       float64 // of the condition
	logX        bool
	legendLeft  bool
	legendLow   bool
}

// Plots returns all pictures.
func Plots() []Plot {
	return []Plot{
		{
			File:    "throughput.svg",
			Title:   "TCP from pod to pod",
			Part:    Clean,
			Summary: true,
			unit:    "Gbit/s",
			bars:    []Metric{FlowGbps, FourGbps},
			beside:  map[string]string{"nebula": "as released:\nno offloads\n(head, in a\ntrial: 3.9)"},
		},
		{
			File:  "cpu.svg",
			Title: "Cost of one flow, whole machine",
			Part:  Clean,
			unit:  "CPU-seconds per GB",
			bars:  []Metric{MachineCPU, TunnelCPU},
		},
		{
			File:  "latency.svg",
			Title: "1-byte request and answer",
			Part:  Clean,
			unit:  "µs",
			bars:  []Metric{AnswerTCP, AnswerUDP},
		},
		{File: "ping.svg", Title: "Ping", Part: Clean, unit: "ms", bars: []Metric{PingIdle, PingLoad, PingLoad99}},
		{
			File:  "packets.svg",
			Title: "1200-byte datagrams without loss",
			Part:  Packets,
			unit:  "thousand packets/s",
			bars:  []Metric{PacketRate},
		},
		{
			File:    "link.svg",
			Title:   "One flow over 100 Mbit/s, 25 ms one way",
			Part:    Link,
			Summary: true,
			unit:    "Mbit/s",
			line:    FlowMbps,
			x:       "loss, %",
			scale:   100,
		},
		{
			File:  "link-ping.svg",
			Title: "Ping p99 beside that flow",
			Part:  Link,
			unit:  "ms",
			line:  PingLoad99,
			x:     "loss, %",
			scale: 100,
		},
		{
			File:  "lan.svg",
			Title: "TCP between two nodes on one LAN",
			Part:  LAN,
			unit:  "Gbit/s",
			bars:  []Metric{FlowGbps, FourGbps},
		},
		{
			File:       "egress.svg",
			Title:      "TCP through the node's rules or routes",
			Part:       Egress,
			unit:       "Gbit/s",
			line:       FlowGbps,
			x:          "peers",
			logX:       true,
			legendLeft: true,
			legendLow:  true,
		},
		{
			File:       "egress-latency.svg",
			Title:      "1-byte answer through the node's rules or routes",
			Part:       Egress,
			unit:       "µs",
			line:       AnswerTCP,
			x:          "peers",
			logX:       true,
			legendLeft: true,
		},
	}
}

const (
	plotWidth  = 560 * vg.Length(1)
	plotHeight = 280 * vg.Length(1)
	margin     = 10 * vg.Length(1) // around everything: letters and legends reach over the edge of what is laid out
	headroom   = 1.25              // of the highest value, for the legend
	barsRoom   = 0.72              // of the room between two carriers' middles that their bars take
)

// palette is readable for the colour-blind (Okabe and Ito).
func palette(i int) color.Color {
	all := []color.RGBA{
		{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xd5, 0x5e, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
	}
	return all[i%len(all)]
}

// draw returns the picture as SVG. Equal parts give equal bytes.
func (p Plot) draw(part *Part) ([]byte, error) {
	c := p.canvas()
	var err error
	if len(p.bars) > 0 {
		err = p.drawBars(c, part)
	} else {
		err = p.drawLines(c, part)
	}
	if err != nil {
		return nil, err
	}
	c.Y.Min, c.Y.Max = 0, c.Y.Max*headroom
	return picture(c)
}

// picture lays a plot out as SVG.
func picture(c *plot.Plot) ([]byte, error) {
	w := vgsvg.New(plotWidth, plotHeight)
	whole := draw.New(w)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	c.Draw(draw.Crop(whole, margin, -2*margin, margin, -margin))
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		return nil, err
	}
	// Who has not this font takes a similar one.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

// canvas is the picture without its values.
func (p Plot) canvas() *plot.Plot {
	c := plot.New()
	c.Title.Text, c.Y.Label.Text = p.Title, p.unit
	c.Title.Padding = vg.Points(8)
	c.Legend.Top, c.Legend.Left = !p.legendLow, p.legendLeft
	c.Legend.Padding = vg.Points(2)
	for _, f := range []*font.Font{
		&c.Title.TextStyle.Font, &c.Legend.TextStyle.Font, &c.X.Label.TextStyle.Font, &c.Y.Label.TextStyle.Font,
		&c.X.Tick.Label.Font, &c.Y.Tick.Label.Font,
	} {
		f.Typeface, f.Variant = "Liberation", "Sans"
		f.Size = min(f.Size, 11)
	}
	return c
}

// spread is the median with the rounds' least and most, as gonum wants error bars.
type spread struct {
	plotter.XYs
	plotter.YErrors
}

func newSpread(n int) spread { return spread{make(plotter.XYs, n), make(plotter.YErrors, n)} }

// set enters a row's values at x.
func (s spread) set(i int, x float64, v []float64) {
	m := Median(v)
	s.XYs[i].X, s.XYs[i].Y = x, m
	s.YErrors[i].Low, s.YErrors[i].High = m-slices.Min(v), slices.Max(v)-m
}

func (p Plot) drawBars(c *plot.Plot, part *Part) error {
	carriers := part.Carriers()
	if len(carriers) == 0 {
		return ErrNothing
	}
	step := (plotWidth - vg.Points(60)) / vg.Length(len(carriers))
	width := step * barsRoom / vg.Length(len(p.bars))
	for k, m := range p.bars {
		values, tips := make(plotter.Values, len(carriers)), newSpread(len(carriers))
		offset := (float64(k) - float64(len(p.bars)-1)/2) * barsRoom / float64(len(p.bars))
		for i, name := range carriers {
			v := part.Row(name, 0).values(m)
			values[i] = Median(v)
			tips.set(i, float64(i)+offset, v)
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return fmt.Errorf("bars: %w", err)
		}
		bars.Color, bars.LineStyle.Width = palette(k), 0
		bars.Offset = vg.Length(float64(k)-float64(len(p.bars)-1)/2) * width
		c.Add(bars)
		if len(p.bars) > 1 {
			c.Legend.Add(m.column().title, bars)
		}
		whiskers, err := plotter.NewYErrorBars(tips)
		if err != nil {
			return fmt.Errorf("error bars: %w", err)
		}
		c.Add(whiskers)
	}
	for i, name := range carriers {
		if text := p.beside[name]; text != "" {
			if err := write(c, float64(i), part.Row(name, 0).values(p.bars[len(p.bars)-1]), text); err != nil {
				return err
			}
		}
	}
	c.NominalX(carriers...)
	c.X.Min, c.X.Max = -0.5, float64(len(carriers))-0.5
	return nil
}

// write puts a text above the bar of values at x.
func write(c *plot.Plot, x float64, values []float64, text string) error {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: slices.Max(values)}}, Labels: []string{text}})
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	l.TextStyle[0].Font = c.Legend.TextStyle.Font
	l.TextStyle[0].Font.Size, l.TextStyle[0].XAlign = 9, draw.XCenter
	l.Offset.Y = vg.Points(4)
	c.Add(l)
	return nil
}

func (p Plot) drawLines(c *plot.Plot, part *Part) error {
	c.X.Label.Text = p.x
	if p.logX {
		c.X.Scale = plot.LogScale{}
	}
	c.Add(plotter.NewGrid())
	var ticks []plot.Tick
	for k, name := range part.Carriers() {
		s, err := p.points(part, name, &ticks)
		if err != nil {
			return err
		}
		line, points, err := plotter.NewLinePoints(s)
		if err != nil {
			return fmt.Errorf("line: %w", err)
		}
		line.Color, line.Width = palette(k), vg.Points(1.5)
		points.Color, points.Shape, points.Radius = palette(k), draw.CircleGlyph{}, vg.Points(2.5)
		whiskers, err := plotter.NewYErrorBars(s)
		if err != nil {
			return fmt.Errorf("error bars: %w", err)
		}
		whiskers.LineStyle.Color = palette(k)
		c.Add(line, points, whiskers)
		c.Legend.Add(name, line, points)
	}
	if len(ticks) == 0 {
		return ErrNothing
	}
	c.X.Tick.Marker = plot.ConstantTicks(ticks)
	if !p.logX {
		room := (c.X.Max - c.X.Min) / 30
		c.X.Min, c.X.Max = c.X.Min-room, c.X.Max+room
	}
	return nil
}

// points collects a carrier's points, and a tick for each condition not seen yet.
func (p Plot) points(part *Part, carrier string, ticks *[]plot.Tick) (spread, error) {
	var rows []*Row
	for i := range part.Rows {
		if r := &part.Rows[i]; r.Carrier == carrier && len(r.Values[p.line]) > 0 {
			rows = append(rows, r)
		}
	}
	s := newSpread(len(rows))
	for i, r := range rows {
		x := r.X
		if p.scale != 0 {
			x *= p.scale
		}
		if p.logX && x <= 0 {
			return s, fmt.Errorf("%s: no logarithm of %g", carrier, x)
		}
		s.set(i, x, r.Values[p.line])
		if !slices.ContainsFunc(*ticks, func(t plot.Tick) bool { return t.Value == x }) {
			*ticks = append(*ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'f', -1, 64)})
		}
	}
	return s, nil
}

// values are those of a row, at least a zero.
func (r *Row) values(m Metric) []float64 {
	if r == nil || len(r.Values[m]) == 0 {
		return []float64{0}
	}
	return r.Values[m]
}
