package report

import (
	"fmt"

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
		c.X.Scale, c.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
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
		c.Add(line)
		c.Legend.Add(l.Name, line)
	}
	return picture(c)
}
