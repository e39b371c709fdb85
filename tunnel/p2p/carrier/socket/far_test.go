package socket

import (
	"testing"
	"time"
)

// Where the peer sends as well, acknowledgements wait in its queue, which comes and goes, and is long where its line is the
// slower one.
func TestPeersQueue(t *testing.T) {
	for name, c := range map[string]struct {
		peer float64
		late time.Duration
	}{"as fast": {30 * mbit, 40 * time.Millisecond}, "slower": {4 * mbit, 90 * time.Millisecond}} {
		l, s := dsl(), newSender(&pacer{})
		s.peer = c.peer
		s.late = func(at time.Duration) time.Duration { return at % c.late }
		if rate := l.goodput(s, 5*seconds, 35*seconds); rate < 27 {
			t.Errorf("%s: %.1f of 30 Mbit/s", name, rate)
		}
	}
}

// A peer that has sent as well, and stops, leaves a line behind that is known.
func TestPeerStops(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	s.peer, s.peerUntil = 10*mbit, 20*seconds
	if rate := l.goodput(s, 25*seconds, 35*seconds); rate < 28 || s.pacer.limit == unpaced {
		t.Errorf("%.1f of 30 Mbit/s, limit %d", rate, s.pacer.limit)
	}
}

// A queue that may be the peer's does not grow, and drains, if it is the flow's own.
func TestDoubtfulQueue(t *testing.T) {
	for name, peer := range map[string]float64{"as fast": 20 * mbit, "slower": 2 * mbit} {
		l := &line{rate: steady(20 * mbit), trip: 50 * time.Millisecond, buffer: 20 * mbit * 0.2}
		s := newSender(&pacer{})
		s.peer = peer
		rate := l.goodput(s, 3*seconds, 13*seconds)
		if queue := l.wait(3*seconds, 0.5); queue > 20*time.Millisecond || rate < 19 {
			t.Errorf("%s: the queue is %v, at %.1f of 20 Mbit/s", name, queue, rate)
		}
	}
}

// A peer begins to send, and its queue grows, while a flow begins as well: acknowledgements wait there, but the line is the
// one that was known a moment ago.
func TestPeerBegins(t *testing.T) {
	for _, slower := range []time.Duration{0, 200 * time.Millisecond} {
		const begins = 6 * seconds
		l := &line{rate: steady(20 * mbit), trip: 50 * time.Millisecond, buffer: 20 * mbit * 0.2}
		s := newSender(&pacer{})
		s.stopped = func(at time.Duration) bool { return at > begins-seconds && at < begins }
		l.run(begins, s)
		s.peer, s.peerFrom = 2*mbit, begins+slower
		s.late = func(at time.Duration) time.Duration {
			since := at - s.peerFrom
			return max(0, min(since/2, 200*time.Millisecond, (seconds-since)/2))
		}
		for at := begins; at < begins+seconds; at += 100 * time.Millisecond {
			s.wants = min(2*mbit*float64(1+(at-begins)/(100*time.Millisecond)), 30*mbit)
			l.run(at, s)
			if at < s.peerFrom+seconds/2 && s.pacer.line < 10*mbit {
				t.Fatalf("slower by %v: after %v the line is %.1f of 20 Mbit/s", slower, at-begins, float64(s.pacer.line)/mbit)
			}
		}
		if rate := l.goodput(s, begins+seconds, begins+3*seconds); rate < 18 {
			t.Errorf("slower by %v: %.1f of 20 Mbit/s", slower, rate)
		}
	}
}

// A line that becomes slower while the peer sends, and less than half of it is used: its queue is believed to be the peer's
// for a moment only.
func TestSlowerBesidePeer(t *testing.T) {
	const falls = 6 * seconds
	l := &line{trip: 50 * time.Millisecond, buffer: 2 * mbit * 0.8}
	l.rate = func(at time.Duration) float64 {
		if at < falls {
			return 20 * mbit
		}
		return 2 * mbit
	}
	s := newSender(&pacer{})
	s.peer, s.peerUntil = 8*mbit, time.Hour
	l.run(falls-seconds, s)
	s.wants = 6 * mbit
	l.run(falls+20*seconds, s)
	if w := l.wait(falls+8*seconds, 0.5); w > 150*time.Millisecond {
		t.Errorf("a queue of %v stands", w)
	}
	if rate := l.goodput(s, falls+20*seconds, falls+30*seconds); rate < 1.5 {
		t.Errorf("%.1f of 2 Mbit/s", rate)
	}
}

// How long the peer's queue may be follows from how much goes in each direction.
func TestPeersQueueByRates(t *testing.T) {
	for name, c := range map[string]struct {
		sent, received, segments int // a second; bytes, bytes, segments that came
		want                     time.Duration
	}{
		"nothing comes":             {1e6, 0, 0, 0},
		"acknowledgements of flows": {1e6, 100e3, 1000, 0},
		"few for what goes":         {4e6, 100e3, 100, 0},
		"a little":                  {1e6, 30e3, 30, 0},
		"as much":                   {1e6, 1e6, 700, peersQueue},
		"more comes":                {200e3, 1e6, 700, fastPeersQueue},
		"more goes":                 {1e6, 200e3, 150, slowPeersQueue},
	} {
		now := time.Unix(1000, 0)
		var e farEnd
		s := sight{segment: testSegment}
		e.hear(s, now, hearEvery)
		s.received = traffic{uint64(c.received), uint32(c.segments)}
		s.arrived = traffic{uint64(c.sent), uint32(c.sent / testSegment)}
		e.hear(s, now.Add(time.Second), hearEvery)
		if e.queue != c.want {
			t.Errorf("%s: %v, want %v", name, e.queue, c.want)
		}
	}
}

// A peer that pauses for a moment still sends; one that has stopped does not.
func TestPeerPauses(t *testing.T) {
	now := time.Unix(1000, 0)
	e, s := farEnd{at: now}, sight{segment: testSegment}
	for _, c := range []struct {
		bytes uint64
		want  bool
	}{{100e3, true}, {0, true}, {100e3, true}, {0, true}, {0, false}} {
		now = now.Add(hearEvery)
		s.received.bytes += c.bytes
		s.received.segments += uint32(c.bytes / testSegment)
		if e.hear(s, now, hearEvery); e.queue > 0 != c.want {
			t.Errorf("%d bytes: %v", c.bytes, e.queue)
		}
	}
}
