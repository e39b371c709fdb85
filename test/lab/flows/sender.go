package flows

import (
	"math"

	"edgemesh/tunnel/p2p/carrier/control"
)

const packetBytes = 1514

// Controller decides how fast a sender sends; control.Control is one.
type Controller interface {
	Acked(control.Ack)
	Rate(inFlight float64) float64 // bytes a second
	Window() float64               // bytes
}

// Sender is one of those that share a line.
type Sender struct {
	Name     string
	From, To float64 // seconds; To 0: until the end
	// Rates is what arrived in each second, bit/s.
	Rates []float64

	c     Controller
	inner *inner                // the flow inside, if there is one
	app   func(float64) float64 // bytes a second that there are to send; nil: always enough
	bare  bool                  // acknowledges every second packet, as TCP does; else every 5 ms

	sent     []sent
	inFlight float64
	tokens   float64
	backlog  float64 // of app
	oldest   int     // first packet of which nothing is known
	progress float64 // time of the last acknowledgement

	newest           int // received
	unacked          int
	lastAck          float64
	arrived          float64 // time of newest
	bytes, newestGot float64 // arrived in all; when newest arrived
	highest          int     // acknowledged
	second           float64
}

type sent struct {
	at                     float64
	done, waited, received bool
}

// Own is a tunnel with a cubic flow inside.
func Own(from float64) *Sender {
	return &Sender{Name: "own", c: control.New(), From: from, inner: newInner()}
}

// Greedy is a tunnel that always has something to send.
func Greedy(from float64) *Sender { return With("greedy", from, control.New()) }

// With is a sender with a controller of one's own that always has something to send.
func With(name string, from float64, c Controller) *Sender {
	return &Sender{Name: name, c: c, From: from}
}

// App is a tunnel that has so many bytes a second to send.
func App(from float64, rate func(now float64) float64) *Sender {
	return &Sender{Name: "app", c: control.New(), From: from, app: rate}
}

// BBR is a flow of the kernel's BBR v1.
func BBR(from float64) *Sender {
	return &Sender{Name: "bbr", c: newBBR(uint32(from*7) + 3), From: from, bare: true}
}

// Cubic is a flow of the kernel's cubic.
func Cubic(from float64) *Sender {
	return &Sender{Name: "cubic", c: newCubic(), From: from, bare: true}
}

// send puts into the line what rate and window allow.
func (s *Sender) send(now, dt float64, put func(number uint64)) {
	rate := s.c.Rate(s.inFlight)
	most := max(packetBytes, rate*0.002) // a pacer's timer
	if s.bare {
		most = max(2*packetBytes, rate/1024) // sk_pacing_shift
	}
	s.tokens = min(s.tokens+rate*dt, most)
	if s.app != nil {
		s.backlog += s.app(now) * dt
	}
	window := s.c.Window()
	for s.tokens > 0 && s.inFlight+packetBytes <= window {
		waits := math.Inf(1)
		if s.inner != nil {
			waits = s.inner.waits(s.inFlight)
		} else if s.app != nil {
			waits = s.backlog
		}
		if waits < packetBytes {
			break
		}
		s.backlog -= packetBytes
		put(uint64(len(s.sent)))
		s.sent = append(s.sent, sent{at: now, waited: waits >= 2*packetBytes})
		s.inFlight += packetBytes
		s.tokens -= packetBytes
	}
}

// receive is the receiver's part.
func (s *Sender) receive(n int, at float64) {
	if s.sent[n].received {
		return
	}
	s.sent[n].received = true
	s.bytes += packetBytes
	s.second += packetBytes
	s.unacked++
	if n > s.newest {
		s.newest, s.arrived, s.newestGot = n, at, s.bytes
	}
}

// report is what an acknowledgement carries.
type report struct {
	sender       *Sender
	number       int
	arrived, got float64
	delay        float64 // from arrival to acknowledgement
}

// acknowledge returns an acknowledgement if one is due.
func (s *Sender) acknowledge(now float64) (report, bool) {
	wait := now - s.lastAck
	due := s.unacked >= 2 && wait >= 0.005 || s.unacked > 0 && wait >= 0.025
	if s.bare {
		due = s.unacked >= 2 || s.unacked > 0 && wait >= 0.04
	}
	if !due {
		return report{}, false
	}
	s.lastAck, s.unacked = now, 0
	return report{sender: s, number: s.newest, arrived: s.arrived, got: s.newestGot, delay: now - s.arrived}, true
}

// acked is the sender's part of an acknowledgement.
func (s *Sender) acked(now float64, r report) {
	n := r.number
	if n <= s.highest {
		return
	}
	s.highest, s.progress = n, now
	a := control.Ack{Now: now, Sent: s.sent[n].at, Arrived: r.arrived + 1000, Got: r.got, Size: packetBytes, Number: uint64(n), Next: uint64(len(s.sent)),
		RTT: now - s.sent[n].at - r.delay, Waited: s.sent[n].waited}
	reordering := max(a.RTT/8, 0.006) // RFC 9002 6.1.2
	for i := s.oldest; i <= n; i++ {
		x := &s.sent[i]
		switch {
		case x.done:
			continue
		case x.received:
			a.Acked += packetBytes
		case x.at < s.sent[n].at-reordering:
			a.Lost += packetBytes
		default:
			continue
		}
		x.done = true
		s.inFlight -= packetBytes
	}
	for s.oldest < len(s.sent) && s.sent[s.oldest].done {
		s.oldest++
	}
	a.InFlight = s.inFlight
	s.c.Acked(a)
	if s.inner != nil {
		s.inner.acked(a, s.inFlight, s.c)
	}
}

// timeout forgets what is in flight after 1.5 s without an acknowledgement.
func (s *Sender) timeout(now float64) {
	if now-s.progress > 1.5 && s.inFlight > 0 {
		for i := s.oldest; i < len(s.sent); i++ {
			s.sent[i].done = true
		}
		s.oldest, s.inFlight, s.progress = len(s.sent), 0, now
	}
}

// Mean is the mean rate from a second on, bit/s.
func (s *Sender) Mean(from int) (m float64) {
	for _, r := range s.Rates[from:] {
		m += r / float64(len(s.Rates)-from)
	}
	return m
}

// Controller is the sender's.
func (s *Sender) Controller() Controller { return s.c }
