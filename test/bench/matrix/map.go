package matrix

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg" // registers the format "svg"

	"edgemesh/test/bench/report"
)

// Carriers in the matrix. Cubic and BBR are the flows on the bare link.
const (
	BareBBR   = "bare BBR"
	BareCubic = "bare cubic"
)

// Carriers are all of them, in the order of their turns.
func Carriers() []string { return []string{BareBBR, BareCubic, report.Reference, report.Direct} }

// MoreCarriers may be asked for.
func MoreCarriers() []string { return []string{report.TCP, report.Before} }

// Map is one heat map: a row for each cell and a column for each carrier.
type Map struct {
	File, Title string
	format      string
	// value is what one square shows.
	value func(row *Row, carrier string) (float64, bool)
	// bad turns it into 0 (good) to 1.
	bad func(v float64) float64
	// base shows its own value, in this format, since the others are shares of it; "": none does.
	base, baseFormat string
}

// Maps are all heat maps.
func Maps() []Map {
	return []Map{
		{
			File: "share.svg", Title: "Share of what flows with BBR carry on the bare link", format: "%.2f", value: Share,
			bad: func(v float64) float64 { return (1 - v) / 0.6 }, base: BareBBR, baseFormat: "%.1f Mbit/s",
		},
		{
			File: "ping.svg", Title: "Ping beside the flow, added to the idle one: median, ms", format: "%.0f",
			value: added(func(r Round) float64 { return r.PingMs - r.IdleMs }), bad: func(v float64) float64 { return v / 200 },
		},
		{
			File: "ping99.svg", Title: "Ping beside the flow, added to the idle one: 99th percentile, ms", format: "%.0f",
			value: added(func(r Round) float64 { return r.Ping99Ms - r.IdleMs }), bad: func(v float64) float64 { return v / 300 },
		},
		{
			File: "voice.svg", Title: "Datagrams of 200 kbit/s lost beside the flow, %", format: "%.1f",
			value: func(row *Row, carrier string) (float64, bool) {
				v, _ := row.Median(carrier, func(r Round) float64 { return 100 * r.VoiceLost })
				jitter, ok := row.Median(carrier, func(r Round) float64 { return r.VoiceJitter })
				return v, ok && jitter > 0 // without datagrams there is none
			},
			bad: func(v float64) float64 { return v / 10 },
		},
	}
}

// Share is a carrier's rate to that of BBR on the bare link, each round's own; of BareBBR, its rate in Mbit/s.
func Share(row *Row, carrier string) (float64, bool) {
	if carrier == BareBBR {
		return row.Median(carrier, func(r Round) float64 { return r.Mbps })
	}
	bare, own := row.Rounds[BareBBR], row.Rounds[carrier]
	var ratios []float64
	for i := range min(len(bare), len(own)) {
		if bare[i].Mbps > 0 {
			ratios = append(ratios, own[i].Mbps/bare[i].Mbps)
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}

func added(value func(Round) float64) func(*Row, string) (float64, bool) {
	return func(row *Row, carrier string) (float64, bool) {
		v, ok := row.Median(carrier, value)
		return max(0, v), ok
	}
}

// grid is a Map's squares, the first row above.
type grid struct {
	m Map
	r *Results
}

func (g grid) Dims() (c, r int) { return len(g.r.Carriers), len(g.r.Rows) }
func (g grid) X(c int) float64  { return float64(c) }
func (g grid) Y(r int) float64  { return float64(r) }
func (g grid) at(c, r int) (float64, bool) {
	return g.m.value(g.r.Rows[len(g.r.Rows)-1-r], g.r.Carriers[c])
}

func (g grid) Z(c, r int) float64 {
	v, ok := g.at(c, r)
	switch {
	case !ok:
		return math.NaN()
	case g.r.Carriers[c] == g.m.base:
		return 0
	}
	return min(1, max(0, g.m.bad(v)))
}

// shades go from green over yellow to red, light enough for black text.
type shades struct{}

func (shades) Colors() []color.Color {
	var cs []color.Color
	const n = 20
	for i := range n {
		x := float64(i) / (n - 1)
		cs = append(cs, color.RGBA{
			R: uint8(170 + 80*min(1, 2*x)), G: uint8(225 - 95*max(0, 2*x-1)), B: uint8(150 - 30*x), A: 255,
		})
	}
	return cs
}

// draw writes the map as SVG.
func (m Map) draw(r *Results, file string) error {
	p := plot.New()
	p.Title.Text = m.Title
	g := grid{m, r}
	squares := plotter.NewHeatMap(g, shades{})
	squares.Min, squares.Max = 0, 1
	squares.NaN = color.White
	p.Add(squares)
	var at plotter.XYLabels
	cols, rows := g.Dims()
	for c := range cols {
		for row := range rows {
			if v, ok := g.at(c, row); ok {
				format := m.format
				if r.Carriers[c] == m.base {
					format = m.baseFormat
				}
				at.XYs = append(at.XYs, plotter.XY{X: float64(c), Y: float64(row)})
				at.Labels = append(at.Labels, fmt.Sprintf(format, v))
			}
		}
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return fmt.Errorf("%s: %w", m.File, err)
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = text.XCenter, text.YCenter
	}
	p.Add(labels)
	names := make([]string, rows)
	for i, row := range r.Rows {
		names[rows-1-i] = row.Cell
	}
	p.NominalX(r.Carriers...)
	p.NominalY(names...)
	if err := p.Save(9.5*vg.Inch, vg.Length(rows)*0.22*vg.Inch+vg.Inch, file); err != nil {
		return fmt.Errorf("%s: %w", m.File, err)
	}
	return nil
}
