package socket

import (
	"testing"
	"time"
)

// line is a path of a rate and a round trip with a router's queue, and a sender that keeps window bytes on it, at its
// pacing rate at most.
type line struct {
	rate, window, limit float64 // bytes per second, bytes
	foreign             float64 // bytes of others that always wait in the router
	trip                time.Duration
	queue, done         float64 // bytes
}

const testSegment = 1000

// step lets d pass, and returns what the kernel says.
func (l *line) step(d time.Duration, s sight) sight {
	fits := l.rate * l.trip.Seconds()
	in := l.limit * d.Seconds()
	l.queue = max(0, min(l.queue+in-l.rate*d.Seconds(), l.window-fits))
	l.done += min(l.rate, max(in/d.Seconds(), l.queue/d.Seconds())) * d.Seconds()
	s.rtt = l.trip + time.Duration((l.queue+l.foreign)/l.rate*float64(time.Second))
	s.delivered, s.segment = uint32(l.done/testSegment), testSegment
	return s
}

// run drives a brake for a time, and returns how long the rate was held, and the longest round trip in the last second.
func (l *line) run(b *brake, s sight, now *time.Time, d time.Duration) (held, longest time.Duration) {
	free := l.limit
	for end := now.Add(d); now.Before(end); *now = now.Add(tuneEvery) {
		s = l.step(tuneEvery, s)
		switch o := b.decide(s, l.trip, max(standingTime, l.trip/4), s.rate, *now); {
		case o == unpaced:
			l.limit = free
		case o != 0:
			l.limit = float64(o)
		}
		if l.limit != free {
			held += tuneEvery
		}
		if end.Sub(*now) < time.Second {
			longest = max(longest, s.rtt)
		}
	}
	return held, longest
}

// A queue that a rate known wrong keeps standing is drained; the rate is held until BBR has forgotten it.
func TestStandingQueueIsDrained(t *testing.T) {
	for _, trip := range []time.Duration{10 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond} {
		now := time.Unix(1000, 0)
		l := line{rate: 250_000, limit: 400_000, trip: trip, window: 250_000 * (trip + 200*time.Millisecond).Seconds()}
		var b brake
		l.run(&b, sight{rate: 400_000}, &now, time.Second+measureTrips*trip)
		if b.on.IsZero() || b.rate < 230_000 || b.rate > 260_000 {
			t.Fatalf("%v: the rate is %d, want about 250000; held: %v", trip, b.rate, !b.on.IsZero())
		}
		if _, longest := l.run(&b, sight{rate: 250_000}, &now, 3*time.Second); longest > trip+crowdTime {
			t.Errorf("%v: the round trip is %v after the queue was drained", trip, longest)
		}
	}
}

// A start that knows far too high a rate, as of a line that has become slower while only acknowledgements went, is held at
// the rate that arrives, and is not taken for lost afterwards.
func TestStartWithAStaleRate(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pacer{least: testRTT}
	l := line{rate: 250_000, limit: 1e6, trip: testRTT, window: 140_000}
	s := sight{rate: 1_200_000, starting: true, underWay: 140_000}
	for end := now.Add(5 * time.Second); now.Before(end); now = now.Add(tuneEvery) {
		s = l.step(tuneEvery, s)
		o := p.decide(s, now)
		if o.restart {
			t.Fatalf("restarted, with a limit of %d", o.limit)
		}
		switch o.limit {
		case 0:
		case unpaced:
			l.limit = float64(s.rate)
		default:
			l.limit = float64(o.limit)
		}
		if s.unsent = l.limit < l.rate; s.unsent { // it learns
			s.starting, s.rate = false, 250_000
			l.window = 2 * l.rate * testRTT.Seconds()
		}
	}
	if s.rate != 250_000 || s.rtt > testRTT+crowdTime {
		t.Errorf("rate %d, round trip %v", s.rate, s.rtt)
	}
}

// The queue of others stays, so the rate is held seldom.
func TestForeignQueueIsLeft(t *testing.T) {
	now := time.Unix(1000, 0)
	l := line{rate: 250_000, limit: 240_000, trip: 50 * time.Millisecond, window: 1e6, foreign: 100_000}
	var b brake
	if held, _ := l.run(&b, sight{rate: 250_000}, &now, 5*time.Minute); held > 20*time.Second || held == 0 {
		t.Errorf("held for %v of five minutes", held)
	}
}

// An idle connection's answers come late, since few segments are acknowledged late. The flow that begins then is not held
// at the rate of its first round trips.
func TestLateAnswersAreNoQueue(t *testing.T) {
	var b brake
	now := time.Unix(1000, 0)
	s := sight{rate: 2.5e6, segment: testSegment}
	for i := range 300 { // 3 s, a segment every 50 ms, then two every 10 ms, which bring the mean down
		now = now.Add(tuneEvery)
		if s.rtt = 3 * testRTT; i < 100 {
			s.delivered = uint32(i / 5)
		} else if s.delivered += 2; s.delivered >= 20+measureSegments/2 {
			s.rtt = testRTT
		}
		if o := b.decide(s, testRTT, standingTime, s.rate, now); o != 0 {
			t.Fatalf("after %d segments: limit %d", s.delivered, o)
		}
	}
}

// BBR's own search, a queue of a moment, a line that stopped, a fast line and slow processors hold nothing.
func TestShortQueueIsLeft(t *testing.T) {
	var b brake
	now := time.Unix(1000, 0)
	see := func(d, queue time.Duration, delivered uint32) {
		for end := now.Add(d); now.Before(end); now = now.Add(tuneEvery) {
			s := sight{rate: 250_000, rtt: testRTT + queue, delivered: delivered, segment: testSegment}
			if o := b.decide(s, testRTT, standingTime, s.rate, now); o != 0 {
				t.Fatalf("a queue of %v: limit %d", queue, o)
			}
		}
	}
	see(time.Second, testRTT/4, 100)
	see(100*time.Millisecond, testRTT, 200)
	see(time.Second, 0, 300)
	see(100*time.Millisecond, testRTT, 400)
	now = now.Add(5 * time.Second)
	see(100*time.Millisecond, testRTT, 401)
	now = now.Add(5 * time.Second)
	fast := line{rate: 2 * thinRate, limit: 3 * thinRate, trip: testRTT, window: 1e6}
	if held, _ := fast.run(&b, sight{rate: 3 * thinRate}, &now, 10*time.Second); held != 0 {
		t.Errorf("held for %v on a fast path", held)
	}
	near := line{rate: 100e6, limit: 110e6, trip: swiftRTT / 2, window: 10e6}
	if held, _ := near.run(&b, sight{rate: 110e6}, &now, 10*time.Second); held != 0 {
		t.Errorf("held for %v where processors are slow", held)
	}
}
