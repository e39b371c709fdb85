package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// bench is a Watchdog in a bubble of testing/synctest: minutes pass in no time.
type bench struct {
	*Watchdog
	suspended atomic.Int64 // nanoseconds
	waits     atomic.Bool

	mu     sync.Mutex
	sent   []string
	ended  int
	log    strings.Builder
	stacks strings.Builder
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

type lockedWriter struct {
	b *bench
	w *strings.Builder
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.w.Write(p)
}

// newBench starts one in a process that remembers its ends in dir.
func newBench(t *testing.T, dir string) *bench { return newBenchAt(t, dir, 0) }

// newBenchAt is newBench later in the same boot.
func newBenchAt(t *testing.T, dir string, later time.Duration) *bench {
	t.Helper()
	began := time.Now()
	b := &bench{}
	b.suspended.Store(int64(later))
	b.Watchdog = New(Config{Log: slog.New(slog.NewTextHandler(b, nil)), outside: outside{
		now:   func() time.Duration { return 24*time.Hour + time.Since(began) + time.Duration(b.suspended.Load()) },
		waits: b.waits.Load, beat: 30 * time.Second,
		notify: func(s string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.sent = append(b.sent, s)
		},
		stacks: lockedWriter{b, &b.stacks},
		end: func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ended++
		},
	}})
	if dir != "" {
		b.Remember(dir)
	}
	t.Cleanup(b.Start(t.Context()))
	return b
}

// count is how often the service manager was sent this.
func (b *bench) count(state string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sent {
		if s == state {
			n++
		}
	}
	return n
}

func (b *bench) ends() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

func (b *bench) said(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.log.String(), text)
}

// after lets time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// names are the loops that hang.
func (b *bench) names() string {
	var out []string
	for _, h := range b.Hung() {
		out = append(out, h.Name)
	}
	return strings.Join(out, ", ")
}

func TestHungLoopIsNamedAndEndsTheProcess(t *testing.T) {
	for _, offset := range []time.Duration{0, time.Millisecond, 1499 * time.Millisecond, every - time.Millisecond} {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, t.TempDir())
				l := b.Loop("kernel repair")
				after(time.Minute + offset)
				l.Begin(t.Context()) // and never ends
				hangs := time.Now()
				for b.names() == "" && time.Since(hangs) < time.Minute {
					after(10 * time.Millisecond)
				}
				named := time.Since(hangs)
				if b.names() != "kernel repair" || named > 33*time.Second || named < Patience {
					t.Fatalf("hung %q after %v", b.names(), named)
				}
				if err := b.Healthy(); err == nil || !strings.Contains(err.Error(), "kernel repair") {
					t.Errorf("health: %v", err)
				}
				beats := b.count("WATCHDOG=1")
				after(reportTime + closer/2)
				if b.ends() != 1 || b.count("WATCHDOG=1") != beats {
					t.Errorf("%d ends, %d beats after %d", b.ends(), b.count("WATCHDOG=1"), beats)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if n := strings.Count(b.stacks.String(), "[running"); n != 1 || !strings.Contains(b.log.String(), `kernel repair" since=`) {
					t.Errorf("%d dumps of the stacks; log: %s", n, b.log.String())
				}
				if since := b.hung[0].Since; since.Sub(hangs).Abs() > every+lookTime {
					t.Errorf("hangs since %v, said %v", hangs, since)
				}
			})
		})
	}
}

// What must never count: no work, slow work, a suspended machine, a process that waits for its disk.
func TestNoHang(t *testing.T) {
	for name, live := range map[string]func(b *bench, l *Loop){
		"no work": func(_ *bench, _ *Loop) { after(time.Hour) },
		"slow work": func(_ *bench, l *Loop) {
			work, end := l.Begin(context.Background())
			slowly(func() { Step(work) })
			end()
		},
		"short work": func(_ *bench, l *Loop) {
			slowly(func() { _, end := l.Begin(context.Background()); end() })
		},
		"another machine": func(_ *bench, l *Loop) {
			work, end := l.Begin(context.Background())
			back := Outside(work)
			after(10 * time.Minute)
			back()
			end()
		},
		"suspended": func(b *bench, l *Loop) {
			_, end := l.Begin(context.Background())
			after(Patience - 2*every)
			b.suspended.Add(int64(time.Hour))
			if err := b.Healthy(); err != nil {
				panic(err) // before the first look
			}
			after(Patience - every)
			end()
			after(time.Minute)
		},
		"slow disk": func(b *bench, l *Loop) {
			b.waits.Store(true)
			_, end := l.Begin(context.Background())
			after(waitsLong)
			end()
			b.waits.Store(false)
			after(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, t.TempDir())
				after(time.Minute)
				live(b, b.Loop("loop"))
				if b.ends() != 0 || b.said("loops hang") != 0 || b.Healthy() != nil {
					t.Errorf("%d ends; %v", b.ends(), b.Healthy())
				}
				if n := b.count("WATCHDOG=1"); n < 4 {
					t.Errorf("%d beats", n)
				}
			})
		})
	}
}

// slowly does f for ten minutes, less often than each look.
func slowly(f func()) {
	for range 24 {
		after(25 * time.Second)
		f()
	}
}

// Callers that hang are no progress, however many come, and are named once.
func TestEachCallerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		l := b.Loop("control socket")
		for range 3 {
			l.Begin(t.Context())
			after(25 * time.Second)
		}
		if b.ends() == 0 || b.names() != "control socket" {
			t.Errorf("%d ends, hung %q", b.ends(), b.names())
		}
	})
}

// Of goroutines that share a loop, the work, steps and requests of one hide no other.
func TestSharedLoopHidesNone(t *testing.T) {
	for name, other := range map[string]func(l *Loop){
		"work": func(l *Loop) {
			slowly(func() { _, end := l.Begin(context.Background()); end() })
		},
		"steps": func(l *Loop) {
			work, end := l.Begin(context.Background())
			slowly(func() { Step(work) })
			end()
		},
		"request": func(l *Loop) {
			work, end := l.Begin(context.Background())
			back := Outside(work)
			after(10 * time.Minute)
			back()
			end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, t.TempDir())
				l := b.Loop("loop")
				l.Begin(t.Context()) // and never ends
				go other(l)
				if after(36 * time.Second); b.names() != "loop" || b.ends() == 0 {
					t.Errorf("%d ends, hung %q", b.ends(), b.names())
				}
				after(10 * time.Minute)
			})
		})
	}
}

// A disk that is slow ends nothing, is named after five minutes, and saves nobody once it is not.
func TestHangBehindSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.waits.Store(true)
		b.Loop("loop").Begin(t.Context())
		after(10 * time.Minute)
		if b.names() != "loop" || b.Hung()[0].Why == "" || b.ends() != 0 || b.Healthy() != nil || b.said("loops hang") != 1 {
			t.Errorf("%d ends, hung %+v, %v", b.ends(), b.Hung(), b.Healthy())
		}
		b.waits.Store(false)
		if after(36 * time.Second); b.names() != "loop" || b.ends() == 0 {
			t.Errorf("%d ends, hung %q", b.ends(), b.names())
		}
	})
}

// A watchdog that hangs itself fails the liveness probe; one that was stopped, and soon looks again, does not.
func TestWatchdogHangs(t *testing.T) {
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			hangs := make(chan struct{})
			var once atomic.Bool
			b.Loop("loop").Begin(t.Context())
			after(every + every/2)
			b.cfg.waits = func() bool {
				if once.CompareAndSwap(false, true) {
					<-hangs
				}
				return false
			}
			after(2 * Patience)
			if err := b.Healthy(); err != nil {
				t.Errorf("a process that continues this moment: %v", err)
			}
			if !stays {
				close(hangs)
			}
			after(staleAfter + closer)
			if err := b.Healthy(); (err != nil) != stays {
				t.Errorf("stays %v: %v", stays, err)
			}
			if stays {
				close(hangs)
			}
		})
	}
}

// The bound holds, too, where the watchdog began to look before it knew of the ends.
func TestRemembersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for range mostEnds {
			if _, err := begin(dir, 24*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b := newBench(t, "")
		after(2 * every)
		b.Remember(dir)
		if b.said("three times") != 1 || b.count("WATCHDOG_USEC=0") != 1 {
			t.Errorf("%s %q", b.log.String(), b.sent)
		}
		b.Loop("loop").Begin(t.Context())
		if after(time.Minute); b.ends() != 0 || b.names() != "loop" {
			t.Errorf("%d ends, hung %q", b.ends(), b.names())
		}
	})
}

// What notifies does not hold the lock that probes and status take.
func TestNotifyBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for range mostEnds {
			if _, err := begin(dir, 24*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b := newBench(t, "")
		b.cfg.notify = func(string) {
			if !b.Watchdog.mu.TryLock() {
				t.Error("notifies while it holds its lock")
				return
			}
			b.Watchdog.mu.Unlock()
		}
		b.Remember(dir)
	})
}

// A part whose locks nobody gives back hangs itself, one that crashes is watched no longer; neither keeps the others from being
// watched.
func TestSourcesThatHangAndCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		forever := make(chan struct{})
		defer close(forever)
		b.Watch("crashes", func(func(Work)) { panic("oh") })
		b.Watch("tunnel", func(func(Work)) { <-forever })
		var freed atomic.Int32
		b.Watch("writers", func(show func(Work)) {
			show(Work{Name: "writer", Busy: freed.Load() == 0, Free: func() { freed.Add(1) }})
		})
		if after(Patience/2 + 3*every); freed.Load() != 1 {
			t.Errorf("freed %d times", freed.Load())
		}
		b.Loop("loop").Begin(t.Context())
		after(40 * time.Second)
		if b.names() != "tunnel, loop, crashes" || b.said("crashed") != 1 || b.Hung()[2].Why == "" {
			t.Errorf("hung: %q; %s", b.names(), b.log.String())
		}
	})
}

// Three restarts within an hour, then reports only; later the fourth.
func TestThreeRestartsAnHour(t *testing.T) {
	dir := t.TempDir()
	var boot time.Duration
	for n := range 4 {
		synctest.Test(t, func(t *testing.T) {
			b := newBenchAt(t, dir, boot)
			after(time.Minute)
			b.Loop("loop").Begin(t.Context())
			after(2 * time.Minute)
			switch wants := n < mostEnds; {
			case wants != (b.ends() > 0), wants == (b.Healthy() == nil):
				t.Errorf("run %d: %d ends, %v", n, b.ends(), b.Healthy())
			case !wants && (b.names() != "loop" || b.said("loops hang") != 1 || b.said("three times") != 1 || b.count("WATCHDOG_USEC=0") != 1):
				t.Errorf("not reported once: %s %q", b.log.String(), b.sent)
			case !wants:
				if after(time.Hour); b.ends() == 0 || b.count("WATCHDOG_USEC=30000000") == 0 {
					t.Errorf("not restarted in the next hour: %s", b.log.String())
				}
			}
			boot += 3 * time.Minute
		})
	}
}

func TestEnds(t *testing.T) {
	dir := t.TempDir()
	recent := func(now time.Duration) (n int, m *ends) {
		t.Helper()
		m, err := begin(dir, now)
		if err != nil {
			t.Fatal(err)
		}
		return len(m.recent(now)), m
	}
	want := func(n, wanted int, what string) {
		t.Helper()
		if n != wanted {
			t.Errorf("%s: %d ends out of order, want %d", what, n, wanted)
		}
	}
	n, m := recent(time.Hour)
	want(n, 0, "first run")
	m.inOrder()
	if _, err := os.Stat(filepath.Join(dir, File)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing to remember: %v", err)
	}
	n, _ = recent(time.Hour + 1) // killed
	want(n, 0, "after one in order")
	n, m = recent(time.Hour + 2)
	want(n, 1, "after one that was killed")
	if err := m.hung(3*time.Hour, []Hung{{Name: "loop"}}); err != nil {
		t.Fatal(err)
	}
	if n, m = recent(3*time.Hour + 1); n != 1 {
		t.Errorf("%d: the hang of a run that is hours old counts from its end", n)
	}
	if r := m.recent(3*time.Hour + 1)[0]; !slices.Equal(r.Hung, []string{"loop"}) {
		t.Errorf("%+v: not why it ended", r)
	}
	n, _ = recent(time.Minute)
	want(n, 0, "from the future")
	path := filepath.Join(dir, File)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, now := range map[string]string{"torn": string(text[:len(text)/2]), "empty": "", "another boot": strings.Replace(string(text), `"boot":"`, `"boot":"x`, 1)} {
		if err := os.WriteFile(path, []byte(now), 0o600); err != nil {
			t.Fatal(err)
		}
		n, _ := recent(time.Minute + 1)
		want(n, 0, what)
	}
}

// noDirectory replaces a directory by a file.
func noDirectory(t *testing.T, dir string) string {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Without a memory a process runs for 20 minutes before it is ended.
func TestNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, noDirectory(t, t.TempDir()))
		b.Loop("loop").Begin(t.Context())
		after(19 * time.Minute)
		if b.ends() != 0 || b.names() != "loop" || b.Healthy() != nil || b.said("cannot be remembered") != 1 {
			t.Errorf("%d ends, hung %q, %v", b.ends(), b.names(), b.Healthy())
		}
		if after(2 * time.Minute); b.ends() == 0 {
			t.Error("not ended")
		}
	})
}

// A log that nobody reads does not keep a hung process alive; a disk that does not take the memory does.
func TestBlockedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		forever := make(chan struct{})
		b.cfg.stacks = blocked(forever)
		b.Loop("loop").Begin(t.Context())
		if after(40 * time.Second); b.ends() == 0 {
			t.Error("not ended: the log blocks")
		}
		close(forever)
	})
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := newBench(t, dir)
		noDirectory(t, dir)
		b.Loop("loop").Begin(t.Context())
		if after(10 * time.Minute); b.ends() != 0 || b.names() != "loop" || b.said("waits until") != 1 {
			t.Errorf("%d ends: %s", b.ends(), b.log.String())
		}
	})
}

type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.Ready("serving pods")
		after(time.Minute)
		if b.count("READY=1\nSTATUS=serving pods") != 1 || b.count("READY=1\nSTATUS=still starting") != 0 {
			t.Errorf("%q", b.sent)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		if after(readyWithin + time.Second); b.count("READY=1\nSTATUS=still starting") != 1 {
			t.Errorf("what is ordered after this process waits: %q", b.sent)
		}
		b.Ready("serving pods")
		b.Ready("serving pods")
		if b.count("STATUS=serving pods") != 1 || b.count("READY=1\nSTATUS=serving pods") != 0 {
			t.Errorf("what is shown stays old: %q", b.sent)
		}
	})
}

func TestNobodyWatches(t *testing.T) {
	var l *Loop
	work, end := l.Begin(t.Context())
	Step(work)
	Outside(work)()
	end()
	l.Call("of nobody")()
}

// A thread that waits for another program's lock of a file.
func TestCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock := func() *os.File {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	holds, wants := lock(), lock()
	if err := unix.Flock(int(holds.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if inCalls() {
		t.Error("waits before")
	}
	var waiting sync.WaitGroup
	waiting.Go(func() { _ = unix.Flock(int(wants.Fd()), unix.LOCK_EX) })
	deadline := time.Now().Add(10 * time.Second)
	for !inCalls() {
		if time.Now().After(deadline) {
			t.Fatal("a thread in flock is not seen")
		}
		time.Sleep(time.Millisecond)
	}
	if err := unix.Flock(int(holds.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
}

// Of calls each kind is watched by itself, and its oldest one: those that come and go hide none that hangs.
func TestCallsThatComeAndGoHideNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		c := b.Loop("control socket")
		after(time.Minute)
		for range 120 { // each is progress, and they overlap
			end := c.Call("map")
			after(20 * time.Second)
			c.Call("map")()
			end()
		}
		if b.ends() != 0 || b.names() != "" {
			t.Fatalf("%d ends, hung %q, where each call ended in time", b.ends(), b.names())
		}
		c.Call("doctor") // never ends
		hangs := time.Now()
		for b.names() == "" && time.Since(hangs) < time.Minute {
			c.Call("map")()
			c.Call("doctor")()
			after(100 * time.Millisecond)
		}
		if named := time.Since(hangs); b.names() != "control socket: doctor" || named > 33*time.Second {
			t.Errorf("hung %q after %v", b.names(), named)
		}
	})
}
