// Package control decides how fast one path is sent into: acknowledgements in, a rate and a window out. It has no clock and does
// no I/O. DESIGN.md draws its states, and says which other values were tried.
//
//	control.go  acknowledgements, rate and window; state Probe
//	drain.go    state Drain: the queue goes, or it is cross traffic's
//	hold.go     state Hold: beside cross traffic that does not yield
//	path.go     what acknowledgements say of the path: queue, min RTT, delivery rate, loss
//	line.go     the bottleneck's rate for all, as its queue answers what is sent
//
// Times are seconds, sizes bytes, rates bytes a second.
package control

import "math"

// Ack is what an acknowledgement says of the newest packet it is for.
type Ack struct {
	Now      float64 // own clock
	Sent     float64 // own clock: when the packet was sent
	Arrived  float64 // the peer's clock: when it arrived
	Got      float64 // bytes that had arrived in all, with it
	Size     float64 // of the packet, with all headers
	Number   uint64  // of the packet
	Next     uint64  // of the next packet to be sent
	RTT      float64 // of the packet, less the peer's delay; 0: unknown
	Waited   bool    // data waited when it was sent, so that the rate limited it
	Acked    float64 // bytes newly acknowledged
	Lost     float64 // bytes newly found lost
	InFlight float64 // bytes, after it
}

// State is what a Control is doing.
type State int

// The states.
const (
	Probe State = iota // no queue: a step more is sent, and again
	Drain              // a queue stands: less is sent until it is gone
	Hold               // the queue stands whatever is sent: a share of the bottleneck is held
)

// String is for logs and tests.
func (s State) String() string { return [...]string{"probe", "drain", "hold"}[s] }

const (
	packet = 1514.0 // RFC 894's frame

	startWindow = 16 * packet       // RFC 6928's ten packets, a bit more
	startRate   = startWindow / 0.1 // at BBR's guess of a round trip
	leastRate   = 4 * packet        // RFC 9002 7.2's least window takes a second
	mostRate    = 12.5e9            // 100 Gbit/s

	grows = 1.1 // times the rate that was known: more than noise

	clockNoise = 0.004 // seconds that acknowledging and scheduling add to a delay
)

// Control is one path's, in one direction. It is not safe for concurrent use.
type Control struct {
	state State
	path  path
	line  line
	drain drain
	hold  hold

	rate  float64 // the bottleneck's, as far as it is this path's
	step  float64 // how much more Probe sends, as a share
	mark  uint64  // first packet sent with this step
	since float64 // when it arrived; 0: not yet
	grown float64 // own clock, when the rate was raised by much
	full  bool    // a queue or losses have answered once: before that the rate is doubled
	acked float64 // bytes, by which a slow start's window grows
}

// New is for a path of which nothing is known.
func New() *Control { return &Control{path: newPath(), rate: startRate, step: 1} }

// Acked takes an acknowledgement. One whose times or bytes run backwards is a peer's mistake or a clock that was set: what was
// learned of delays is forgotten.
func (c *Control) Acked(a Ack) {
	// That a small packet takes less time on the line does not make the queue shorter: at 2 Mbit/s 6 ms.
	less := (packet - a.Size) / max(c.rate, c.line.rate())
	first := c.path.srtt == 0
	if !c.path.ack(a, max(less, 0), c.state == Hold) {
		return
	}
	p := &c.path
	if first && a.RTT > 0 && a.RTT < startInterval && !c.full { // else doubling takes no longer than the round trips
		c.rate = max(c.rate, startWindow/max(a.RTT, 0.002))
	}
	c.acked += a.Acked
	p.judge(a.Arrived, c.target())
	c.full = c.full || p.stands != 0
	if rate, lossy := p.countLoss(a, c.state == Probe); lossy {
		c.full, c.rate = true, min(c.rate, rate)
		c.startStep(a, c.firstStep())
	}
	ended := c.line.ack(a, p, c.standing(), c.state == Hold)
	switch c.state {
	case Probe:
		c.probe(a)
	case Drain:
		c.draining(a)
	case Hold:
		if ended {
			c.holding(a)
		}
	}
	if ended {
		c.line.restart()
	}
	c.rate = min(max(c.rate, leastRate), mostRate)
}

// target is the queue that does not count: noise and a packet.
func (c *Control) target() float64 { return clockNoise + 1.2*packet/c.rate }

// firstStep adds a few packets a round trip. A constant number would make shares even sooner, and take half a minute for a fast
// bottleneck that has doubled; a constant share would never make them even.
func (c *Control) firstStep() float64 {
	holds := c.rate * c.path.minRTT / packet
	return min(max(1, 0.5*math.Sqrt(holds))/holds, 0.25)
}

// startStep begins to probe with a step.
func (c *Control) startStep(a Ack, step float64) {
	c.step, c.mark, c.since = step, a.Next, 0
}

// probe sends more as long as no queue answers.
func (c *Control) probe(a Ack) {
	p := &c.path
	if p.stands != 0 {
		c.mark, c.since = a.Next, 0
		if c.measure(a) {
			c.startDrain(a)
		}
		return
	}
	if a.Number < c.mark {
		return
	}
	if c.since == 0 {
		c.since = a.Arrived
		return
	}
	least := leastInterval
	if !c.full { // how much more than double it is does not matter
		least = startInterval
	}
	if a.Arrived-c.since < max(min(c.target()/c.step, p.minRTT), least/2) { // a queue could not be seen yet
		return
	}
	rate, ok := p.rateSince(c.since, least)
	if !ok && (a.Waited || !c.full) {
		return
	}
	if !a.Waited && !c.full { // as much was sent, too: it did not wait anywhere and come in a bunch
		rate = min(rate, p.sentSince(c.since))
	}
	if ok && (a.Waited || !c.full) && rate > c.rate {
		rate = min(rate, c.rate*(1+c.step))
		if rate > grows*c.rate {
			c.grown = a.Now
		}
		c.rate = rate
		c.step = min(2*c.step, 1)
	}
	c.mark, c.since = a.Next, 0
}

// measure takes what arrives while a queue stands as the bottleneck's rate.
func (c *Control) measure(a Ack) bool {
	if c.path.stands == 0 {
		return false
	}
	rate, ok := c.path.rateSince(max(c.path.stands, a.Arrived-0.2), leastInterval)
	if ok {
		c.rate = rate
		c.step = c.firstStep()
	}
	return ok
}

// bdp is what the path holds without a queue, and what waits for an acknowledgement.
func (c *Control) bdp() float64 {
	return c.rate*(c.path.minRTT+0.002+c.path.gap/2)*(1+c.path.loss) + packet
}

// Rate is how fast to send now.
func (c *Control) Rate(inFlight float64) float64 {
	switch c.state {
	case Drain:
		return c.rate * c.drain.pace(inFlight > c.bdp())
	case Hold:
		return c.rate * pulses[c.hold.pulse%len(pulses)]
	}
	return c.rate * (1 + c.step)
}

// Window is how much may be in flight.
func (c *Control) Window() float64 {
	p := &c.path
	step := c.step
	switch c.state {
	case Drain:
		step = 0
	case Hold: // the rate is held whatever the queue
		return (c.rate*(1.5*p.srtt+0.02) + 8*packet) * (1 + p.loss)
	}
	window := max(c.rate*(p.minRTT*(1+step)+c.target()+0.010+p.gap)*(1+p.loss)+2*packet, 4*packet)
	if c.SlowStart() {
		window = min(window, startWindow+c.acked)
	}
	return window
}

// SlowStart reports whether the window is that of a slow start, and the rate a guess from the round trip: nothing may leave past the window.
func (c *Control) SlowStart() bool { return !c.full && c.path.minRTT < startInterval }

// Full reports whether a queue or losses have shown what the path carries.
func (c *Control) Full() bool { return c.full }

// Grows reports whether the rate was raised by much in the last round trips: what waits does so because it is not known yet.
func (c *Control) Grows() bool {
	return c.state == Probe && c.path.now-c.grown < 2.5*c.path.minRTT+0.05
}

// State is what is being done.
func (c *Control) State() State { return c.state }

// Queue is the time that packets wait at the bottleneck, as the last acknowledgement shows it.
func (c *Control) Queue() float64 { return c.path.queue }

// BDP is what the path holds without a queue, bytes.
func (c *Control) BDP() float64 { return c.bdp() }

// MinRTT is the round trip without own queue, seconds.
func (c *Control) MinRTT() float64 { return c.path.minRTT }

// Loss is the share of packets that the path loses without a queue.
func (c *Control) Loss() float64 { return c.path.loss }

// SRTT is the smoothed round trip, with all queues.
func (c *Control) SRTT() float64 { return max(c.path.minRTT, c.path.srtt) }
