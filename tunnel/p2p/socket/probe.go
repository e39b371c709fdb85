package socket

import "time"

const (
	// longPath is the shortest round trip of a path on which BBR is restarted: on shorter ones it searches often enough by
	// itself.
	longPath = 5 * time.Millisecond
	// probeTime is how long the queue may become that a probe makes in a round trip.
	probeTime = 10 * time.Millisecond
	// probePause is the least time between probes that find nothing; it doubles up to probePauseMax while they follow each
	// other.
	probePause, probePauseMax = 250 * time.Millisecond, 4 * time.Second
	// newStep is the least step on a line that has changed.
	newStep = 0.25
	// newRouteStep is the step on another route.
	newRouteStep = 1
	// staleStep is the least step where no queue has stood for staleTime: the line may be another one.
	staleStep, staleTime = 0.5, 10 * time.Second
	// probeTrips and leastRounds is how many round trips, and rounds, a probe has for more to arrive.
	probeTrips, leastRounds = 3, 2
)

// prober tries whether the line carries more: it sends a step more until a queue stands. A step that carried is doubled;
// where probes find nothing they become small and rare.
type prober struct {
	since  time.Time // zero: there is none
	rounds int       // since then
	from   uint64    // what the line carried when it last carried more
	aim    uint64    // what it has to carry at the end, for the probe to have found more
	step   float64   // share of the line's rate
	fresh  bool      // BBR has been restarted for it: what it has found is new
	next   time.Time // not before this
	pause  time.Duration
}

// leastStep is the share of its rate by which the line may be exceeded on a path of this round trip.
func leastStep(trip time.Duration) float64 {
	return min(max(float64(probeTime)/float64(trip), 0.05), 0.25)
}

// may reports whether to try more: if the line is full, or BBR has lost its rate; without a pause if BBR found more.
func (b *prober) may(s sight, line, rate uint64, now time.Time) bool {
	most := line / 4 * 3
	return (!now.Before(b.next) || line >= b.aim) && (rate > most || s.rate < most)
}

func (p *pacer) beginProbe(s sight, now time.Time) order {
	b := &p.probe
	if now.Sub(p.stood) > staleTime {
		b.step = max(b.step, staleStep)
	}
	b.since, b.rounds, b.from, b.step = now, 0, p.line, max(b.step, leastStep(p.route.least))
	b.aim, b.fresh = p.above(b.step*3/4), !s.starting && p.route.known(s)
	return order{limit: p.above(b.step), restart: b.fresh}
}

// probing continues after a round in which no queue stood.
func (p *pacer) probing(s sight, r round, rate uint64, now time.Time) order {
	b := &p.probe
	b.rounds++
	if b.fresh && b.rounds > leastRounds { // a flow inside pauses while losses are repaired; BBR's samples do not
		rate = max(rate, min(s.rate, p.limit))
		p.line = max(p.line, rate)
	}
	switch {
	case float64(rate) >= float64(b.from)*(1+b.step*3/4):
		b.from, b.since, b.rounds, b.step = rate, now, 0, min(2*b.step, 1)
		b.aim, p.open = p.above(b.step*3/4), true
	case b.rounds > leastRounds && now.Sub(b.since) > probeTrips*max(s.rtt, leastRound): // something else limits
		b.backOff(now)
		p.open = p.open && !r.busy()
		return p.ceiling()
	}
	return order{limit: p.above(b.step)}
}

// end ends a probe after which the line carries so much.
func (b *prober) end(line uint64, trip time.Duration, now time.Time) {
	if line >= b.aim {
		b.since, b.pause, b.next = time.Time{}, 0, now
		return
	}
	b.step = max(b.step/2, leastStep(trip))
	b.backOff(now)
}

// backOff ends a probe that found nothing: the next one is later.
func (b *prober) backOff(now time.Time) {
	b.since, b.pause = time.Time{}, min(max(2*b.pause, probePause), probePauseMax)
	b.next = now.Add(b.pause)
}

// newRoute has the line of another route probed, and reports whether it may carry much more: what was known is where to
// begin. Beside others their queue may be what has changed.
func (b *prober) newRoute(others bool, now time.Time) bool {
	b.newLine(now)
	if !others {
		b.step = newRouteStep
	}
	return !others
}

// newLine has a line probed that is another one now: one that has become slower may become faster again.
func (b *prober) newLine(now time.Time) {
	b.since, b.pause, b.next, b.step = time.Time{}, 0, now, max(b.step, newStep)
}
