package choice

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	tick = 100 * time.Millisecond
	mbit = 1e6 / 8
)

// world is a flow over two carriers, each of which takes at most so much.
type world struct {
	c      Choice
	now    time.Duration
	bytes  float64
	rates  [2]float64 // bytes a second
	demand float64    // bytes a second; 0: without bound
	eager  float64    // if set, by how much the flow sends faster each tick at most
	last   float64
	seen   Seen
	uses   Carrier
	moves  []time.Duration
	spent  [2]time.Duration
}

func newWorld(sealed, lanes float64) *world {
	return &world{rates: [2]float64{sealed * mbit, lanes * mbit}, seen: Seen{RTT: 40 * time.Millisecond, TCP: true}}
}

// run lets time pass.
func (w *world) run(d time.Duration) *world {
	for end := w.now + d; w.now < end; {
		w.now += tick
		wants, most := w.demand, w.rates[w.uses]
		if wants == 0 {
			wants = 2 * most
		}
		if w.eager > 0 {
			wants = min(wants, max(w.last*w.eager, mbit))
		}
		w.last = min(wants, most)
		w.bytes += w.last * tick.Seconds()
		w.spent[w.uses] += tick
		w.seen.Now, w.seen.Bytes, w.seen.Waits = w.now, uint64(w.bytes), wants > most
		if uses := w.c.Next(w.seen); uses != w.uses {
			w.uses = uses
			w.moves = append(w.moves, w.now)
		}
	}
	return w
}

func (w *world) want(t *testing.T, on Carrier, why string) {
	t.Helper()
	if w.uses != on || !strings.Contains(w.c.Why(), why) {
		t.Fatalf("after %v: %d because of %q, want %d, %q; moved at %v", w.now, w.uses, w.c.Why(), on, why, w.moves)
	}
}

// Where UDP gets a tenth, TCP carries after 25 s of backlog, and stays; sealed is tried ever more seldom, and used again when UDP heals.
func TestTenth(t *testing.T) {
	for _, eager := range []float64{0, 1.05} { // a flow that takes all immediately, and one that has to grow
		w := newWorld(9, 95)
		w.eager, w.last = eager, 9*mbit
		w.run(25*time.Second).want(t, Lanes, "tcp carries more: ")
		w.run(10 * time.Minute)
		w.spent = [2]time.Duration{}
		w.run(time.Hour).want(t, Lanes, "tcp carries more: ")
		if w.spent[Sealed] > time.Minute {
			t.Errorf("sealed had %v of an hour", w.spent[Sealed])
		}
		w.rates[Sealed] = 95 * mbit
		w.run(12*time.Minute).want(t, Sealed, "sealed carries enough: ")
	}
}

// With a round trip of half a second the ramps are longer.
func TestTenthFarAway(t *testing.T) {
	w := newWorld(9, 95)
	w.seen.RTT = 500 * time.Millisecond
	w.run(30*time.Second).want(t, Lanes, "tcp carries more: 95 to 9.0")
}

// Equal carriers, and one that is a little better, stay with sealed; trials take ever less.
func TestEqualStaysSealed(t *testing.T) {
	for _, lanes := range []float64{50, 110, 149} {
		w := newWorld(100, lanes)
		w.run(2*time.Hour).want(t, Sealed, "sealed carries enough: 100")
		if w.spent[Lanes] > 90*time.Second {
			t.Errorf("trials took %v", w.spent[Lanes])
		}
	}
	newWorld(100, 160).run(25*time.Second).want(t, Lanes, "tcp carries more: 160 to 100 Mbit/s")
}

// What has no backlog has no trial, nor has one of 9 s again and again; once packets wait no longer, nobody has to look.
func TestNoBacklogNoTrial(t *testing.T) {
	w := newWorld(9, 95)
	w.demand = 8 * mbit
	w.run(time.Hour).want(t, Sealed, "not compared yet")
	for range 100 {
		w.demand = 0
		w.run(9 * time.Second)
		w.demand = mbit
		w.run(2 * time.Second)
		if !w.c.Rests() {
			t.Fatal("Next wants to be called")
		}
	}
	if len(w.moves) > 0 {
		t.Errorf("moved at %v", w.moves)
	}
}

// Backlog that ends breaks a trial off, as does a stop: no verdict.
func TestNoVerdict(t *testing.T) {
	w := newWorld(9, 95)
	w.run(12*time.Second).want(t, Lanes, "trial")
	w.demand = mbit
	w.run(30*time.Second).want(t, Sealed, "not compared yet")
	if !w.c.Rests() {
		t.Error("Next wants to be called")
	}
	w = newWorld(9, 95)
	w.run(12*time.Second).want(t, Lanes, "trial")
	w.rates = [2]float64{}
	w.run(8*time.Second).want(t, Sealed, "not compared yet")
	w.run(time.Minute).want(t, Sealed, "not compared yet") // an outage begins no trial
	if len(w.moves) != 2 {
		t.Errorf("moved at %v", w.moves)
	}
}

// Lanes on which nothing moves are left at the end of their ramp's double, not after the whole turn.
func TestLanesThatDoNotMove(t *testing.T) {
	w := newWorld(9, 0)
	w.run(20*time.Second).want(t, Sealed, "not compared yet")
	if w.spent[Lanes] > 3*time.Second {
		t.Errorf("nothing moved for %v", w.spent[Lanes])
	}
}

// A carrier that takes less than half is left after a second, and tried ever more seldom; that it takes little because little is said is no
// verdict.
func TestMuchWorse(t *testing.T) {
	w := newWorld(100, 40)
	w.run(14*time.Second).want(t, Sealed, "sealed carries enough: 100 to 40 Mbit/s")
	if w.spent[Lanes] > 2500*time.Millisecond { // its ramp, and a second
		t.Errorf("the worse one carried for %v", w.spent[Lanes])
	}
	if w.run(time.Hour); w.spent[Lanes] > 30*time.Second {
		t.Errorf("the worse one carried for %v of an hour", w.spent[Lanes])
	}
	w = newWorld(100, 60) // half is not much worse: its turn is a whole one
	if w.run(time.Minute); w.spent[Lanes] < 4*time.Second {
		t.Errorf("a turn ended after %v", w.spent[Lanes])
	}
	w = newWorld(100, 200)
	w.run(12*time.Second).want(t, Lanes, "trial")
	w.demand = 40 * mbit
	w.run(10*time.Second).want(t, Sealed, "not compared yet")
}

// A policed line is not looked at for 10 s.
func TestPoliced(t *testing.T) {
	w := newWorld(9, 95)
	w.seen.Loss = 0.2
	w.run(6*time.Second).want(t, Lanes, "trial")
	w.run(11*time.Second).want(t, Lanes, "tcp carries more")
}

// The round trip and the paths decide first.
func TestForced(t *testing.T) {
	w := newWorld(100, 100)
	w.seen.Least = 500 * time.Microsecond
	w.run(time.Hour).want(t, Lanes, "round trip below 1 ms")
	w.seen.Least = 1500 * time.Microsecond // it was below
	w.run(time.Second).want(t, Lanes, "round trip below 1 ms")
	w.seen.Least = 0 // as while a connection ends
	w.run(time.Second).want(t, Lanes, "round trip below 1 ms")
	w.seen.Least = 3 * time.Millisecond
	w.run(time.Second).want(t, Sealed, "not compared yet")
	w.seen.Least = 1500 * time.Microsecond // it was not
	w.run(time.Second).want(t, Sealed, "not compared yet")
	if len(w.moves) != 2 {
		t.Errorf("moved at %v", w.moves)
	}
	w = newWorld(9, 95)
	w.seen.RTT = 500 * time.Microsecond // of UDP: TCP may end at a proxy
	w.run(time.Second).want(t, Sealed, "not compared yet")
	w.seen.RTT, w.seen.TCP = 40*time.Millisecond, false
	w.run(time.Hour).want(t, Sealed, "no TCP path")
	w.seen.TCP = true
	w.run(25*time.Second).want(t, Lanes, "tcp carries more")
	w.seen.TCP = false
	w.run(time.Minute).want(t, Sealed, "no TCP path")
	w.seen.TCP = true // what was found holds still
	w.run(tick).want(t, Lanes, "tcp carries more")
	w.seen.Least = 500 * time.Microsecond
	w.run(tick).want(t, Lanes, "round trip below 1 ms")
	w.seen.Least = 0
	w.c.Moved() // another path
	w.run(tick).want(t, Sealed, "not compared yet")
}

// A demand that the lanes hold and sealed packets nearly do gives no verdict, and is tried ever more seldom; so are equal carriers whose
// line varies.
func TestMoreSeldom(t *testing.T) {
	for demand := 100.0; demand < 120; demand += 9 {
		w := newWorld(95, 200)
		w.demand = demand * mbit
		if w.run(time.Hour); len(w.moves) > 30 || w.spent[Lanes] > 3*time.Minute {
			t.Errorf("a demand of %.0f: %d moves in an hour, %v on the lanes", demand, len(w.moves), w.spent[Lanes])
		}
	}
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(100, 100)
		for range 3600 {
			now := (0.4 + 1.2*rnd.Float64()) * 100 * mbit
			w.rates = [2]float64{now, now}
			w.run(time.Second)
		}
		if len(w.moves) > 60 {
			t.Errorf("%d moves in an hour", len(w.moves))
		}
	}
}

// Nobody looks for a minute in a trial, and the other carrier carries meanwhile: that is no verdict.
func TestGapInTrial(t *testing.T) {
	w := newWorld(9, 95)
	w.run(25*time.Second).want(t, Lanes, "tcp carries more")
	for w.c.phase != other {
		w.run(tick)
	}
	w.run(500 * time.Millisecond)
	w.now, w.bytes = w.now+time.Minute, w.bytes+95*mbit*60
	w.run(9*time.Second).want(t, Lanes, "tcp carries more")
}

// After a change of paths the pauses begin again.
func TestMoved(t *testing.T) {
	w := newWorld(9, 95)
	w.run(time.Hour).want(t, Lanes, "tcp carries more")
	w.rates[Sealed] = 95 * mbit
	w.c.Moved()
	w.run(25*time.Second).want(t, Sealed, "sealed carries enough")
}

// Whatever happens, there are at most three moves in any 10 s of a world in which TCP is there and the path far, a trial needs 5 s of backlog
// before it, and two trials with the same verdict are further and further apart.
func FuzzNeverFlaps(f *testing.F) {
	f.Add(uint64(1), []byte{200, 10, 3, 90, 90, 20, 10, 0, 255})
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(50, 50)
		for _, b := range script[:min(len(script), 200)] {
			switch b % 4 {
			case 0:
				w.rates[Sealed] = float64(b) * mbit
			case 1:
				w.rates[Lanes] = float64(b) * mbit
			case 2:
				w.demand = float64(b/8) * mbit
			case 3:
				w.seen.Loss = float64(b) / 512
			}
			w.run(time.Duration(rnd.IntN(20_000)) * time.Millisecond)
		}
		for i := 3; i < len(w.moves); i++ {
			if d := w.moves[i] - w.moves[i-3]; d < policedTime {
				t.Fatalf("four moves within %v: %v", d, w.moves)
			}
		}
		w.demand, w.rates[Sealed], w.rates[Lanes], w.seen.Loss = 0, 5*mbit, 50*mbit, 0
		w.run(30 * time.Minute)
		if w.c.on != Lanes {
			t.Fatalf("%q; moved at %v", w.c.Why(), w.moves)
		}
		before := len(w.moves)
		w.run(time.Hour)
		if n := len(w.moves) - before; n > 14 {
			t.Fatalf("%d moves in an hour of the same", n)
		}
	})
}
