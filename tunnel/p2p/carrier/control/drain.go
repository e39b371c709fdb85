package control

import "math"

// While a queue stands, less is sent. Own senders do the same, since all see the same queue, so it goes. If it stands though only
// as much is in flight as the bottleneck carries of this path's in a round trip, cross traffic takes what is left to it. To yield
// to that for longer is a ratchet: what arrives is one's share, less is sent, which is the next share.
const (
	drainPace  = 0.5  // until no more than a BDP is in flight: a queue goes in twice its time
	waitPace   = 0.95 // then, until the answer
	searchPace = 0.75 // BBR's drain, when there was none, and where the bottom is searched

	drainsFailed  = 2    // make it cross traffic's queue, whether or not others emptied it: BBR does so now and then
	drainsFailing = 0.8  // seconds at least between the first and the last; a new own sender needs as long to find its share
	failedForgot  = 10.0 // seconds after the first
	searchEvery   = 10.0 // seconds; BBR's ProbeRTT
)

type drain struct {
	began    float64
	stage    int     // 0: less than a BDP is to be in flight; 1: that is so; 2: less still
	until    float64 // the stage's end
	queue    float64 // the longest before it could answer
	least    float64 // the shortest of stage 2
	bottomed float64 // end of a search for the bottom; 0: none yet

	failed   int     // drains
	since    float64 // the first of them
	claim    float64 // the rate before it
	searched float64 // when the bottom was searched last; 0: never
}

func (d *drain) pace(tooMuch bool) float64 {
	switch {
	case d.stage == 2:
		return searchPace
	case tooMuch:
		return drainPace
	}
	return waitPace
}

func (c *Control) startDrain(a Ack) {
	d := &c.drain
	c.state = Drain
	d.began, d.stage, d.queue, d.least, d.bottomed = a.Now, 0, c.path.queue, math.Inf(1), 0
}

// answer is how long an answer to a change takes.
func (c *Control) answer() float64 { return c.path.minRTT + 2*c.path.gap }

func (c *Control) draining(a Ack) {
	d, p, t := &c.drain, &c.path, c.target()
	if p.queue < t/2 {
		if !c.searchBottom(a) {
			c.state = Probe
			c.mark, c.since = a.Next, 0
		}
		return
	}
	if a.Sent < d.began { // what arrives later is the less that was sent
		c.measure(a)
		d.queue = max(d.queue, p.queue)
	}
	d.least = min(d.least, p.queue)
	switch {
	case d.stage == 0 && (a.InFlight <= c.bdp() || a.Now > d.began+d.queue/(1-drainPace)+p.srtt): // an own queue would be gone
		d.stage, d.until = 1, a.Now+c.answer()+0.01
	case d.stage == 1 && a.Now > d.until:
		d.stage, d.until, d.least = 2, a.Now+c.answer()+0.01, math.Inf(1)
	case d.stage == 2 && a.Now > d.until:
		c.failed(a, d.least > max(t, d.queue/2))
	}
}

// searchBottom says whether less is to be sent still, so that the least delay is seen: who came while a queue stood takes it for
// the path's delay, never yields, and would be taken for cross traffic.
func (c *Control) searchBottom(a Ack) bool {
	d, p := &c.drain, &c.path
	if d.searched > 0 && a.Now-d.searched < searchEvery {
		return false
	}
	if d.bottomed == 0 {
		d.bottomed = a.Now + c.answer()
	}
	if a.Now < d.bottomed || a.Arrived-p.lowered < p.minRTT+p.gap {
		d.stage, d.until, d.least = 2, a.Now+c.answer()+0.01, math.Inf(1)
		return true
	}
	d.searched = a.Now
	return false
}

// failed ends a drain that did not empty the queue, and in which it stood, or was about to go.
func (c *Control) failed(a Ack, stood bool) {
	d := &c.drain
	before := c.rate
	c.measure(a)
	if stood {
		if a.Now-d.since > failedForgot || d.failed == 0 {
			d.claim, d.since, d.failed = before, d.began, 0
		}
		if d.failed++; d.failed >= drainsFailed && a.Now-d.since > drainsFailing {
			c.startHold(a)
			return
		}
	}
	c.startDrain(a)
}
