package socket

import "time"

const (
	// longPath is the shortest round trip of a path on which BBR is restarted: on shorter ones it searches often enough by
	// itself.
	longPath = 5 * time.Millisecond
	// probeTime is how long the queue may become that a probe makes until it is told: in a round trip, or longer on a thin
	// line.
	probeTime = 9 * time.Millisecond
	// firstTime is how long it may become in a round trip of the first step, unless the line is open.
	firstTime = 60 * time.Millisecond
	// probePause is the least time between probes that find nothing; it doubles up to probePauseMax while they follow each
	// other.
	probePause, probePauseMax = 250 * time.Millisecond, 4 * time.Second
	// newStep is the least step on a line that has changed.
	newStep = 0.25
	// newRouteStep is the step on another route.
	newRouteStep = 1
	// staleStep is the least step where no queue has stood for staleTime: the line may be another one.
	staleStep, staleTime = 0.5, 10 * time.Second
	// fallTime is for how long a line that became slower and now carries a little more is tried with what it carried before,
	// or with mostRise more than now.
	fallTime, mostRise = 5 * time.Second, 2
	// carriedTime is for how long a line is believed to carry as much as it did, where the peer sends, and besideTime while
	// a queue stands.
	carriedTime, besideTime = 30 * time.Second, 4 * time.Second
	// probeTrips and leastRounds is how many round trips, and rounds, a probe has for more to arrive.
	probeTrips, leastRounds = 3, 2
	// A step of which someStep arrives has carried; on a thin far line one of which less than mostStep does ends at the line's
	// end: a larger one would be lost for a round trip.
	someStep, mostStep = 0.5, 0.8
	// farStep is the share by which a thin far line may be exceeded while nothing is looked for.
	farStep = 0.02
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
	open   bool      // the line has carried all that was tried: it may carry much more
	due    bool      // it begins as soon as a restart keeps BBR's window, or after a round
	next   time.Time // not before this
	pause  time.Duration
	fall   fall

	carried time.Time // when the line carried its rate last; zero: not on this route
}

// fall is when a line became slower, and what it carried before.
type fall struct {
	at   time.Time
	from uint64
}

// leastStep is the share of its rate by which a line may be exceeded that tells its rate in this time.
func leastStep(tell time.Duration) float64 {
	return min(max(float64(probeTime)/float64(tell), 0.05), 0.25)
}

// may reports whether to try more: if the line is full, or BBR has lost its rate; without a pause if BBR found more.
func (b *prober) may(s sight, line, rate uint64, now time.Time) bool {
	return (!now.Before(b.next) || line >= b.aim) && (rate > lostRate(line) || s.rate < lostRate(line))
}

// lostRate is below what BBR knows on a line that is full.
func lostRate(line uint64) uint64 { return line / 4 * 3 }

// keepsWindow reports whether a restart leaves BBR a window that fills a line which so many bytes fit on. While losses are
// repaired it takes what is in flight, and has forgotten the one to return to (bbr_set_cwnd_to_recover_or_restore of
// net/ipv4/tcp_bbr.c).
func (s sight) keepsWindow(fits float64) bool {
	return !s.repairs || float64(s.inFlight) >= fits
}

func (p *pacer) beginProbe(s sight, now time.Time) order {
	b := &p.probe
	if now.Sub(p.stood) > staleTime && !p.doubt {
		b.step = max(b.step, staleStep)
	}
	if !b.open {
		b.step = min(b.step, float64(firstTime)/float64(p.route.least))
	}
	b.step = max(b.step, leastStep(p.route.tellTime(p.line)))
	b.due, b.since, b.rounds, b.from = false, now, 0, p.line
	b.aim, b.fresh = p.above(b.step/2), !s.starting && p.route.known(s) && s.rate < p.above(b.step) // else it gets there itself
	return order{limit: p.above(b.step), restart: b.fresh}
}

// probing continues after a round in which no queue stood.
func (p *pacer) probing(s sight, r round, rate, tried uint64, now time.Time) order {
	b := &p.probe
	b.rounds++
	if b.fresh && b.rounds > leastRounds && !p.doubt { // a flow inside pauses while losses are repaired; BBR's samples do not
		rate = max(rate, min(s.rate, tried))
		p.line = max(p.line, rate)
	}
	got := (float64(rate)/float64(b.from) - 1) / b.step // this share of the step
	switch {
	case p.route.far() && p.route.thin(p.line) && r.busy() && got < mostStep && // the line's end
		(got >= someStep || b.rounds > 1 && r.overshot(s, b.step, p.lost.least)):
		b.open = false
		b.end(p.line, p.route.tellTime(p.line), now)
		return p.ceiling()
	case got >= someStep:
		b.from, b.since, b.rounds, b.step = rate, now, 0, min(2*b.step, 1)
		if now.Sub(b.fall.at) < fallTime { // it was faster just now
			b.step = max(b.step, min(float64(b.fall.from)/float64(p.line)-1, mostRise))
		}
		b.aim, b.open = p.above(b.step/2), true
	case b.rounds > leastRounds && now.Sub(b.since) > probeTrips*max(s.rtt, leastRound): // something else limits
		if b.backOff(now); s.rate < lostRate(p.line) { // BBR has lost its rate again: the line was not tried
			b.next = now.Add(probePause)
		}
		b.open, b.step = b.open && !r.busy(), min(b.step, 1)
		return p.ceiling()
	}
	return order{limit: p.above(b.step)}
}

// unknown has a line tried that may carry much more than is known.
func (b *prober) unknown() { b.open, b.step = true, newRouteStep }

// stop gives a probe up, whether it has begun or is due.
func (b *prober) stop() { b.since, b.due = time.Time{}, false }

// end ends a probe after which the line carries so much.
func (b *prober) end(line uint64, tell time.Duration, now time.Time) {
	b.known(tell)
	if line >= b.aim {
		b.stop()
		b.pause, b.next = 0, now
		return
	}
	b.backOff(now)
}

// known makes the next step small: a queue has told what the line carries.
func (b *prober) known(tell time.Duration) { b.step = max(min(b.step/2, newStep), leastStep(tell)) }

// backOff ends a probe that found nothing: the next one is later.
func (b *prober) backOff(now time.Time) {
	b.stop()
	b.pause = min(max(2*b.pause, probePause), probePauseMax)
	b.next = now.Add(b.pause)
}

// proven reports whether the line has carried its rate on this route. Else it may be much slower.
func (b *prober) proven() bool { return !b.carried.IsZero() }

// newRoute has the line of another route probed, which may carry much more: what was known is where to begin. Beside others
// their queue may be what has changed.
func (b *prober) newRoute(others bool, now time.Time) {
	b.fall.from, b.carried = 0, time.Time{} // another route's
	b.newLine(0, now)
	if b.open = !others; b.open {
		b.step = newRouteStep
	}
}

// newLine has a line probed that is another one now: one that has become slower, having carried so much before, may become
// faster again.
func (b *prober) newLine(before uint64, now time.Time) {
	b.stop()
	if now.Sub(b.fall.at) > fallTime || before >= b.fall.from/4*3 {
		b.fall = fall{now, before}
	}
	b.pause, b.next, b.step = 0, now, max(b.step, newStep)
}
