package epoch

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a lane with both its ends and the carriers between them: packets are numbers, a carrier is a queue of them.
type world struct {
	*scene
	r        Receiver
	queue    []int // packets not yet taken by a carrier
	pushed   int
	taken    int // by carriers that were abandoned later: these may be lost
	idle     bool
	pipes    map[uint64]*pipe // by epoch
	order    []*pipe          // the oldest first
	opening  *pipe
	hurried  *pipe // of Hurry
	writing  *pipe // the sender is inside Write
	previous *pipe // the one in use

	got []int
}

// pipe is a carrier.
type pipe struct {
	c      Carrier
	frames []int // not yet read; mark is the last
	closed bool  // its end follows
	reset  bool

	begun, over bool // as the receiver has it
}

// mark is the frame that says that another carrier follows.
const mark = -1

// done says that nothing of p can still arrive.
func (p *pipe) done() bool { return p.over || p.reset && !p.begun }

func newWorld(t *testing.T) *world {
	return &world{scene: newScene(t), pipes: map[uint64]*pipe{}}
}

// step does one of the things that can happen; n chooses among variants.
func (w *world) step(what byte, n int) {
	w.now += time.Duration(n) * time.Millisecond
	switch what % 11 {
	case 0, 1:
		w.pushed++
		w.queue, w.idle = append(w.queue, w.pushed), false
	case 2, 3:
		w.write(n)
	case 4:
		w.open(n%4 > 0)
	case 5:
		w.obey(w.s.PathChanged(w.now, n%3 == 0))
	case 6:
		if n%4 == 0 { // the path in use, or another
			w.obey(w.s.PathLost(w.now, n%8 == 0, n%3 == 0))
		}
	case 7:
		if w.hurried != nil {
			w.obey(w.s.Stuck(w.hurried.c.Epoch))
			w.hurried = nil
		}
	case 8:
		w.idle = n%5 == 0 && w.drained()
	default:
		if len(w.order) > 0 {
			w.read(w.order[n%len(w.order)])
		}
	}
}

// drained says that everything sent has arrived, as it has when a lane was idle for minutes.
func (w *world) drained() bool {
	return len(w.queue) == 0 && !slices.ContainsFunc(w.order, func(p *pipe) bool { return len(p.frames) > 0 && !p.done() })
}

// write is a turn of the sender's writer. A Write that is begun ends with the next turn.
func (w *world) write(n int) {
	if p := w.writing; p != nil {
		w.writing = nil
		took := min(n%4, len(w.queue))
		broken := p.reset || n%16 == 0
		if !p.reset {
			p.frames = append(p.frames, w.queue[:took]...)
			w.queue = w.queue[took:]
		}
		w.obey(w.s.Sent(w.now, p.c.Epoch, broken))
		return
	}
	w.obey(w.s.Next(w.now, Situation{Packets: len(w.queue) > 0, Quiet: n%7 == 0, Idle: w.idle}))
}

// open ends an attempt to open a carrier.
func (w *world) open(ok bool) {
	if w.opening == nil {
		return
	}
	if p := w.opening; ok {
		w.pipes[p.c.Epoch] = p
		w.order = append(w.order, p)
	}
	w.opening = nil
	w.obey(w.s.Opened(w.now, ok))
}

func (w *world) obey(o Order) {
	w.t.Helper()
	switch o.Do {
	case Open:
		if w.opening != nil {
			w.t.Fatal("two carriers are opened at a time")
		}
		if w.previous != nil && o.Carrier.After != w.previous.c.Epoch {
			w.t.Fatalf("epoch %d follows %d, in use is %d", o.Carrier.Epoch, o.Carrier.After, w.previous.c.Epoch)
		}
		w.opening = &pipe{c: o.Carrier}
	case Send:
		w.writing = w.pipes[w.s.Used()]
	case Switch:
		if p := w.previous; p != nil {
			p.frames, p.closed = append(p.frames, mark), true
		}
		w.previous = w.pipes[w.s.Used()]
	case Hurry:
		w.hurried = w.previous
	case Abandon:
		w.previous.reset = true
		w.taken += len(w.previous.frames)
		w.previous = nil
	case Finish:
		w.previous.closed = true
		w.previous, w.idle = nil, false
	}
}

// read is a turn of the reader of one carrier.
func (w *world) read(p *pipe) {
	switch {
	case p.over:
		return
	case !p.begun:
		if p.reset {
			return // its HELLO is lost
		}
		p.begun = true
		w.r.Begin(p.c)
		return
	case !p.reset && len(p.frames) == 0 && !p.closed:
		return
	}
	if !w.mayRead(p) {
		return
	}
	if p.reset || len(p.frames) == 0 || p.frames[0] == mark {
		p.over = true
		w.r.End(p.c)
		return
	}
	w.got = append(w.got, p.frames[0])
	p.frames = p.frames[1:]
}

// mayRead holds p back as long as the receiver says, or until its patience runs out: that is longer than anything living
// takes to arrive.
func (w *world) mayRead(p *pipe) bool {
	w.r.Hold(p.c)
	wait, counts := w.r.MustWait(p.c)
	dead := !slices.ContainsFunc(w.order, func(q *pipe) bool { return q.c.Epoch < p.c.Epoch && !q.done() })
	if wait && !(counts && dead) {
		return false
	}
	w.r.Release(p.c)
	return true
}

// check holds what must be true whatever happened, once everything has come to rest.
func (w *world) check() {
	w.t.Helper()
	for i := 0; i < 1000+4*w.pushed && (len(w.queue) > 0 || !w.drained()); i++ {
		w.now += time.Second
		w.write(1)
		w.open(true)
		for _, p := range w.order {
			w.read(p)
			w.read(p)
		}
	}
	for i := 1; i < len(w.got); i++ {
		if w.got[i] <= w.got[i-1] {
			w.t.Fatalf("packet %d arrived behind %d", w.got[i], w.got[i-1])
		}
	}
	if len(w.queue) > 0 || !w.drained() {
		w.t.Fatalf("%d packets are not sent: it does not come to rest", len(w.queue))
	}
	if lost := w.pushed - len(w.got); lost > w.taken {
		w.t.Fatalf("%d packets are lost, carriers that were abandoned had %d", lost, w.taken)
	}
}

// TestOrder is the same as FuzzOrder at random.
func TestOrder(t *testing.T) {
	carriers, packets, lost := 0, 0, 0
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		for range 300 {
			w.step(byte(rnd.Uint32()), rnd.IntN(256))
		}
		w.check()
		carriers, packets, lost = carriers+len(w.order), packets+w.pushed, lost+w.pushed-len(w.got)
	}
	t.Logf("%d carriers, %d packets, %d lost with carriers that were abandoned", carriers, packets, lost)
	if carriers < 3000*3 || lost == 0 || lost > packets/4 {
		t.Error("the world is too quiet, or too wild, to show anything")
	}
}

// FuzzOrder: whatever happens on the paths, packets arrive in order and once, and only those that an abandoned carrier had
// taken are lost.
func FuzzOrder(f *testing.F) {
	f.Add([]byte{0, 1, 2, 2, 4, 1, 2, 0, 2, 1, 5, 1, 4, 1, 0, 0, 2, 2, 9, 0, 9, 1, 9, 0})
	f.Add([]byte{0, 1, 2, 2, 4, 1, 2, 1, 2, 1, 5, 1, 2, 1, 4, 1, 7, 0, 2, 1, 2, 1})
	f.Add([]byte{0, 1, 2, 2, 4, 1, 2, 1, 2, 1, 6, 8, 0, 1, 2, 2, 4, 1, 5, 1, 4, 1, 2, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		for ; len(script) > 1; script = script[2:] {
			w.step(script[0], int(script[1]))
		}
		w.check()
	})
}
