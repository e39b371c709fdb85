package flight

import "testing"

// A path that rests sends nothing but ACKs; what it had in flight arrives by the one that carries.
func TestRestingPath(t *testing.T) {
	l := newLab(t, direction(10, 20, 0), direction(10, 20, 0), 1)
	a, b := l.e[0], l.e[1]
	a.path.Rest(true)
	a.source.add(3, 40)
	b.source.add(5, 40)
	l.run(5, nil)
	if n := a.peer.Counters().Packets; n != 0 {
		t.Errorf("%d packets left on a path that rests", n)
	}
	if a.sink.frames != 40 || a.peer.Counters().Acks == 0 {
		t.Errorf("the other direction: %d frames of 40, %d ACKs", a.sink.frames, a.peer.Counters().Acks)
	}
	a.path.Rest(false)
	l.run(10, l.finished)
	l.whole()
}

// A path that rests with a sum that was not sent has nothing to look for: looking each 50 µs took a processor.
func TestRestingPathSleeps(t *testing.T) {
	l := newLab(t, direction(10, 20, 0.03), direction(10, 20, 0.03), 1)
	a := l.e[0]
	a.source.add(3, 40)
	l.run(5, l.finished)
	a.path.s.parity.n, a.path.s.parity.last, a.path.s.parity.newest = 1, l.now, a.path.s.next // as if another path carried in the middle of a group
	a.path.Rest(true)
	l.run(l.now+5, nil)
	before := l.steps
	l.run(l.now+10, nil)
	if n := l.steps - before; n > 200 {
		t.Errorf("%d looks in 10 s at a path that rests", n)
	}
}

// Another line is learnt afresh, in the middle of a transfer.
func TestAfresh(t *testing.T) {
	l := newLab(t, direction(10, 20, 0), direction(10, 20, 0), 1)
	a := l.e[0]
	a.source.add(3, 2000)
	l.run(1, nil)
	before := a.path.Control().Rate(a.path.InFlight())
	a.path.Afresh()
	if now := a.path.Control().Rate(a.path.InFlight()); now >= before || a.path.Control().MinRTT() >= 0.02 && a.path.Control().MinRTT() < 0.1 {
		t.Errorf("a rate of %v after %v, least round trip %v", now, before, a.path.Control().MinRTT())
	}
	l.run(60, l.finished)
	l.consistent()
	l.whole()
}
