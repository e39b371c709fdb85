package control

import "math"

const (
	baseWindow    = 30.0  // seconds a least delay is believed: two of BBR's ten seconds, and one more, as routes change seldom
	leastInterval = 0.030 // a delivery rate is measured over so long, or many packets: a timer's or a radio's bunches are shorter
	startInterval = 0.008 // and while the rate is doubled: two acknowledgements
	manyPackets   = 32
	fewPackets    = 8
	mostArrivals  = 4096 // that are kept, whatever the peer's clock says: three seconds of 1 Gbit/s
	absurd        = 1e15 // bytes and seconds
	longestRTT    = 60.0 // RFC 6298 2.5 lets nobody wait longer
	mostLost      = 0.5  // a usual share of more than half is an outage
)

type arrival struct{ at, got, delay float64 }

// window is a minimum over the last one or two halves of a window.
type window struct{ now, before, since float64 }

func (w *window) add(at, v, half float64) {
	if at-w.since > half {
		w.before, w.now, w.since = w.now, v, at
	}
	w.now = min(w.now, v)
}

func (w *window) least() float64 { return min(w.now, w.before) }

func newWindow() window { return window{now: math.Inf(1), before: math.Inf(1)} }

// path is what acknowledgements say of a path.
type path struct {
	queue   float64 // one-way delay above the least
	stands  float64 // arrival time since which a queue stands; 0: none does
	stood   float64 // own clock, when one was seen last
	lowered float64 // arrival time when the least delay fell
	minRTT  float64 // without own queue
	srtt    float64
	gap     float64 // between acknowledgements
	loss    float64 // usual share, without a queue

	base, rtts window
	arrivals   []arrival
	now        float64

	// The round in which losses are counted.
	sent, lost float64
	rounds     float64
	mark       uint64
}

func newPath() path { return path{base: newWindow(), rtts: newWindow(), minRTT: 0.1} }

// ack takes an acknowledgement, unless it makes no sense. A full packet's delay and round trip are so much longer.
func (p *path) ack(a Ack, longer float64, hold bool) bool {
	delay := a.Arrived - a.Sent + longer
	if bytes := a.Got + a.Acked + a.Lost; !(math.Abs(delay) < absurd && bytes >= 0 && bytes < absurd && a.RTT >= 0 && a.RTT < longestRTT) ||
		min(a.Got, a.Acked, a.Lost) < 0 || a.Now < p.now {
		return false
	}
	if last := len(p.arrivals) - 1; last >= 0 && (a.Arrived < p.arrivals[last].at || a.Got < p.arrivals[last].got) {
		p.forget()
	}
	if hold { // the queue may not have been empty since
		p.base.since = a.Arrived
	}
	if a.RTT > 0 {
		a.RTT += longer
	}
	if a.RTT > 0 && delay-p.base.least() > a.RTT { // longer in one direction than in both: the peer's clock was set
		p.forget()
	}
	if p.now > 0 {
		p.gap += (min(a.Now-p.now, 0.05) - p.gap) / 16
	}
	p.now = a.Now
	if delay < p.base.least()-0.0005 {
		p.lowered = a.Arrived
	}
	p.base.add(a.Arrived, delay, baseWindow/2)
	if a.RTT > 0 {
		if p.srtt == 0 {
			p.srtt = a.RTT
		}
		p.srtt += (a.RTT - p.srtt) / 16
		p.rtts.add(a.Now, max(a.RTT-(delay-p.base.least()), 0.0005), max(0.1, p.minRTT/2))
		p.minRTT = p.rtts.least()
	}
	p.arrivals = append(p.arrivals, arrival{a.Arrived, a.Got, delay})
	for len(p.arrivals) > 2 && (p.arrivals[1].at < a.Arrived-max(1, 2*p.minRTT) || len(p.arrivals) > mostArrivals) {
		p.arrivals = p.arrivals[1:]
	}
	p.queue = p.recent() - p.base.least()
	return true
}

// forget is for a peer's clock that was set.
func (p *path) forget() { p.arrivals, p.base, p.stands, p.queue = nil, newWindow(), 0, 0 }

// recent is the least delay of the last two acknowledgements, or three in 10 ms.
func (p *path) recent() float64 {
	n := len(p.arrivals)
	low := p.arrivals[n-1].delay
	if n > 1 {
		low = min(low, p.arrivals[n-2].delay)
	}
	if n > 2 && p.arrivals[n-3].at >= p.arrivals[n-1].at-0.010 {
		low = min(low, p.arrivals[n-3].delay)
	}
	return low
}

// judge says whether a queue stands.
func (p *path) judge(arrived, target float64) {
	if p.queue <= target {
		p.stands = 0
		return
	}
	p.stood = p.now
	if p.stands == 0 {
		p.stands = arrived
	}
}

// rateSince is the delivery rate since an arrival time; false if that is less than least seconds ago, or too few packets, to say.
func (p *path) rateSince(since, least float64) (float64, bool) {
	i, last := p.at(since), p.arrivals[len(p.arrivals)-1]
	took, bytes := last.at-p.arrivals[i].at, last.got-p.arrivals[i].got
	if took < least && bytes < manyPackets*packet || bytes < fewPackets*packet || took <= 0.002 {
		return 0, false
	}
	return bytes / took / (1 - p.loss), true
}

// sentSince is the rate at which was sent what has arrived since an arrival time.
func (p *path) sentSince(since float64) float64 {
	i, last := p.at(since), p.arrivals[len(p.arrivals)-1]
	first := p.arrivals[i]
	return (last.got - first.got) / max(last.at-last.delay-(first.at-first.delay), 0.001)
}

// at is the first arrival that is not before a time, or the last one.
func (p *path) at(since float64) (i int) {
	for i < len(p.arrivals)-1 && p.arrivals[i].at < since {
		i++
	}
	return i
}

// countLoss learns the usual loss; where much more is lost without a queue, the queue is too short to be seen, as a policer's, and
// what arrives is the bottleneck's rate.
func (p *path) countLoss(a Ack, probing bool) (rate float64, tooMuch bool) {
	p.sent += a.Acked + a.Lost
	p.lost += a.Lost
	if a.Number < p.mark || p.sent < 20*packet {
		return 0, false
	}
	share := p.lost / p.sent
	p.sent, p.lost, p.mark = 0, 0, a.Next
	if !probing || p.stands != 0 || a.Now-p.stood < 2*p.minRTT+0.05 {
		return 0, false
	}
	if share > p.loss+0.15 {
		rate, tooMuch = p.rateSince(a.Arrived-max(p.minRTT, leastInterval), leastInterval)
	}
	p.rounds++
	p.loss = min(p.loss+(min(share, p.loss+0.05)-p.loss)/min(p.rounds, 8), mostLost)
	return rate, tooMuch
}
