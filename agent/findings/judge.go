package findings

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Check is one part of a judgement: it looks at facts and says what it finds.
type Check struct {
	Name  string
	Every time.Duration // its result holds for so long; 0: it is cheap, and looks each time
	Look  func(context.Context) []Finding
}

// Afresh has all checks look again, also those whose last result holds.
const Afresh time.Duration = -1

// slack is how long a look waits for checks after it has ended their contexts, at most.
const slack = 2 * time.Second

// Judge runs checks beside each other. One that panics or blocks takes nothing else with it, and is a finding itself; it is not
// started again before it has returned.
type Judge struct {
	log   *slog.Logger
	slots []*slot
	ctx   context.Context //nolint:containedctx // of all runs, until Close
	close context.CancelFunc
}

// slot is a check and its last run.
type slot struct {
	Check
	mu      sync.Mutex // nothing else is locked while it is held
	began   time.Time  // of the run in progress
	until   time.Time  // when it should have returned
	waiting int        // looks that wait for it
	cancel  context.CancelFunc
	done    chan struct{}
	at      time.Time // when last was found; zero: none that holds
	last    []Finding
}

// NewJudge returns a judge, which is to be closed.
func NewJudge(log *slog.Logger, checks ...Check) *Judge {
	j := &Judge{log: log}
	j.ctx, j.close = context.WithCancel(context.Background())
	done := make(chan struct{})
	close(done)
	for _, c := range checks {
		j.slots = append(j.slots, &slot{Check: c, done: done})
	}
	return j
}

// Close ends all runs, and waits for them; not for long, as one may hang.
func (j *Judge) Close() {
	j.close()
	limit := time.After(slack)
	for _, s := range j.slots {
		s.mu.Lock() // nothing starts from now on
		done := s.done
		s.mu.Unlock()
		select {
		case <-done:
		case <-limit:
			return
		}
	}
}

// Look is what all checks find, in their order, when each has so much time. What is not older than reuse, or than its check's
// Every, need not be looked for again. A run is ended once the contexts of all who waited for it are.
func (j *Judge) Look(ctx context.Context, patience, reuse time.Duration) []Finding {
	limit := time.NewTimer(patience + min(patience, slack))
	defer limit.Stop()
	waiting := make([]<-chan struct{}, len(j.slots))
	for i, s := range j.slots {
		waiting[i] = s.start(j, patience, reuse)
	}
	over := false
	for i, s := range j.slots {
		if over || s.hangs(waiting[i]) {
			continue
		}
		select {
		case <-waiting[i]:
		case <-limit.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	var out []Finding
	for i, s := range j.slots {
		out = append(out, s.found(waiting[i], ctx.Err() != nil)...)
	}
	return out
}

// start begins a run, unless one is in progress or the last result holds.
func (s *slot) start(j *Judge, patience, reuse time.Duration) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	select {
	case <-s.done:
	default:
		return s.done
	}
	holds := reuse != Afresh && s.Every > 0 && !s.at.IsZero() && time.Since(s.at) < max(s.Every, reuse)
	if holds || j.ctx.Err() != nil {
		return s.done
	}
	s.began, s.done = time.Now(), make(chan struct{})
	s.until = s.began.Add(patience)
	ctx, cancel := context.WithDeadline(j.ctx, s.until)
	s.cancel = cancel
	go s.run(ctx, cancel, j.log)
	return s.done
}

func (s *slot) run(ctx context.Context, cancel context.CancelFunc, log *slog.Logger) {
	defer cancel()
	var found []Finding
	defer func() {
		crash := recover()
		s.mu.Lock()
		defer s.mu.Unlock()
		if crash != nil {
			found = []Finding{hurt(s.Name, "crashed: %v", crash)}
			if len(s.last) != 1 || s.last[0].Text != found[0].Text {
				log.Error("a check of this node crashed", "check", s.Name, "panic", crash, "stack", string(debug.Stack()))
			}
		}
		s.at, s.last = time.Now(), found
		if ctx.Err() == context.Canceled { //nolint:errorlint // the context's own
			s.at = time.Time{} // it was not given the time
		}
		close(s.done)
	}()
	found = s.Look(ctx)
}

// hangs reports whether the run is known not to return in time.
func (s *slot) hangs(done <-chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-done:
		return false
	default:
		return time.Now().After(s.until)
	}
}

// found is the last result, when one look less waits for it; a run that takes longer than it may is a finding beside it.
func (s *slot) found(done <-chan struct{}, gone bool) []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	select {
	case <-done:
		return s.last
	default:
	}
	if gone && s.waiting == 0 {
		s.cancel()
	}
	if time.Now().Before(s.until) {
		return s.last // the caller had no more time
	}
	return append(s.last[:len(s.last):len(s.last)], hurt(s.Name, "has not returned since %s", s.began.Format(time.TimeOnly)))
}

// hurt says that a check itself fails.
func hurt(name, text string, args ...any) Finding {
	k, _ := Of("judge")
	return Warningf("judge", k.Remedy, "the check of "+name+" "+text, args...).About(name)
}
