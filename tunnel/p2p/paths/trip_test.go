package paths

import (
	"testing"
	"time"
)

// What a round trip is above the shortest one is a queue, until it has been longer for two windows: then the path is.
func TestQueueOnTheWay(t *testing.T) {
	const short, long = 20 * time.Millisecond, 50 * time.Millisecond
	var p trip
	if q := p.queue(); q != 0 {
		t.Errorf("not measured: %v", q)
	}
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		name        string
		rtt         time.Duration
		times       int
		every       time.Duration
		rttAt, want time.Duration
	}{
		{"the first", short, 1, time.Second, short, 0},
		{"a queue", long, 40, time.Second, long, long - short},
		{"it has drained", short, 40, time.Second, short, 0},
		{"a longer path", long, 121, time.Second, long, 0},
		{"a shorter one", short, 40, time.Second, short, 0},
		{"idle for long, then another path", long, 40, 10 * time.Second, long, 0},
	} {
		for range step.times {
			at = at.Add(step.every)
			p.add(step.rtt, at)
		}
		const near = time.Millisecond
		if got := p.queue(); (got-step.want).Abs() > near || (p.smoothed-step.rttAt).Abs() > near {
			t.Errorf("%s: round trip %v, queue %v, want %v, %v", step.name, p.smoothed, got, step.rttAt, step.want)
		}
	}
}
