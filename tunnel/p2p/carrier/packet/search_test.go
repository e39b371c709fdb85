package packet

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
)

// testLink is a link below a search: it takes packets of up to mtu bytes, loses some of them, and needs 20 ms for an answer,
// or what late says.
type testLink struct {
	mtu      atomic.Int32 // sealed packets that pass, bytes
	refuses  atomic.Bool  // the interface says so when one is too large
	loss     float64
	late     atomic.Int64 // nanoseconds
	rnd      *rand.Rand   // the same losses each time
	size     atomic.Int32
	arrived  chan uint32
	tooLarge wake.One
	confirm  wake.One
	over     chan error // what the search ended with
	quic     atomic.Int32
	carried  atomic.Uint64
	narrowed atomic.Int32
	broken   atomic.Pointer[string]
	narrow   atomic.Bool
	passes   atomic.Bool
}

func (*testLink) Peer() string           { return "b" }
func (*testLink) Addr() string           { return "" }
func (*testLink) Sent(int)               {}
func (*testLink) Received(int)           {}
func (*testLink) Heard()                 {}
func (l *testLink) Carried() uint64      { return l.carried.Load() }
func (l *testLink) Narrowed()            { l.narrowed.Add(1) }
func (l *testLink) Waited(time.Duration) {}
func (l *testLink) Broken(why string)    { l.broken.Store(&why) }

func (l *testLink) probe(id uint32, size int) error {
	switch {
	case size > int(l.mtu.Load()) && l.refuses.Load():
		return unix.EMSGSIZE
	case size > int(l.mtu.Load()) || l.rnd.Float64() < l.loss:
		return nil
	}
	time.AfterFunc(max(20*time.Millisecond, time.Duration(l.late.Load())), func() { l.arrived <- id })
	return nil
}

// searching runs a search on a link, with time that is made up. Slow, if it is not nil, says whether a circuit is faster.
func searching(t *testing.T, mtu int, loss float64, slow func(time.Duration) bool, f func(l *testLink)) {
	synctest.Test(t, func(t *testing.T) {
		l := &testLink{loss: loss, rnd: rand.New(rand.NewPCG(1, 2)), arrived: make(chan uint32, 16), tooLarge: wake.NewOne(), confirm: wake.NewOne(), over: make(chan error, 1)}
		l.mtu.Store(int32(mtu))
		l.size.Store(basePacket)
		l.quic.Store(1300)
		s := search{sizes: packetSizes(false, maxPacket), size: &l.size, narrow: &l.narrow, passes: l.passes.Load, probe: l.probe, arrived: l.arrived, tooLarge: l.tooLarge,
			confirm: l.confirm, quicNeeds: func() (int, error) { return int(l.quic.Load()), nil }, slow: slow, path: l,
			log: slog.New(slog.DiscardHandler)}
		if slow != nil {
			s.quicNeeds = nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.over <- s.run(ctx); close(ended) }()
		f(l)
		cancel()
		<-ended
	})
}

// ends checks what the search has ended with; nil: it has not.
func (l *testLink) ends(t *testing.T, when string, want error) {
	t.Helper()
	synctest.Wait()
	var got error
	select {
	case got = <-l.over:
	default:
	}
	if !errors.Is(got, want) {
		t.Errorf("%s: the search has ended with %v, want %v", when, got, want)
	}
}

// use has packets carried for a time. The owner of a path that was quiet has its size confirmed.
func (l *testLink) use(d time.Duration) {
	l.confirm.Wake()
	for range d / (100 * time.Millisecond) {
		l.carried.Add(1000)
		time.Sleep(100 * time.Millisecond) // sleep: in a bubble
	}
}

func TestSearchFindsTheSize(t *testing.T) {
	for _, c := range []struct{ mtu, want int32 }{{9000, 8972}, {8971, 1472}, {1472, 1472}, {1471, 1464}, {1252, 1252}, {1251, 1200}} {
		searching(t, int(c.mtu), 0, nil, func(l *testLink) {
			time.Sleep(30 * time.Second)
			if got := l.size.Load(); got != c.want {
				t.Errorf("packets of %d pass: size %d, want %d", c.mtu, got, c.want)
			}
		})
	}
}

// A satellite's round trip does not pass for silence, neither at the start nor when a queue of that length fills; a black
// hole is found on it all the same.
func TestSearchIsPatient(t *testing.T) {
	for _, late := range []time.Duration{310 * time.Millisecond, 600 * time.Millisecond, 1400 * time.Millisecond, 3 * time.Second} {
		searching(t, 1472, 0.03, nil, func(l *testLink) {
			l.late.Store(int64(late))
			time.Sleep(10 * late)
			if size := l.size.Load(); size < 1200 {
				t.Errorf("%v: size %d after ten round trips", late, size)
			}
			l.use(30 * late)
			if size := l.size.Load(); size != 1472 || l.narrowed.Load() != 0 {
				t.Errorf("%v: size %d, want 1472; told %d times of a black hole", late, size, l.narrowed.Load())
			}
			l.mtu.Store(1350)
			l.use(50*late + 5*time.Second)
			if size := l.size.Load(); size != 1332 || l.narrowed.Load() != 1 {
				t.Errorf("%v: size %d, want 1332; told %d times, want 1", late, size, l.narrowed.Load())
			}
		})
		searching(t, 1472, 0, nil, func(l *testLink) {
			l.use(10 * time.Second)
			l.late.Store(int64(late))
			for range 100 {
				l.use(100 * time.Millisecond)
				if size := l.size.Load(); size != 1472 && late < time.Second {
					t.Errorf("%v of queue: size %d", late, size)
				}
			}
			l.use(5 * late)
			if size := l.size.Load(); size != 1472 {
				t.Errorf("%v of queue: size %d after a while", late, size)
			}
		})
	}
}

// One late answer is one round trip, however long nothing was asked afterwards.
func TestSearchAfterALateAnswer(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		l.use(10 * time.Second)
		l.late.Store(int64(150 * time.Millisecond))
		l.use(1100 * time.Millisecond)
		l.late.Store(0)
		time.Sleep(3 * time.Minute)
		l.use(10 * time.Second)
		l.mtu.Store(1350)
		l.use(4 * time.Second)
		if size := l.size.Load(); size != 1332 {
			t.Errorf("size %d, want 1332", size)
		}
	})
}

// A smaller link is noticed within two or three seconds of use, and not while nothing is sent.
func TestSearchNoticesABlackHole(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		l.use(10 * time.Second)
		time.Sleep(2 * confirmEvery) // another look follows what was sent last
		l.mtu.Store(1350)
		time.Sleep(time.Minute)
		if got := l.size.Load(); got != 1472 {
			t.Errorf("size %d while nothing is sent", got)
		}
		l.use(4 * time.Second)
		if got := l.size.Load(); got != 1332 || l.narrowed.Load() != 1 || l.broken.Load() != nil {
			t.Errorf("size %d, want 1332; told %d times, want 1; broken: %v, but QUIC's packets pass", got, l.narrowed.Load(), l.broken.Load())
		}
		l.mtu.Store(9000)
		l.use(70 * time.Second)
		if got := l.size.Load(); got != 8972 {
			t.Errorf("size %d on a larger link, want 8972", got)
		}
	})
}

// Where no packet passes any longer, whatever its size, the path ends soon. On one of much loss that takes longer.
func TestSearchNoticesSilence(t *testing.T) {
	for _, c := range []struct {
		loss   float64
		within time.Duration
	}{{0, 2500 * time.Millisecond}, {0.1, 2500 * time.Millisecond}, {0.4, 6 * time.Second}} {
		searching(t, 1472, c.loss, nil, func(l *testLink) {
			l.use(30 * time.Second)
			l.ends(t, "at first", nil)
			l.mtu.Store(0)
			l.use(c.within)
			l.ends(t, "no packet passes", errMute)
			if l.narrowed.Load() != 0 || l.broken.Load() != nil {
				t.Errorf("loss %.1f: taken for an MTU black hole", c.loss)
			}
		})
	}
}

// Probes that wait behind a long queue do not end a path whose other packets are acknowledged.
func TestSearchBearsAQueue(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		l.use(10 * time.Second)
		l.passes.Store(true)
		l.late.Store(int64(4 * time.Second))
		l.use(10 * time.Second)
		l.ends(t, "a queue of four seconds", nil)
		if size := l.size.Load(); size != 1472 || l.narrowed.Load() != 0 {
			t.Errorf("size %d; told %d times of a black hole", size, l.narrowed.Load())
		}
	})
}

// Packets are small while it is asked whether the large ones vanish, and large again once they do not.
func TestSearchAnswersSilence(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		l.use(10 * time.Second)
		for _, mtu := range []int32{1472, 1350} {
			l.mtu.Store(mtu)
			l.narrow.Store(true)
			l.confirm.Wake()
			time.Sleep(3 * time.Second)
			if want := min(mtu, 1472); l.narrow.Load() || l.size.Load() > want {
				t.Errorf("packets of %d pass: narrow %v, size %d", mtu, l.narrow.Load(), l.size.Load())
			}
		}
	})
}

// Confirm has a quiet path looked at, and an interface that refuses the size is not waited for.
func TestSearchIsTold(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		time.Sleep(10 * time.Second)
		l.mtu.Store(1350)
		l.confirm.Wake()
		time.Sleep(3 * time.Second)
		if got := l.size.Load(); got != 1332 {
			t.Errorf("asked to confirm: size %d, want 1332", got)
		}
		l.mtu.Store(1300)
		l.refuses.Store(true)
		l.tooLarge.Wake()
		time.Sleep(time.Second)
		if got := l.size.Load(); got != 1292 {
			t.Errorf("refused by the interface: size %d, want 1292", got)
		}
	})
}

// Where QUIC's own packets vanish, too, the path is of no use.
func TestSearchGivesThePathUp(t *testing.T) {
	searching(t, 1472, 0, nil, func(l *testLink) {
		l.quic.Store(1400)
		l.use(10 * time.Second)
		l.mtu.Store(1300)
		l.use(5 * time.Second)
		l.ends(t, "QUIC's packets vanish", errEnded)
		if l.broken.Load() == nil {
			t.Error("the path's owner is not told")
		}
	})
}

// Loss is not taken for a black hole, not for ten minutes of use.
func TestSearchBearsLoss(t *testing.T) {
	for _, loss := range []float64{0.01, 0.1, 0.2} {
		searching(t, 1472, loss, nil, func(l *testLink) {
			l.use(10 * time.Minute)
			if n := l.narrowed.Load(); n != 0 || l.broken.Load() != nil {
				t.Errorf("%.0f %% loss: %d alarms, broken %v", 100*loss, n, l.broken.Load())
			}
		})
	}
}

// Where the circuit carries packets better the path ends.
func TestSearchLeavesItToTheCircuit(t *testing.T) {
	v := &via{trip: func() time.Duration { return time.Millisecond }}
	searching(t, 1472, 0, v.slow, func(l *testLink) {
		l.use(20 * time.Second)
		l.ends(t, "as fast", nil)
		l.late.Store(int64(90 * time.Millisecond))
		l.use(30 * time.Second)
		l.ends(t, "slower than the circuit", errWorse)
	})
}

// A circuit that is better carries all for a minute, and it is known why.
func TestCircuitRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Flight{link: link{via: &via{}}, among: &flights{}, conn: testConn{}}
		if pause := f.via.failed(errWorse, time.Second); pause != worseRest {
			t.Errorf("a pause of %v", pause)
		}
		if why, _ := f.Forwarding(); why != errWorse.Error() {
			t.Errorf("the circuit has them: %q", why)
		}
		time.Sleep(worseRest)
		if d := f.via.rest(); d > 0 {
			t.Errorf("it rests for %v more", d)
		}
		if pause := f.via.failed(errUnused, time.Second); pause != time.Second || f.via.why.Load() != nil {
			t.Errorf("unused: a pause of %v", pause)
		}
	})
}
