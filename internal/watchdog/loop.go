package watchdog

import (
	"context"
	"slices"
	"sync/atomic"
)

// Loop is a part of the program that has work from time to time. Each piece of it is watched by itself: those that come and go
// hide none that hangs. A nil Loop is watched by nobody.
type Loop struct {
	name string
	dog  *Watchdog
}

// task is one piece of work.
type task struct {
	name    string
	steps   atomic.Uint64
	outside atomic.Int64 // requests under way to other machines
}

// taskKey is the key of a task in the context of its work.
type taskKey struct{}

// Loop returns a loop whose work is watched.
func (w *Watchdog) Loop(name string) *Loop { return &Loop{name, w} }

// Begin marks that there is work until end is called. Step and Outside find it by the context.
func (l *Loop) Begin(ctx context.Context) (work context.Context, end func()) {
	if l == nil {
		return ctx, func() {}
	}
	t, w := &task{name: l.name}, l.dog
	w.mu.Lock()
	w.tasks = append(w.tasks, t)
	w.mu.Unlock()
	if w.cfg.Block != nil {
		w.cfg.Block(t.name)
	}
	return context.WithValue(ctx, taskKey{}, t), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
	}
}

// Call is Begin for work that has a name of its own, and neither steps nor requests.
func (l *Loop) Call(kind string) (end func()) {
	if l != nil {
		l = l.dog.Loop(l.name + ": " + kind)
	}
	_, end = l.Begin(context.Background())
	return end
}

// Step marks that a part of the work of ctx is done.
func Step(ctx context.Context) { Outside(ctx)() }

// Outside marks that the work of ctx waits for another machine until back is called: that is no hang.
func Outside(ctx context.Context) (back func()) {
	t, ok := ctx.Value(taskKey{}).(*task)
	if !ok {
		return func() {}
	}
	t.outside.Add(1)
	return func() { t.steps.Add(1); t.outside.Add(-1) }
}

// Work is what a loop works at.
type Work struct {
	Name  string // of the loop, as operators read it
	Steps uint64 // changes whenever it gets something done
	Free  func() // nil, or what may free it: called once, after half of Patience

	key any // the task; of what a source shows: its name
}

// Source shows the loops of one part of the program that have work. It is called every second, never concurrently; while a call
// does not return, that part counts as a loop that hangs.
type Source func(show func(Work))

type source struct {
	*Loop
	look Source
	busy bool   // a look is under way; a task stands for it
	last []Work // what the last look saw
}

// Watch has a source looked at from now on. The name is the finding's where the source itself hangs.
func (w *Watchdog) Watch(name string, look Source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources = append(w.sources, &source{Loop: w.Loop(name), look: look})
}

// works is what all loops work at, of sources as the last look saw it that is over; it has them looked at again.
func (w *Watchdog) works() (all []Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		all = append(all, s.last...)
		if !s.busy {
			s.busy = true
			go s.see()
		}
	}
	for _, t := range w.tasks {
		if t.outside.Load() == 0 {
			all = append(all, Work{Name: t.name, Steps: t.steps.Load(), key: t})
		}
	}
	return all
}

// see looks at the source once.
func (s *source) see() {
	_, end := s.Begin(context.Background())
	defer end()
	var all []Work
	s.look(func(x Work) { x.key = x.Name; all = append(all, x) })
	s.dog.mu.Lock()
	defer s.dog.mu.Unlock()
	s.busy, s.last = false, all
}
