package p2p

import (
	"testing"
	"time"
)

// play runs a path's life in steps of one tick: traffic says whether bytes
// move, delay is how long answers take (0: none ever come), heard whether something else
// comes in, carrier whether the kernel hears the next hop. It returns after how many ticks the path is dead, or -1.
func play(v *vigil, from time.Time, ticks int, traffic, heard, carrier bool, delay time.Duration) int {
	moved := v.moved
	var answers []time.Time
	for i := range ticks {
		now := from.Add(time.Duration(i) * probeTick)
		for len(answers) > 0 && !answers[0].After(now) {
			v.answer(answers[0], len(answers) == 1)
			answers = answers[1:]
		}
		if traffic {
			moved++
		}
		last, acked := time.Time{}, time.Time{}
		if heard {
			last = now
		}
		if carrier {
			acked = now
		}
		if _, dead := v.look(now, moved, last, acked); dead {
			return i
		}
		if v.due(now) && delay > 0 {
			answers = append(answers, now.Add(delay))
		}
	}
	return -1
}

func TestVigil(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name           string
		traffic, heard bool
		carrier        bool
		relayed        bool
		delay          time.Duration
		ticks          int
		min, max       int // ticks until dead; -1: it lives
	}{
		{"busy and answered", true, false, false, false, time.Millisecond, 100, -1, -1},
		{"busy and answered late", true, false, false, false, 1100 * time.Millisecond, 100, -1, -1},
		{"busy, answered very late, but heard", true, true, false, false, 10 * time.Second, 100, -1, -1},
		{"busy and silent", true, false, false, false, 0, 100, 2, 3},
		{"busy and silent, next hop heard", true, false, true, false, 0, 100, 10, 11},
		{"busy and silent, relay heard", true, false, true, true, 0, 100, 6, 7},
		{"busy and silent, relay silent", true, false, false, true, 0, 100, 2, 3},
		{"idle and answered", false, false, false, false, time.Second, 200, -1, -1},
		{"idle and silent", false, false, false, false, 0, 100, 3, 3}, // a new path counts as busy
	} {
		v := vigil{relayed: c.relayed, busy: start, heard: start}
		got := play(&v, start, c.ticks, c.traffic, c.heard, c.carrier, c.delay)
		if got < c.min || got > c.max {
			t.Errorf("%s: dead after %d ticks, want %d to %d", c.name, got, c.min, c.max)
		}
	}
	// Idle for a minute, then traffic: the first answer may take its time.
	v := vigil{busy: start, heard: start}
	if got := play(&v, start, 120, false, false, false, time.Millisecond); got != -1 {
		t.Fatalf("idle path dead after %d ticks", got)
	}
	if got := play(&v, start.Add(time.Minute), 100, true, false, false, time.Second); got != -1 {
		t.Errorf("path that woke up dead after %d ticks", got)
	}
	// Idle, dead, and a stream is being opened, which moves no byte: the same.
	v = vigil{busy: start, heard: start}
	play(&v, start, 60, false, false, false, time.Millisecond)
	woken := start.Add(60 * probeTick)
	if !v.wake(woken) {
		t.Error("a path asked long ago is not probed at once")
	}
	if got := play(&v, woken, 100, false, false, false, 0); got < 2 || got > 4 {
		t.Errorf("dead path is left %d ticks after a stream was opened, want 2 to 4", got)
	}
	if v.wake(v.asked.Add(probeTick / 2)) {
		t.Error("probed again before the next tick")
	}
	// Idle for long and dead: noticed soon after traffic begins.
	v = vigil{busy: start, heard: start}
	play(&v, start, 120, false, false, false, time.Millisecond)
	if got := play(&v, start.Add(time.Minute), 100, true, false, false, 0); got < 2 || got > 4 {
		t.Errorf("dead path is left after %d ticks of traffic, want 2 to 4", got)
	}
}
