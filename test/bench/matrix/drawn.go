package matrix

import (
	"math"
	"math/rand/v2"
	"time"
)

// drawnSeed was fixed before anything was measured on drawn links.
const drawnSeed = 53

// Drawn are 40 links that nothing was made for, the same in every run: rates from 1 to 200 Mbit/s and delays from 5 to 300 ms, each
// decade as likely as another, a quarter with a tenth of the rate upwards; queues from 20 to 800 ms; half lose .1 to 5 %; a quarter
// reorders .5 to 4 %; two fifths vary in one of three ways; loads by turns.
func Drawn() (cells []Cell) {
	rng := rand.New(rand.NewPCG(drawnSeed, drawnSeed)) //nolint:gosec // a benchmark's choice
	between := func(low, high float64) float64 { return math.Exp(math.Log(low) + rng.Float64()*math.Log(high/low)) }
	two := func(v float64) float64 { // digits
		unit := math.Pow(10, math.Floor(math.Log10(v))-1)
		return math.Round(v/unit) * unit
	}
	ms := func(v float64) time.Duration { return time.Duration(math.Round(v)) * time.Millisecond }
	loads := []Load{OneFlow, EightFlows, BothDirections, Voice}
	for len(cells) < 40 {
		down := int64(two(between(1, 200) * mbit))
		c := Cell{Rate: Rate{down, down}, Delay: ms(between(5, 300)), Queue: ms(between(20, 800)), Load: loads[len(cells)%len(loads)]}
		if up := down / 10; rng.IntN(4) == 0 && up >= mbit/2 {
			c.Rate.Up = up
		}
		if rng.IntN(2) == 0 {
			c.Loss = math.Round(1e4*between(0.001, 0.05)) / 1e4
		}
		if rng.IntN(4) == 0 {
			c.Reorder = math.Round(1e4*between(0.005, 0.04)) / 1e4
		}
		if rng.IntN(5) < 2 {
			c.Varies = []Variation{Varying, Fading, Falling}[rng.IntN(3)]
		}
		if c.fits() {
			cells = append(cells, c)
		}
	}
	return cells
}
