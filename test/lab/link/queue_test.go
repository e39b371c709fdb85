package link

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// out is a frame that came out of a Queue.
type out struct {
	at time.Duration
	id byte
}

// push puts in a frame of size bytes that begins with id.
func push(q *Queue, at time.Duration, id byte, size int) {
	b := q.Buffer()[:size]
	b[0] = id
	q.Push(at, b)
}

// drain lets the clock jump from event to event until nothing is left inside.
func drain(t *testing.T, q *Queue) (all []out) {
	t.Helper()
	for {
		now, any := q.Next()
		if !any {
			return all
		}
		for {
			b, at := q.Pop(now)
			if b == nil {
				break
			}
			if at != now {
				t.Errorf("frame %d was due at %s and came at %s", b[0], at, now)
			}
			all = append(all, out{now, b[0]})
			q.Free(b)
		}
	}
}

func equal(t *testing.T, got, want []out) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("frame %d of %d: number %d at %s, want number %d at %s",
				i, len(want), got[i].id, got[i].at, want[i].id, want[i].at)
		}
	}
}

func TestWire(t *testing.T) {
	q := NewQueue(Direction{}, 1, 2000)
	push(q, 5, 1, 1000)
	push(q, 5, 2, 60)
	push(q, 9, 3, 60)
	equal(t, drain(t, q), []out{{5, 1}, {5, 2}, {9, 3}})
}

func TestRateAndDelay(t *testing.T) {
	// 1000 bytes take 1 ms on the line.
	q := NewQueue(Direction{Rate: 8e6, Delay: 25 * ms}, 1, 2000)
	push(q, 0, 1, 1000)
	push(q, 0, 2, 500)
	push(q, 10*ms, 3, 1000) // the line was idle meanwhile: no credit
	push(q, 10*ms, 4, 1000)
	equal(t, drain(t, q), []out{{26 * ms, 1}, {26*ms + ms/2, 2}, {36 * ms, 3}, {37 * ms, 4}})
}

func TestBurst(t *testing.T) {
	q := NewQueue(Direction{Rate: 8e6, Burst: 2000}, 1, 2000)
	for id := range byte(4) { // two of them together, however long it was idle
		push(q, 100*ms, id, 1000)
	}
	equal(t, drain(t, q), []out{{100 * ms, 0}, {100 * ms, 1}, {101 * ms, 2}, {102 * ms, 3}})
}

// TestLateCaller holds that the rate does not suffer from a caller that is not
// scheduled for a while.
func TestLateCaller(t *testing.T) {
	q := NewQueue(Direction{Rate: 8e6, QueueTime: 50 * ms}, 1, 2000)
	var now time.Duration
	got := 0
	for now < time.Second {
		for range 60 {
			push(q, now, 0, 1000)
		}
		now += 20 * ms // and then 20 ms of sleep
		for {
			b, _ := q.Pop(now)
			if b == nil {
				break
			}
			got++
			q.Free(b)
		}
	}
	if got != 1000 {
		t.Errorf("%d frames of 1 ms in a second", got)
	}
}

func TestTailDrop(t *testing.T) {
	for name, d := range map[string]Direction{
		"bytes": {Rate: 8e6, Queue: 3000},
		"time":  {Rate: 8e6, QueueTime: 3 * ms},
		"both":  {Rate: 8e6, QueueTime: time.Hour, Queue: 3000},
	} {
		t.Run(name, func(t *testing.T) {
			q := NewQueue(d, 1, 2000)
			for id := range byte(5) {
				push(q, 0, id, 1000)
			}
			if c := q.Counters(); c.Tail != 2 || c.Queued != 3000 || c.QueuedMax != 3000 {
				t.Errorf("%+v", c)
			}
			push(q, ms, 9, 1000) // one has left
			equal(t, drain(t, q), []out{{ms, 0}, {2 * ms, 1}, {3 * ms, 2}, {4 * ms, 9}})
			c := q.Counters()
			if c.In != 6 || c.InBytes != 6000 || c.Out != 4 || c.OutBytes != 4000 || c.Tail != 2 || c.Queued != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestShortQueueIsNoHole(t *testing.T) {
	q := NewQueue(Direction{Rate: 8e6, Queue: 10}, 1, 2000)
	push(q, 0, 1, 1000)
	push(q, 0, 2, 1000)
	push(q, ms, 3, 1000)
	equal(t, drain(t, q), []out{{ms, 1}, {2 * ms, 3}})
}

func TestHole(t *testing.T) {
	q := NewQueue(Direction{Hole: 1280}, 1, 2000)
	push(q, 0, 1, 1280+etherHeader)
	push(q, 0, 2, 1281+etherHeader)
	equal(t, drain(t, q), []out{{0, 1}})
	if c := q.Counters(); c.Hole != 1 {
		t.Errorf("%+v", c)
	}
}

// lossPattern returns which of n frames come out.
func lossPattern(t *testing.T, d Direction, seed uint64, n int) (came []byte) {
	t.Helper()
	q := NewQueue(d, seed, 2000)
	for i := range n {
		push(q, time.Duration(i)*10*ms, byte(i), 100)
		for _, o := range drain(t, q) {
			came = append(came, o.id)
		}
	}
	if c := q.Counters(); int(c.Loss)+len(came) != n {
		t.Errorf("%d came of %d: %+v", len(came), n, c)
	}
	return came
}

func TestLossIsSeededAndOfTheRightShare(t *testing.T) {
	const n, p = 20000, 0.03
	first := lossPattern(t, Direction{Loss: p}, 5, n)
	lost := float64(n - len(first))
	if math.Abs(lost-n*p) > 5*math.Sqrt(n*p*(1-p)) {
		t.Errorf("%g of %d lost at 3 %%", lost, n)
	}
	// Neither delay nor jitter nor rate change which ones.
	again := lossPattern(t, Direction{Loss: p, Rate: 1e9, Delay: 3 * ms, Jitter: ms}, 5, n)
	if string(first) != string(again) {
		t.Error("equal seeds lose different frames")
	}
	if string(first) == string(lossPattern(t, Direction{Loss: p}, 6, n)) {
		t.Error("different seeds lose the same frames")
	}
	if got := lossPattern(t, Direction{Loss: 1}, 5, 10); len(got) != 0 {
		t.Errorf("%v came through a dead link", got)
	}
}

// TestLossTakesTheLine holds that lost frames used the line.
func TestLossTakesTheLine(t *testing.T) {
	q := NewQueue(Direction{Rate: 8e6, Loss: 1}, 1, 2000)
	push(q, 0, 1, 1000)
	q.Set(0, Direction{Rate: 8e6, Loss: 1})
	if b, _ := q.Pop(ms / 2); b != nil || q.Counters().Loss != 0 {
		t.Error("lost before it was through the line")
	}
	if b, _ := q.Pop(ms); b != nil || q.Counters().Loss != 1 {
		t.Error("not lost")
	}
}

func TestJitterKeepsTheOrder(t *testing.T) {
	const n = 200
	q := NewQueue(Direction{Delay: 10 * ms, Jitter: 5 * ms}, 3, 2000)
	sent := make([]time.Duration, n)
	for i := range n {
		sent[i] = time.Duration(i) * ms
		push(q, sent[i], byte(i), 100)
	}
	got := drain(t, q)
	least, most := time.Hour, time.Duration(0)
	for i, o := range got {
		if o.id != byte(i) {
			t.Fatalf("number %d at place %d", o.id, i)
		}
		least, most = min(least, o.at-sent[i]), max(most, o.at-sent[i])
	}
	if len(got) != n || least < 10*ms || most > 15*ms || most-least < 3*ms {
		t.Errorf("%d frames delayed by %s to %s", len(got), least, most)
	}
}

func TestDuplicate(t *testing.T) {
	q := NewQueue(Direction{Duplicate: 1, Delay: ms}, 1, 2000)
	push(q, 0, 1, 1000)
	push(q, 5*ms, 2, 60)
	equal(t, drain(t, q), []out{{ms, 1}, {ms, 1}, {6 * ms, 2}, {6 * ms, 2}})
	if c := q.Counters(); c.Doubled != 2 || c.In != 2 || c.Out != 4 {
		t.Errorf("counted %+v", c)
	}
}

func TestReorder(t *testing.T) {
	const n = 10000
	d := Direction{Delay: 10 * ms, Reorder: 0.1}
	q := NewQueue(d, 3, 2000)
	for i := range n {
		push(q, time.Duration(i)*ms, byte(i), 100)
	}
	// Late ones come 5 ms later, behind their next four or five.
	overtaken := 0
	var newest time.Duration
	for i, o := range drain(t, q) {
		sent := o.at - 10*ms
		if o.id != byte(sent/ms) {
			sent -= DefaultReorderBy
			if o.id != byte(sent/ms) {
				t.Fatalf("place %d: number %d at %s", i, o.id, o.at)
			}
		}
		if sent < newest {
			overtaken++
		}
		newest = max(newest, sent)
	}
	c := q.Counters()
	if dev := math.Abs(float64(c.Reordered) - n*0.1); dev > 5*math.Sqrt(n*0.1*0.9) {
		t.Errorf("%d of %d late at 10 %%", c.Reordered, n)
	}
	if overtaken < int(c.Reordered)*9/10 {
		t.Errorf("%d late, only %d overtaken", c.Reordered, overtaken)
	}
}

func TestChange(t *testing.T) {
	q := NewQueue(Direction{Rate: 8e3, Delay: 10 * ms}, 1, 2000) // a byte each ms
	push(q, 0, 1, 1000)
	push(q, 0, 2, 1000)
	q.Set(ms, Direction{Rate: 8e6, Delay: 10 * ms})
	equal(t, drain(t, q), []out{{12 * ms, 1}, {13 * ms, 2}})

	push(q, 20*ms, 3, 1000) // in the air when the delay shrinks
	q.Set(22*ms, Direction{})
	push(q, 22*ms, 4, 1000)
	equal(t, drain(t, q), []out{{31 * ms, 3}, {31 * ms, 4}})
	if q.Direction() != (Direction{}) {
		t.Error(q.Direction())
	}
}

func TestNoAllocations(t *testing.T) {
	q := NewQueue(Direction{Rate: 1e9, Delay: ms, Jitter: ms, QueueTime: ms, Loss: 0.01, Reorder: 0.01}, 1, 2000)
	var now time.Duration
	step := func() {
		for range 100 {
			now += 10 * time.Microsecond
			q.Push(now, q.Buffer()[:1514])
			for b, _ := q.Pop(now); b != nil; b, _ = q.Pop(now) {
				q.Free(b)
			}
		}
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%g allocations for 100 frames", n)
	}
}

func BenchmarkQueue(b *testing.B) {
	q := NewQueue(Direction{Rate: 1e9, Delay: 25 * ms, QueueTime: 50 * ms, Loss: 0.01}, 1, 2000)
	var now time.Duration
	b.ReportAllocs()
	b.SetBytes(1514)
	for b.Loop() {
		now += 12 * time.Microsecond
		q.Push(now, q.Buffer()[:1514])
		for f, _ := q.Pop(now); f != nil; f, _ = q.Pop(now) {
			q.Free(f)
		}
	}
}
