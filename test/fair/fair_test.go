package fair

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// spinEnv has the test binary spin with so many threads instead of testing.
const spinEnv = "FAIR_TEST_SPIN"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(spinEnv)); err == nil {
		spin(n)
	}
	goleak.VerifyTestMain(m)
}

// spin computes with n threads until its input ends.
func spin(n int) {
	runtime.GOMAXPROCS(n + 1)
	for range n {
		go func() {
			runtime.LockOSThread()
			for spins := uint64(0); ; {
				spins++
			}
		}()
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// startSpinner starts a process with n threads that spin, at the lowest priority.
func startSpinner(t *testing.T, n int) (pid int) {
	t.Helper()
	c := exec.Command("nice", "-n", "19", os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprint(spinEnv, "=", n))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	})
	return c.Process.Pid
}

// The clock goes as fast as one thread would beside the others, up to the bound.
func TestSpeed(t *testing.T) {
	others := 0
	c := newClock(2, func() int { return others })
	start := c.marks[0].at
	for _, step := range []struct {
		others int
		passed time.Duration
		fair   time.Duration
	}{
		{0, time.Second, time.Second},
		{1, time.Second, time.Second},
		{3, time.Second, time.Second / 2},
		{4, 5 * time.Second, 2 * time.Second},
		{7, 4 * time.Second, time.Second},
		{1000, 4 * time.Second, time.Second},
	} {
		others = step.others
		from := c.marks[len(c.marks)-1].at
		c.look(from.Add(step.passed))
		if got := c.Between(from, from.Add(step.passed)); got != step.fair {
			t.Errorf("%d others for %v: %v passed, want %v", step.others, step.passed, got, step.fair)
		}
		if got := c.Between(from, from.Add(step.passed/2)); got != step.fair/2 {
			t.Errorf("%d others: %v passed in half the time, want %v", step.others, got, step.fair/2)
		}
	}
	end := c.marks[len(c.marks)-1].at
	if got, want := c.Between(start, end.Add(time.Second)), 7500*time.Millisecond; got != want {
		t.Errorf("%v in all, and a second after the last look, want %v", got, want)
	}
}

// Threads that spin count for the product whose process or descendant they are, and as
// load for everybody else.
func TestWhoSpins(t *testing.T) {
	if wanting() == 0 {
		t.Skip("SKIPPED: /proc/loadavg does not say how many threads want to run")
	}
	// More than anything else on the machine: what others do then hardly counts.
	const threads = 100
	pid := startSpinner(t, threads)
	agent, self, none := &Product{}, Self(), &Product{}
	agent.Add(pid)
	named := Named(name(t, pid))
	for _, p := range []*Product{agent, self, named} {
		Eventually(t, 10*time.Second, "all threads run", func() error {
			if n := p.runningNow(); n < threads {
				return fmt.Errorf("%d of %d", n, threads)
			}
			return nil
		})
	}
	if n := none.runningNow(); n != 0 {
		t.Errorf("no product has %d running threads", n)
	}
	for what, p := range map[string]*Product{"the spinning process": agent, "its parent": self, "its name": named} {
		// The kernel moves up to 32 threads at a time from one processor to another, and counts them at neither meanwhile.
		Eventually(t, 10*time.Second, "its threads are not others beside "+what, func() error {
			if mine, all := p.otherThreads(), none.otherThreads(); all-mine < threads*3/4 {
				return fmt.Errorf("%d others, beside nothing %d: want about %d fewer", mine, all, threads)
			}
			return nil
		})
	}
	agent.Remove(pid)
	if n := agent.runningNow(); n != 0 {
		t.Errorf("%d running threads after Remove", n)
	}
}

// name is that of a process.
func name(t *testing.T, pid int) string {
	t.Helper()
	// nice becomes the program.
	var name string
	Eventually(t, 10*time.Second, "nice becomes the spinner", func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if name = strings.TrimSpace(string(b)); err == nil && name == "nice" {
			err = errors.New("it is still nice")
		}
		return err
	})
	return name
}

func (p *Product) runningNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked(0)
}

// The same promise, kept late by the same spinning threads: they excuse it when they are
// foreign, and do not when they are the product's.
func TestSpinningProductIsNotExcused(t *testing.T) {
	if wanting() == 0 {
		t.Skip("SKIPPED: /proc/loadavg does not say how many threads want to run")
	}
	// With so many processors, only the spinner can be more than they carry, not the other suites of a test run.
	const cpus, threads = 64, 200
	pid := startSpinner(t, threads)
	agent, none := &Product{}, &Product{}
	agent.Add(pid)
	Eventually(t, 10*time.Second, "all threads run", func() error {
		if n := agent.runningNow(); n < threads {
			return fmt.Errorf("%d of %d", n, threads)
		}
		return nil
	})
	foreign, own := newClock(cpus, none.otherThreads), newClock(cpus, agent.otherThreads)
	go foreign.run()
	go own.run()
	start := time.Now()
	time.Sleep(900 * time.Millisecond) // sleep: the loads run
	end := time.Now()
	foreign.Stop()
	own.Stop()
	promise := end.Sub(start) * 2 / 3
	if took := foreign.Between(start, end); took > promise {
		t.Errorf("beside a foreign load %v count of %v: the load does not excuse it", took, end.Sub(start))
	}
	if took := own.Between(start, end); took <= promise {
		t.Errorf("beside its own load %v count of %v: the product excuses itself", took, end.Sub(start))
	}
}

// No load excuses more than the bound.
func TestWallClockBound(t *testing.T) {
	c := newClock(2, func() int { return 1 << 20 })
	from := c.marks[0].at
	const took = 10 * time.Second
	c.look(from.Add(took))
	if got, want := c.Between(from, from.Add(took)), took/Slowest; got != want {
		t.Errorf("%v of %v count, want %v", got, took, want)
	}
	const d = 50 * time.Millisecond
	start := time.Now()
	ctx, cancel := Self().WithTimeout(t.Context(), d)
	defer cancel()
	if latest, ok := ctx.Deadline(); !ok || latest.Sub(start) < Slowest*d || time.Until(latest) > Slowest*d {
		t.Errorf("deadline %v after the start, want %v", latest.Sub(start), Slowest*d)
	}
	<-ctx.Done()
	if took := time.Since(start); took < d {
		t.Errorf("ended after %v, want %v at least", took, d)
	}
}

// TestPast: what passed while nobody looked is not counted in full before a limit is said to have passed.
func TestPast(t *testing.T) {
	c := newClock(2, func() int { return 99 })
	c.marks[0].at = time.Now().Add(-time.Second)
	if got := c.past(2 * time.Second); got < time.Second {
		t.Errorf("before the limit: %v", got)
	}
	if got := c.past(500 * time.Millisecond); got > 400*time.Millisecond {
		t.Errorf("at the limit: %v", got)
	}
}

// A clock is never ahead of the usual one.
func TestElapsed(t *testing.T) {
	start := time.Now()
	c := Self().Start()
	time.Sleep(3 * every) // sleep: the clock runs
	c.Stop()
	if got := c.Elapsed(); got <= 0 || got > time.Since(start) {
		t.Errorf("%v passed", got)
	}
}

// fatal notes what Eventually says.
type fatal struct{ said string }

func (f *fatal) Helper() {}
func (f *fatal) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventually(t *testing.T) {
	tries := 0
	Eventually(t, 10*time.Second, "the third try", func() error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if tries != 3 {
		t.Errorf("%d tries", tries)
	}
	for _, c := range []struct {
		name, says string
		f          func() error
	}{
		{"never", "the sun rises in the west: not within 10ms (", True(func() bool { return false })},
		{"too late", "the sun rises in the west: only after ", func() error {
			time.Sleep(Slowest*10*time.Millisecond + time.Millisecond) // sleep: a slow condition
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fatal{}
			done := make(chan bool)
			go func() {
				defer close(done)
				Eventually(f, 10*time.Millisecond, "the sun rises in the west", c.f)
			}()
			<-done
			if !strings.HasPrefix(f.said, c.says) {
				t.Errorf("said %q, want %q", f.said, c.says)
			}
		})
	}
}
