package report

import (
	"fmt"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Curve is a line of a picture of something else than a part.
type Curve struct {
	Name string
	X, Y []float64
}

// Curves draws lines as SVG, in the manner of the other pictures.
func Curves(title, x, y string, logX bool, lines []Curve) ([]byte, error) {
	c := Plot{Title: title, unit: y, logX: logX, legendLow: true}.canvas()
	c.X.Label.Text = x
	if logX {
		c.X.Scale, c.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(steps)
	}
	c.Add(plotter.NewGrid())
	for k, l := range lines {
		points := make(plotter.XYs, len(l.X))
		for i := range points {
			points[i].X, points[i].Y = l.X[i], l.Y[i]
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("curve %s: %w", l.Name, err)
		}
		line.Color, line.Width = palette(k), vg.Points(1.5)
		if k >= colours { // a colour comes again
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		c.Add(line)
		c.Legend.Add(l.Name, line)
	}
	if logX {
		c.X.Max *= legendRoom
	}
	return picture(c)
}

// colours is how many palette has.
const colours = 6

// legendRoom is by how much a logarithmic axis is longer than the curves: the legend stands there.
const legendRoom = 6

// steps are ticks at 1, 2 and 5 times each power of ten.
func steps(least, most float64) (ticks []plot.Tick) {
	for ten := math.Pow(10, math.Floor(math.Log10(least))); ten <= most; ten *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if x := k * ten; x >= least*0.999 && x <= most {
				ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'g', 3, 64)})
			}
		}
	}
	return ticks
}
