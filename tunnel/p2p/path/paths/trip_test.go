package paths

import (
	"testing"
	"time"
)

// What a round trip is above the shortest one is a queue, until it has been longer for two windows: then the route is.
func TestQueueOnThePath(t *testing.T) {
	const short, long = 20 * time.Millisecond, 50 * time.Millisecond
	var p trip
	if q := p.queue(); q != 0 {
		t.Errorf("not measured: %v", q)
	}
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		name  string
		rtt   time.Duration
		times int
		every time.Duration
		want  time.Duration
	}{
		{"the first", short, 1, time.Second, 0},
		{"a queue", long, 40, time.Second, long - short},
		{"it has drained", short, 1, time.Second, 0},
		{"a longer route", long, 2*300 + 1, time.Second, 0},
		{"a shorter one", short, 40, time.Second, 0},
		{"idle for long, then a longer route", long, 40, 3 * leastWindow, 0},
	} {
		for range step.times {
			at = at.Add(step.every)
			p.add(step.rtt, at)
		}
		if got := p.queue(); (got - step.want).Abs() > time.Millisecond {
			t.Errorf("%s: queue %v, want %v (round trip %v)", step.name, got, step.want, p.smoothed)
		}
	}
}
