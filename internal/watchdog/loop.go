package watchdog

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Loop is what a loop marks: it works between Begin and End, and otherwise waits for work. Several goroutines may share one; then
// the work of any of them is progress. A nil one is watched by nobody.
type Loop struct {
	name         string
	begun, ended atomic.Uint64
	steps        atomic.Uint64
	outside      atomic.Int64      // requests under way to other machines
	block        func(loop string) // of tests
}

// Begin marks that there is work.
func (l *Loop) Begin() {
	if l == nil {
		return
	}
	l.begun.Add(1)
	if l.block != nil {
		l.block(l.name)
	}
}

// Step marks that some of it is done.
func (l *Loop) Step() {
	if l != nil {
		l.steps.Add(1)
	}
}

// End marks that it is done.
func (l *Loop) End() {
	if l != nil {
		l.ended.Add(1)
	}
}

// Outside marks that the work waits for another machine until the function that it returns is called: that is no hang.
func (l *Loop) Outside() (back func()) {
	if l == nil {
		return func() {}
	}
	l.outside.Add(1)
	return func() { l.Step(); l.outside.Add(-1) }
}

func (l *Loop) work() Work {
	ended := l.ended.Load() // first: work that begins meanwhile is still work
	return Work{Name: l.name, Busy: l.begun.Load() != ended && l.outside.Load() == 0, Steps: ended + l.steps.Load()}
}

// Calls are what others want of a part of the program, at the same time. Of each kind the oldest one has to end: those that come
// and go hide none that hangs. Nil ones are watched by nobody.
type Calls struct {
	name  string
	block func(loop string) // of tests

	mu    sync.Mutex // a leaf
	last  uint64
	under map[string][]uint64 // those under way, by kind and in order
}

// Begin marks that there is a call, until the function that it returns is called.
func (c *Calls) Begin(kind string) (end func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	c.last++
	n := c.last
	c.under[kind] = append(c.under[kind], n)
	c.mu.Unlock()
	if c.block != nil {
		c.block(c.loop(kind))
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.under[kind] = slices.DeleteFunc(c.under[kind], func(x uint64) bool { return x == n })
	}
}

func (c *Calls) loop(kind string) string { return c.name + ": " + kind }

func (c *Calls) watch(show func(Work)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for kind, all := range c.under {
		if len(all) > 0 {
			show(Work{Name: c.loop(kind), Busy: true, Steps: all[0]})
		}
	}
}
