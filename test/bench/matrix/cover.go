package matrix

import (
	"cmp"
	"slices"
	"time"
)

const mbit = 1_000_000

func levels() (rates []Rate, delays, queues []time.Duration, losses, reorders []float64, loads []Load) {
	for _, r := range []int64{1, 2, 10, 30, 100, 200} {
		rates = append(rates, Rate{r * mbit, r * mbit})
	}
	rates = append(rates, Rate{20 * mbit, 2 * mbit}, Rate{100 * mbit, 5 * mbit})
	return rates,
		[]time.Duration{5 * time.Millisecond, 25 * time.Millisecond, 75 * time.Millisecond, 300 * time.Millisecond},
		[]time.Duration{50 * time.Millisecond, 500 * time.Millisecond},
		[]float64{0, 0.01, 0.03}, []float64{0, 0.02}, []Load{OneFlow, EightFlows, BothDirections, Voice}
}

// Always are cells that every choice has: a fast long link, a thin one with a router's deep queue, a shaky one, and a
// lopsided one that is used in both directions.
func Always() []Cell {
	return []Cell{
		{Rate{200 * mbit, 200 * mbit}, 50 * time.Millisecond, 50 * time.Millisecond, 0, 0, "", OneFlow},
		{Rate{2 * mbit, 2 * mbit}, 40 * time.Millisecond, 500 * time.Millisecond, 0, 0, "", OneFlow},
		{Rate{30 * mbit, 30 * mbit}, 40 * time.Millisecond, 50 * time.Millisecond, 0.01, 0.02, "", OneFlow},
		{Rate{20 * mbit, 2 * mbit}, 25 * time.Millisecond, 500 * time.Millisecond, 0, 0, "", BothDirections},
	}
}

// Cells are Always and as few more as show every two levels together, except those that no cell can: fast links longer
// than TCP's default windows.
func Cells() []Cell {
	all := every()
	open := make(map[pair]bool)
	for _, c := range all {
		for _, p := range c.pairs() {
			open[p] = true
		}
	}
	cells := Always()
	for _, c := range cells {
		for _, p := range c.pairs() {
			delete(open, p)
		}
	}
	for len(open) > 0 {
		var best Cell
		most := 0
		for _, c := range all {
			n := 0
			for _, p := range c.pairs() {
				if open[p] {
					n++
				}
			}
			if n > most {
				best, most = c, n
			}
		}
		for _, p := range best.pairs() {
			delete(open, p)
		}
		cells = append(cells, best)
	}
	slices.SortStableFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Rate.Down, b.Rate.Down), cmp.Compare(a.Delay, b.Delay), cmp.Compare(a.Loss, b.Loss))
	})
	return cells
}

// every is all cells that fit.
func every() (all []Cell) {
	rates, delays, queues, losses, reorders, loads := levels()
	for _, rate := range rates {
		for _, delay := range delays {
			for _, queue := range queues {
				for _, loss := range losses {
					for _, reorder := range reorders {
						for _, varies := range []Variation{"", Varying} {
							for _, load := range loads {
								if c := (Cell{rate, delay, queue, loss, reorder, varies, load}); c.fits() {
									all = append(all, c)
								}
							}
						}
					}
				}
			}
		}
	}
	return all
}

// pair is two properties of a cell, each with its place.
type pair struct {
	i, j int
	a, b any
}

func (c Cell) pairs() []pair {
	v := []any{c.Rate, c.Delay, c.Queue, c.Loss, c.Reorder, c.Varies, c.Load}
	var ps []pair
	for i := range v {
		for j := i + 1; j < len(v); j++ {
			ps = append(ps, pair{i, j, v[i], v[j]})
		}
	}
	return ps
}
