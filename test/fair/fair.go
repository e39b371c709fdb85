// Package fair measures time by what the machine gives to the product under test. A test
// on a machine that others load waits as long as its promise would take there; a test
// that has the machine to itself does not wait a moment longer.
//
//	fair.go     the clock
//	machine.go  how many threads want to run, and whose they are
//	wait.go     timeouts and Eventually
//
// # How fast the clock goes
//
// While F threads that are not the product's want to run on C processors, one thread of
// the product beside them gets C/(F+1) of a processor. The clock goes that fast, never
// faster than the usual one. F is what wants to run on the whole machine (proc_loadavg(5),
// fourth field) less the product's own threads in state R (proc_pid_stat(5)).
//
// The product's own processor time never slows the clock: an agent that spins, or that
// starts iptables in a loop, fails its promises. The load of everything else does: other
// tests, compilers, the generators of traffic and the test itself where the product runs
// in processes of its own.
//
// Every promise has a wall-clock bound beside it: Slowest times what was promised. No load
// excuses more, because the clock never goes slower than that.
//
// # Who the product is
//
// A Product is a set of processes with their descendants. Package lab adds every process
// of ours that it starts to the lab's Product, so that labs beside each other are other
// load to each other. Named finds processes by name where another program starts them, as
// containerd does. Self is the test process, where the product runs inside it: its
// goroutines, the test's own among them, are the product then. The functions of this
// package without a Product are those of Self.
package fair

import (
	"runtime"
	"sync"
	"time"
)

const (
	// every is the time between two looks at the machine.
	every = 50 * time.Millisecond
	// Slowest is the wall-clock bound: how many times longer than promised something may
	// take, whatever the machine's load.
	Slowest = 4
)

// Clock is a fair clock, from its Start to its Stop.
type Clock struct {
	cpus  float64
	other func() int // threads that want to run and are not the product's
	quit  chan struct{}
	done  chan struct{}

	mu    sync.Mutex
	marks []mark
}

// mark is how much fair time had passed at a moment.
type mark struct {
	at   time.Time
	fair time.Duration
}

// Start starts a clock that p's own load does not slow. Stop it.
func (p *Product) Start() *Clock {
	c := newClock(runtime.NumCPU(), p.otherThreads)
	go c.run()
	return c
}

// Start starts the clock of Self.
func Start() *Clock { return self.Start() }

func newClock(cpus int, other func() int) *Clock {
	return &Clock{
		cpus:  float64(cpus),
		other: other,
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
		marks: []mark{{at: time.Now()}},
	}
}

// Stop ends the clock's looking; what it saw can still be read.
func (c *Clock) Stop() {
	close(c.quit)
	<-c.done
}

// Elapsed is the fair time since the start.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(time.Now())
}

// past is Elapsed, with another look before it says that limit has passed: where the clock could not look for a while, as
// others had the machine, that time would be counted in full.
func (c *Clock) past(limit time.Duration) time.Duration {
	if c.Elapsed() >= limit {
		c.look(time.Now())
	}
	return c.Elapsed()
}

// Between is the fair time between two moments since the start. It is never more than the
// usual time, and never less than the usual time divided by Slowest.
func (c *Clock) Between(from, to time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(to) - c.at(from)
}

// at is the fair time that had passed at a moment; after the last look it passes as
// the usual time does.
func (c *Clock) at(t time.Time) time.Duration {
	for i := len(c.marks) - 1; i >= 0; i-- {
		m := c.marks[i]
		if t.Before(m.at) {
			continue
		}
		if i+1 == len(c.marks) {
			return m.fair + t.Sub(m.at)
		}
		next := c.marks[i+1]
		speed := float64(next.fair-m.fair) / float64(next.at.Sub(m.at))
		return m.fair + time.Duration(speed*float64(t.Sub(m.at)))
	}
	return 0
}

func (c *Clock) run() {
	defer close(c.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.quit:
			return
		case <-tick.C:
			c.look(time.Now())
		}
	}
}

// look notes the time that has passed since the last look, at the machine's present speed.
func (c *Clock) look(now time.Time) {
	speed := speed(c.cpus, c.other())
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.marks[len(c.marks)-1]
	if passed := now.Sub(last.at); passed > 0 {
		c.marks = append(c.marks, mark{now, last.fair + time.Duration(float64(passed)*speed)})
	}
}

// speed is what one thread gets of a processor beside so many others.
func speed(cpus float64, others int) float64 {
	return min(1, max(cpus/float64(others+1), 1.0/Slowest))
}
