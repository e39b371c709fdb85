package ladder

import (
	"math/rand/v2"
	"testing"
	"time"
)

// script is a source of numbers that a fuzzer chooses: a byte makes one, and after the last one they are random.
type script struct {
	b     []byte
	after *rand.PCG
}

func (s *script) Uint64() uint64 {
	if len(s.b) == 0 {
		return s.after.Uint64()
	}
	n := s.b[0]
	s.b = s.b[1:]
	return uint64(n) << 56
}

// FuzzMachine: whatever happens to a peer's paths, in whatever order, the machine never asks for what there is not, does
// not stand still, uses no dead path while another lives, and once nothing goes wrong it has the best path, and
// without traffic none.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{200, 0, 200, 60, 10, 250, 100, 7, 3, 180, 90, 30, 220, 15})
	f.Add([]byte("suspected, broken, asleep, nudged, closed and dialed again; the order is the fuzzer's"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2000 {
			return
		}
		w := newWorld(t, 0)
		src := &script{b: b, after: rand.NewPCG(1, 2)}
		w.rnd = rand.New(src)
		w.open()
		for len(src.b) > 0 {
			for range 1 + w.rnd.IntN(64) {
				w.step(true)
			}
			w.fault()
		}
		w.blocked = false
		clear(w.died)
		w.handle(NATs{})
		for end := w.now + 90*time.Second; w.now < end; {
			if w.m.Best(StreamLane, nil) == 0 {
				w.open()
			}
			w.step(true)
		}
		if w.m.State() != Direct {
			t.Fatalf("%v 90 s after the last fault", w.m.State())
		}
		for end := w.now + idleTimeout + restMost; w.now < end; {
			w.step(false)
		}
		if w.m.State() != Idle {
			t.Fatalf("%v after %v without traffic", w.m.State(), idleTimeout)
		}
	})
}
