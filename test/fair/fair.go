// Package fair measures time by what the machine gives, so that a test on a machine
// that others load, or that is short of processors, waits as long as its promise
// would take there, and one that has the machine to itself not a moment longer.
//
// While more threads want to run than there are processors, time passes slower: at
// half the speed where twice as many want to. The number is that of /proc/loadavg
// (proc_loadavg(5), fourth field); without it this is the usual time.
package fair

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	// every is the time between two looks at the machine; a context looks seldom.
	every  = 20 * time.Millisecond
	seldom = 100 * time.Millisecond
	// Slowest is how many times longer than promised something may take at most.
	Slowest = 20
)

// Clock is a fair clock, from its Start to its Stop.
type Clock struct {
	cpus    float64
	wanting func() int // threads that want to run, this one not counted; -1: not known
	quit    chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	marks []mark
}

// mark is how much fair time had passed at a moment.
type mark struct {
	at   time.Time
	fair time.Duration
}

// Start starts a clock. Stop it.
func Start() *Clock {
	return start(every)
}

func start(every time.Duration) *Clock {
	c := newClock(runtime.NumCPU(), runnable)
	go c.run(every)
	return c
}

func newClock(cpus int, wanting func() int) *Clock {
	return &Clock{cpus: float64(cpus), wanting: wanting, quit: make(chan struct{}), done: make(chan struct{}), marks: []mark{{at: time.Now()}}}
}

// Stop ends the clock's looking; what it saw can still be asked for.
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

// Between is the fair time between two moments since the start; never more than the usual time.
func (c *Clock) Between(from, to time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(to) - c.at(from)
}

// at is the fair time that had passed at a moment; after the last look it goes on as
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
		return m.fair + time.Duration(float64(t.Sub(m.at))*float64(next.fair-m.fair)/float64(next.at.Sub(m.at)))
	}
	return 0
}

func (c *Clock) run(every time.Duration) {
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
	speed := 1.0
	if n := float64(c.wanting()); n > c.cpus {
		speed = max(c.cpus/n, 1.0/Slowest)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.marks[len(c.marks)-1]
	if passed := now.Sub(last.at); passed > 0 {
		c.marks = append(c.marks, mark{now, last.fair + time.Duration(float64(passed)*speed)})
	}
}

// runnable counts the threads that want to run, but for the one that counts.
func runnable() int {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	fields := bytes.Fields(b)
	if len(fields) < 4 {
		return -1
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	n, err := strconv.Atoi(string(running))
	if err != nil {
		return -1
	}
	return n - 1
}

// WithTimeout returns a context that ends when d of fair time has passed. Its deadline
// is the latest that can be.
func WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, Slowest*d)
	c := start(seldom)
	go func() {
		defer c.Stop()
		defer cancel()
		for {
			left := d - c.Elapsed()
			if left <= 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(left):
			}
		}
	}()
	return ctx, cancel
}
