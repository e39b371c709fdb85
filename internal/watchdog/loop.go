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

// Begin marks that there is work until end is called. Step and Outside find it by the context.
func (l *Loop) Begin(ctx context.Context) (work context.Context, end func()) {
	if l == nil {
		return ctx, func() {}
	}
	t := l.dog.begin(l.name)
	return context.WithValue(ctx, taskKey{}, t), func() { l.dog.end(t) }
}

// Call is Begin for work that has a name of its own, and neither steps nor requests.
func (l *Loop) Call(kind string) (end func()) {
	if l == nil {
		return func() {}
	}
	t := l.dog.begin(l.name + ": " + kind)
	return func() { l.dog.end(t) }
}

// Step marks that a part of the work of ctx is done.
func Step(ctx context.Context) {
	if t, ok := ctx.Value(taskKey{}).(*task); ok {
		t.steps.Add(1)
	}
}

// Outside marks that the work of ctx waits for another machine until back is called: that is no hang.
func Outside(ctx context.Context) (back func()) {
	t, ok := ctx.Value(taskKey{}).(*task)
	if !ok {
		return func() {}
	}
	t.outside.Add(1)
	return func() { t.steps.Add(1); t.outside.Add(-1) }
}

func (w *Watchdog) begin(name string) *task {
	t := &task{name: name}
	w.mu.Lock()
	w.tasks = append(w.tasks, t)
	w.mu.Unlock()
	if w.cfg.Block != nil {
		w.cfg.Block(name)
	}
	return t
}

func (w *Watchdog) end(t *task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
}
