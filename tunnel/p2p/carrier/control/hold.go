package control

// Beside cross traffic nobody can keep the queue short, and who yields loses all. So a share of the bottleneck is held, until a
// trial of draining shows that the queue goes again.
const (
	heldShare = 0.5  // of what the bottleneck carries at least; with pulses and repairs 0.2-0.45 arrive
	growth    = 1.25 // a round, until that share: BBR's probe

	trialFirst, trialLast = 5.0, 30.0 // seconds until a trial, doubled each time
	trialRTTs             = 60.0      // or round trips: growing takes some
	trialAgain            = 3.0       // seconds in which a trial failed, if it is Hold again

	empty     = 0.5 // seconds without a queue, and
	emptyRTTs = 8.0 // round trips: BBR's ProbeRTT takes 0.2 s and a cycle

	tooManyLost = 0.12 // of what is sent, above the usual: too many hold a share
	yield       = 0.6
)

// pulses make the queue answer. Five, not to be in step with BBR's eight.
var pulses = [...]float64{1.25, 1, 0.8, 1.05, 0.9}

type hold struct {
	since   float64
	left    float64 // when it was left by a trial
	trial   float64 // seconds until the next
	emptied float64 // when a queue stood last
	share   float64 // of the bottleneck
	cut     int     // rounds since it was lowered
	pulse   int
}

func (c *Control) startHold(a Ack) {
	h := &c.hold
	if a.Now-h.left > trialAgain {
		h.trial = 0
	}
	least := trialRTTs * c.path.minRTT
	*h = hold{since: a.Now, left: h.left, trial: min(max(2*h.trial, trialFirst, least), max(trialLast, least)), emptied: a.Now, share: heldShare}
	c.state = Hold
	c.line.gone = 0
	c.rate = max(c.rate, c.drain.claim)
	c.grow()
}

// grow brings the rate to the share that is held: down immediately, up by steps, as long as data wait. Before the bottleneck's rate
// is known, growing is what makes it known.
func (c *Control) grow() {
	most := c.rate
	if c.line.waited {
		most *= growth
	}
	if known := c.line.rate(); known > 0 {
		most = min(most, c.hold.share*known)
	}
	c.rate = max(most, leastRate)
}

// leave tries to drain.
func (c *Control) leave(a Ack, failed int) {
	c.state = Probe
	c.hold.left = a.Now
	c.drain.failed, c.drain.claim, c.drain.since = failed, c.rate, a.Now-drainsFailing
	c.path.stands = 0
	c.startStep(a, c.firstStep())
}

// holding is the end of a round.
func (c *Control) holding(a Ack) {
	h, l, p := &c.hold, &c.line, &c.path
	switch {
	case l.low >= c.standing():
		h.emptied = a.Now
	case a.Now-h.emptied > empty+emptyRTTs*p.minRTT:
		c.leave(a, 0)
		h.left = 0
		return
	}
	if a.Now-h.since > h.trial {
		c.leave(a, drainsFailed-1)
		return
	}
	if l.waited {
		h.pulse++
	}
	if h.cut++; l.gone > p.loss+tooManyLost && h.cut > 10 {
		h.share, h.cut = max(yield*h.share, 0.05), 0
	} else {
		h.share = min(h.share+0.005, heldShare)
	}
	c.grow()
}

// standing is the queue that others' packets make.
func (c *Control) standing() float64 {
	if c.state != Hold {
		return c.target()
	}
	return clockNoise + min(1.2*packet/max(c.rate, c.line.rate()), 0.006)
}
