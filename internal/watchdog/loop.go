package watchdog

import "sync/atomic"

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
