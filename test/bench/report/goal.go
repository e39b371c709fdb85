package report

import (
	"fmt"
	"strconv"
)

// Goal is one promise: a floor that must be reached and a goal beyond it.
type Goal struct {
	Name        string
	Unit        string // "×" of the reference, or a unit
	Floor, Goal float64
	Least       bool // the figures are lower bounds, not upper ones
	digits      int
	measured    func(Report) (float64, bool)
}

// Verdict is what became of a Goal.
type Verdict string

// The verdicts.
const (
	Reached    Verdict = "goal"
	AboveFloor Verdict = "floor"
	Missed     Verdict = "**missed**"
	Unmeasured Verdict = "–"
)

// Judge compares with what was measured.
func (g Goal) Judge(r Report) (float64, Verdict) {
	v, ok := g.measured(r)
	if !ok {
		return 0, Unmeasured
	}
	holds := func(bound float64) bool {
		if g.Least {
			return v >= bound
		}
		return v <= bound
	}
	switch {
	case holds(g.Goal):
		return v, Reached
	case holds(g.Floor):
		return v, AboveFloor
	}
	return v, Missed
}

// bound is a figure with its direction and unit.
func (g Goal) bound(v float64) string {
	sign := "≤"
	if g.Least {
		sign = "≥"
	}
	return sign + " " + g.text(v)
}

func (g Goal) text(v float64) string {
	if g.Unit == "" {
		return strconv.FormatFloat(v, 'f', g.digits, 64)
	}
	return strconv.FormatFloat(v, 'f', g.digits, 64) + " " + g.Unit
}

// versus is the ratio of our direct path to the reference.
func versus(part string, m Metric) func(Report) (float64, bool) {
	return ratioOf(part, Direct, Reference, m)
}

func ratioOf(part, ours, theirs string, m Metric) func(Report) (float64, bool) {
	return func(r Report) (float64, bool) {
		p := r.Parts[part]
		return Ratio(p.Row(ours, 0), p.Row(theirs, 0), m)
	}
}

// of is a carrier's median, scaled.
func of(part, carrier string, x float64, m Metric, scale float64) func(Report) (float64, bool) {
	return func(r Report) (float64, bool) {
		v, ok := r.Parts[part].Row(carrier, x).Median(m)
		return v * scale, ok
	}
}

// aboveIdle is how much longer than on the idle link a ping takes beside the flow.
func aboveIdle(loss float64) func(Report) (float64, bool) {
	return func(r Report) (float64, bool) {
		row := r.Parts[Link].Row(Direct, loss)
		load, ok1 := row.Median(PingLoad99)
		idle, ok2 := row.Median(PingIdle)
		return max(load-idle, 0), ok1 && ok2
	}
}

// saturated is the memory of the largest agent in the parts that load it.
func saturated(r Report) (float64, bool) {
	v, ok := r.Parts[Clean].Row(Direct, 0).Worst(PeakMB)
	if w, also := r.Parts[Packets].Row(Direct, 0).Worst(PeakMB); also {
		v = max(v, w)
	}
	return v, ok
}

// worstAllocs is the most allocations of any of a packet's steps.
func worstAllocs(r Report) (worst float64, ok bool) {
	if p := r.Parts[Code]; p != nil {
		for i := range p.Rows {
			v, has := p.Rows[i].Median(CodeAllocs)
			worst, ok = max(worst, v), ok || has
		}
	}
	return worst, ok
}

// StreamLoss is the link's loss under the steady stream of datagrams.
const StreamLoss = 0.01

// idleMembers is the size of the membership that the goals are about.
const idleMembers = 1000

// Goals returns all promises.
func Goals() []Goal {
	gs := []Goal{
		{"one TCP flow, direct, to wireguard-go", "×", 1.6, 2.2, true, 2, versus(Clean, FlowGbps)},
		{"CPU-seconds per GB, to wireguard-go", "×", 0.6, 0.45, false, 2, versus(Clean, MachineCPU)},
		{"four TCP flows, to wireguard-go", "×", 1.6, 2.2, true, 2, versus(Clean, FourGbps)},
		{"1200-byte datagrams without loss, to wireguard-go", "×", 0.8, 1.2, true, 2, versus(Packets, PacketRate)},
		{"1-byte request and answer, to wireguard-go", "×", 1.3, 1.0, false, 2, versus(Clean, AnswerTCP)},
		{"idle ping, to wireguard-go", "×", 1.3, 1.0, false, 2, versus(Clean, PingIdle)},
		{"one TCP flow through one relay", "Gbit/s", 1.5, 2.5, true, 2, of(Clean, Relayed, 0, FlowGbps, 1)},
	}
	for _, l := range []struct{ loss, floor, goal float64 }{{0, 87, 92}, {0.01, 65, 85}, {0.03, 45, 80}} {
		what := fmt.Sprintf("100 Mbit/s, 25 ms, %g %% loss: one cubic flow", 100*l.loss)
		gs = append(gs, Goal{what, "Mbit/s", l.floor, l.goal, true, 1, of(Link, Direct, l.loss, FlowMbps, 1)})
	}
	for _, loss := range []float64{0, 0.01, 0.03} {
		what := fmt.Sprintf("ping p99 beside that flow, above idle, %g %% loss", 100*loss)
		gs = append(gs, Goal{what, "ms", 50, 15, false, 1, aboveIdle(loss)})
	}
	return append(gs,
		Goal{"10 Mbit/s of datagrams at 1 % loss beside a flow: lost", "%", 2, 1.1, false, 2,
			of(Link, Direct, StreamLoss, StreamLost, 100)},
		Goal{"their jitter", "ms", 10, 3, false, 1, of(Link, Direct, StreamLoss, Jitter, 1)},
		Goal{"one LAN: one TCP flow, native, to plain veth", "×", 0.8, 0.95, true, 2,
			ratioOf(LAN, Native, Plain, FlowGbps)},
		Goal{"one LAN: one TCP flow, vxlan, to plain VXLAN", "×", 0.9, 1.0, true, 2,
			ratioOf(LAN, VXLAN, PlainVXLAN, FlowGbps)},
		Goal{"one LAN: 1-byte request and answer, native, to plain veth", "×", 1.2, 1.05, false, 2,
			ratioOf(LAN, Native, Plain, AnswerTCP)},
		Goal{"one LAN: native after the first packet", "s", 15, 3, false, 1, of(LAN, Native, 0, PathAfter, 1)},
		Goal{"heap allocations per packet in our own code", "", 0, 0, false, 0, worstAllocs},
		Goal{"idle agent, 1000 members: RSS", "MB", 120, 60, false, 0, of(Idle, Direct, idleMembers, IdleMB, 1)},
		Goal{"idle agent, 1000 members: CPU", "%", 2, 0.5, false, 2, of(Idle, Direct, idleMembers, IdleCPU, 100)},
		Goal{"idle agent, 1000 members: start-up", "s", 5, 1, false, 2, of(Idle, Direct, idleMembers, StartReady, 1)},
		Goal{"memory of a saturated agent", "MB", 150, 60, false, 0, saturated})
}
