package watchdog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/test/fair"
)

// bench is a Watchdog in a bubble of testing/synctest: minutes pass in no time.
type bench struct {
	*Watchdog
	waiting atomic.Bool
	stops   atomic.Bool // once, for an hour

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

// newBench starts one in a process that remembers its restarts in dir.
func newBench(t *testing.T, dir string) *bench {
	t.Helper()
	t.Setenv("WATCHDOG_USEC", "30000000")
	b := &bench{}
	b.Watchdog = New(Config{Log: slog.New(slog.NewTextHandler(b, nil))})
	b.Watchdog.stacks = lockedWriter{b, &b.stacks}
	b.waits = func() bool {
		if b.stops.Swap(false) {
			time.Sleep(time.Hour) // sleep: in a bubble
		}
		return b.waiting.Load()
	}
	b.notify = func(s string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.sent = append(b.sent, s)
	}
	b.end = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended++
	}
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

func (b *bench) endings() int {
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
	time.Sleep(d) // sleep: in a bubble
	synctest.Wait()
}

// names are the loops that hang.
func (b *bench) names() string { return strings.Join(names(b.Hung()), ", ") }

func TestHungLoopIsNamedAndEndsTheProcess(t *testing.T) {
	for _, offset := range []time.Duration{0, time.Millisecond, every - time.Millisecond} {
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
				if b.names() != "kernel repair" || named > 32*time.Second || named < Patience {
					t.Fatalf("hung %q after %v", b.names(), named)
				}
				if err := b.Healthy(); err == nil || !strings.Contains(err.Error(), "kernel repair") {
					t.Errorf("health: %v", err)
				}
				beats := b.count("WATCHDOG=1")
				after(reportTime + every/2)
				if b.endings() != 1 || b.count("WATCHDOG=1") != beats {
					t.Errorf("%d ends, %d beats after %d", b.endings(), b.count("WATCHDOG=1"), beats)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if n := strings.Count(b.stacks.String(), "[running"); n != 1 || !strings.Contains(b.log.String(), `kernel repair" since=`) {
					t.Errorf("%d dumps of the stacks; log: %s", n, b.log.String())
				}
				if since := b.hung[0].Since; since.Sub(hangs).Abs() > every {
					t.Errorf("hangs since %v, said %v", hangs, since)
				}
			})
		})
	}
}

// What must never count: no work, slow work, a process that is stopped or waits for its disk.
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
		"stopped": func(b *bench, l *Loop) {
			_, end := l.Begin(context.Background())
			for range 3 {
				after(Patience - 2*every)
				b.stops.Store(true)
				after(2 * every)
			}
			end()
			after(time.Minute)
		},
		"slow disk": func(b *bench, l *Loop) {
			b.waiting.Store(true)
			_, end := l.Begin(context.Background())
			after(10 * time.Minute)
			end()
			b.waiting.Store(false)
			after(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, t.TempDir())
				after(time.Minute)
				live(b, b.Loop("loop"))
				if b.endings() != 0 || b.said("loops hang") != 0 || b.Healthy() != nil {
					t.Errorf("%d ends; %v", b.endings(), b.Healthy())
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
		if b.endings() == 0 || b.names() != "control socket" {
			t.Errorf("%d ends, hung %q", b.endings(), b.names())
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
				if after(36 * time.Second); b.names() != "loop" || b.endings() == 0 {
					t.Errorf("%d ends, hung %q", b.endings(), b.names())
				}
				after(10 * time.Minute)
			})
		})
	}
}

// A thread that never returns from the kernel hides no hang forever, and restarts nothing.
func TestHangDuringEndlessCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.waiting.Store(true)
		b.Loop("loop").Begin(t.Context())
		if after(longWait - 2*every); b.names() != "" {
			t.Errorf("hung after %v: %q", longWait-2*every, b.names())
		}
		after(4 * every)
		if b.names() != "loop" || !b.Hung()[0].Waits {
			t.Errorf("hung: %+v", b.Hung())
		}
		if after(time.Hour); b.endings() != 0 || b.Healthy() != nil || b.said("loops hang") != 0 {
			t.Errorf("%d ends, %v: %s", b.endings(), b.Healthy(), b.log.String())
		}
	})
}

// Time before and after a slow disk counts.
func TestHangBehindSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.Loop("loop").Begin(t.Context())
		after(Patience / 2)
		b.waiting.Store(true)
		after(10 * time.Minute)
		b.waiting.Store(false)
		if after(Patience/2 + 2*every); b.names() != "loop" || b.endings() == 0 {
			t.Errorf("%d ends, hung %q", b.endings(), b.names())
		}
	})
}

// A part whose locks nobody gives back hangs itself, and keeps no other from being watched.
func TestSourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		forever := make(chan struct{})
		defer close(forever)
		b.Watch("tunnel", func(func(Work)) { <-forever })
		var freed atomic.Int32
		b.Watch("writers", func(show func(Work)) {
			if freed.Load() == 0 {
				show(Work{Name: "writer", Free: func() { freed.Add(1) }})
			}
		})
		if after(Patience/2 + 3*every); freed.Load() != 1 {
			t.Errorf("freed %d times", freed.Load())
		}
		b.Loop("loop").Begin(t.Context())
		after(40 * time.Second)
		if b.names() != "tunnel, loop" {
			t.Errorf("hung: %q; %s", b.names(), b.log.String())
		}
	})
}

// Three restarts within an hour, then reports only; later the fourth.
func TestThreeRestartsAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for range mostRestarts {
			b := newBench(t, dir)
			end := b.end
			b.end = func() { end(); runtime.Goexit() }
			b.Loop("loop").Begin(t.Context())
			if after(2 * time.Minute); b.endings() != 1 || b.Healthy() == nil {
				t.Errorf("%d ends, %v", b.endings(), b.Healthy())
			}
		}
		b := newBench(t, dir)
		b.Loop("loop").Begin(t.Context())
		after(2 * time.Minute)
		if r := b.Restarts(); len(r) != mostRestarts || !slices.Equal(r[0].Loops, []string{"loop"}) {
			t.Errorf("%+v", r)
		}
		if b.endings() != 0 || b.Healthy() != nil || b.names() != "loop" || b.said("loops hang") != 1 {
			t.Errorf("not reported once: %d ends, %v, %s", b.endings(), b.Healthy(), b.log.String())
		}
		if after(time.Hour); b.endings() == 0 {
			t.Errorf("not restarted in the next hour: %s", b.log.String())
		}
	})
}

// Restarts from the future do not count, nor does a file that a power-cut tore.
func TestNoRestarts(t *testing.T) {
	for _, text := range []string{"", `[{"at":"2`, `[{"at":"9999-01-01T00:00:00Z"}]`, `[{"at":"1999-01-01T00:00:00Z"}]`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w := New(Config{})
		if w.Remember(dir); len(w.Restarts()) != 0 {
			t.Errorf("%s: %+v", text, w.Restarts())
		}
	}
}

// A log that nobody reads does not keep a hung process alive.
func TestBlockedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		forever := make(chan struct{})
		b.Watchdog.stacks = blocked(forever)
		b.Loop("loop").Begin(t.Context())
		if after(40 * time.Second); b.endings() == 0 {
			t.Error("not ended: the log blocks")
		}
		close(forever)
	})
}

// Restarts that cannot be noted are no more than three an hour, either: each comes 20 minutes after the start. The next hang is noted again.
func TestUnnotedRestarts(t *testing.T) {
	for name, free := range map[string]bool{"the disk stays full": false, "it is full for one hang": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "missing")
				b := newBench(t, dir)
				_, end := b.Loop("loop").Begin(t.Context())
				if after(19 * time.Minute); b.endings() != 0 || b.Healthy() != nil || b.names() != "loop" || b.said("cannot be noted") != 1 || b.said("restart=false") != 1 {
					t.Errorf("%d ends, %v, hung %q: %s", b.endings(), b.Healthy(), b.names(), b.log.String())
				}
				if free {
					end()
					after(2 * every)
					if err := os.Mkdir(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					b.Loop("loop").Begin(t.Context())
					after(40 * time.Second)
				} else {
					after(2 * time.Minute)
				}
				if b.endings() == 0 || b.Healthy() == nil {
					t.Errorf("%d ends, %v: %s", b.endings(), b.Healthy(), b.log.String())
				}
			})
		})
	}
}

// A disk that takes the note late delays the restart as long.
func TestLateNote(t *testing.T) {
	for _, late := range []time.Duration{2 * reportTime, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			write, wait := b.write, late
			b.write = func(path string, data []byte, mode os.FileMode) error {
				time.Sleep(wait)
				wait = 0
				return write(path, data, mode)
			}
			b.Loop("loop").Begin(t.Context())
			after(Patience + 2*every)
			if after(late - 2*every); b.endings() != 0 || b.names() != "loop" {
				t.Errorf("%v: %d ends, hung %q", late, b.endings(), b.names())
			}
			if after(6 * time.Second); b.endings() == 0 {
				t.Errorf("%v: not ended: %s", late, b.log.String())
			}
		})
	}
}

// A note is a new file: what a full disk does not take erases no earlier restarts.
func TestNoteReplaces(t *testing.T) {
	dir := t.TempDir()
	w := New(Config{})
	w.Remember(dir)
	if err := w.note([]string{"loop"}); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	w.Remember(dir)
	if err := w.note([]string{"loop"}); err != nil {
		t.Fatal(err)
	}
	if w.Remember(dir); len(w.Restarts()) != 2 {
		t.Errorf("noted: %+v", w.Restarts())
	}
	var before []Restart
	if err := json.NewDecoder(old).Decode(&before); err != nil || len(before) != 1 {
		t.Errorf("written in place: %+v, %v", before, err)
	}
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
		if b.count("READY=1\nSTATUS=serving pods") != 1 {
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
	fair.Eventually(t, 10*time.Second, "a thread in flock is seen", fair.True(inCalls))
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
		if b.endings() != 0 || b.names() != "" {
			t.Fatalf("%d ends, hung %q, where each call ended in time", b.endings(), b.names())
		}
		c.Call("doctor") // never ends
		hangs := time.Now()
		for b.names() == "" && time.Since(hangs) < time.Minute {
			c.Call("map")()
			c.Call("doctor")()
			after(100 * time.Millisecond)
		}
		if named := time.Since(hangs); b.names() != "control socket: doctor" || named > 32*time.Second {
			t.Errorf("hung %q after %v", b.names(), named)
		}
	})
}
