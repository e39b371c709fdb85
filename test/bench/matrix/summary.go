package matrix

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"edgemesh/test/bench/report"
)

// Figure is a mean with its standard error over rounds.
type Figure struct{ Mean, Error float64 }

// String has both.
func (f Figure) String() string { return fmt.Sprintf("%.3f ± %.3f", f.Mean, f.Error) }

// figure is the mean of values.
func figure(vs []float64) Figure {
	n, sum, squares := float64(len(vs)), 0.0, 0.0
	for _, v := range vs {
		sum += v
	}
	for _, v := range vs {
		squares += (v - sum/n) * (v - sum/n)
	}
	f := Figure{sum / n, math.NaN()}
	if n > 1 {
		f.Error = math.Sqrt(squares / (n - 1) / n)
	}
	return f
}

// shares are a carrier's rounds, each to bare BBR's mean: of the direction that has less of it, and at most 1.
func (r *Row) shares(carrier string) (vs []float64) {
	bare := r.Rounds[BareBBR]
	mean := func(value func(Round) float64) float64 {
		sum := 0.0
		for _, b := range bare {
			sum += value(b)
		}
		return sum / float64(len(bare))
	}
	down, up := mean(func(r Round) float64 { return r.Mbps }), mean(func(r Round) float64 { return r.UpMbps })
	for _, own := range r.Rounds[carrier] {
		share := own.Mbps / down
		if up > 0 {
			share = min(share, own.UpMbps/up)
		}
		vs = append(vs, min(share, 1))
	}
	return vs
}

// of are a carrier's values, one a round.
func (r *Row) of(carrier string, value func(Round) float64) (vs []float64) {
	for _, own := range r.Rounds[carrier] {
		vs = append(vs, value(own))
	}
	return vs
}

// Summary says of each carrier what it does over all links, a line each.
func (r *Results) Summary(cells []Cell) (lines []string) {
	for _, carrier := range r.Carriers {
		if carrier != BareBBR && carrier != BareCubic {
			lines = append(lines, r.summary(carrier, cells))
		}
	}
	return lines
}

func (r *Results) summary(carrier string, cells []Cell) string {
	var logs, lateSteady, lateVarying, voice, times []float64
	var squares float64
	worst, where := Figure{Mean: math.Inf(1)}, ""
	latest, latestWhere := 0.0, ""
	var timeouts, spurious float64
	for _, c := range cells {
		row := r.Row(c.String())
		shares := row.shares(carrier)
		if len(shares) == 0 || len(row.Rounds[BareBBR]) == 0 {
			continue
		}
		f := figure(shares)
		logs = append(logs, math.Log(f.Mean))
		if f.Error > 0 {
			squares += f.Error * f.Error / f.Mean / f.Mean
		}
		if f.Mean < worst.Mean {
			worst, where = f, row.Cell
		}
		added := figure(row.of(carrier, func(r Round) float64 { return max(0, r.Ping99Ms-r.IdleMs) })).Mean
		if c.Varies != "" {
			lateVarying = append(lateVarying, added)
		} else if lateSteady = append(lateSteady, added); added > latest {
			latest, latestWhere = added, row.Cell
		}
		timeouts += figure(row.of(carrier, func(r Round) float64 { return float64(r.Timeouts) })).Mean
		spurious += figure(row.of(carrier, func(r Round) float64 { return float64(r.Spurious) })).Mean
		if c.Load == Voice && c.Rate.Down >= thinMost {
			voice = append(voice, 100*(figure(row.of(carrier, func(r Round) float64 { return r.VoiceLost })).Mean-c.Loss))
		}
		large := func(r Round) float64 { return r.Short1MB }
		if own, today := figure(row.of(carrier, large)).Mean, figure(row.of(report.Direct, large)).Mean; c.Loss >= 0.01 && own > 0 && today > 0 {
			times = append(times, math.Log(own/today))
		}
	}
	if len(logs) == 0 {
		return carrier + ": nothing measured beside " + BareBBR
	}
	n := float64(len(logs))
	mean := math.Exp(figure(logs).Mean)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: share of %s over %d links %v (geometric), worst %v (%s)", carrier, BareBBR, len(logs), Figure{mean, mean * math.Sqrt(squares) / n}, worst, where)
	say := func(what string, vs []float64) {
		if len(vs) > 0 {
			fmt.Fprintf(&b, "; %s %.0f", what, median(vs))
		}
	}
	say("ping p99 added, ms, median of steady", lateSteady)
	say("of varying", lateVarying)
	if latestWhere != "" {
		fmt.Fprintf(&b, ", most %.0f (%s)", latest, latestWhere)
	}
	fmt.Fprintf(&b, "; timeouts of TCP in the pods %.0f a round, spurious %.0f", timeouts, spurious)
	if len(voice) > 0 {
		fmt.Fprintf(&b, "; datagrams beside bulk lost above the link's %.2f %%, most %.2f", figure(voice).Mean, slices.Max(voice))
	}
	if len(times) > 0 {
		fmt.Fprintf(&b, "; 1 MB on lossy links %.2f x %s's time (%d links)", math.Exp(figure(times).Mean), report.Direct, len(times))
	}
	return b.String()
}
