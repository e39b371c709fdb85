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

// Judge runs checks beside each other. One that panics or blocks takes nothing else with it, and is a finding itself; it is not
// started again before it has returned.
type Judge struct {
	patience time.Duration
	log      *slog.Logger
	slots    []*slot
}

// slot is a check and its last run.
type slot struct {
	Check
	mu    sync.Mutex // nothing else is locked while it is held
	began time.Time  // of the run in progress
	done  chan struct{}
	at    time.Time // when last was found
	last  []Finding
}

// NewJudge returns a judge that waits so long for all checks together.
func NewJudge(patience time.Duration, log *slog.Logger, checks ...Check) *Judge {
	j := &Judge{patience: patience, log: log}
	done := make(chan struct{})
	close(done)
	for _, c := range checks {
		j.slots = append(j.slots, &slot{Check: c, done: done})
	}
	return j
}

// Look is what all checks find, in their order. fresh: also those whose last result still holds look again.
func (j *Judge) Look(ctx context.Context, fresh bool) []Finding {
	limit := time.NewTimer(j.patience)
	defer limit.Stop()
	waiting := make([]<-chan struct{}, len(j.slots))
	for i, s := range j.slots {
		waiting[i] = s.start(ctx, j, fresh)
	}
	over := false
	for _, done := range waiting {
		if over {
			break
		}
		select {
		case <-done:
		case <-limit.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	var out []Finding
	for i, s := range j.slots {
		out = append(out, s.found(waiting[i], j.patience)...)
	}
	return out
}

// start begins a run, unless one is in progress or the last result holds.
func (s *slot) start(ctx context.Context, j *Judge, fresh bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		return s.done
	}
	if !fresh && s.Every > 0 && time.Since(s.at) < s.Every && !s.at.IsZero() {
		return s.done
	}
	s.began, s.done = time.Now(), make(chan struct{})
	go s.run(context.WithoutCancel(ctx), j)
	return s.done
}

func (s *slot) run(ctx context.Context, j *Judge) {
	ctx, cancel := context.WithTimeout(ctx, j.patience)
	defer cancel()
	var found []Finding
	defer func() {
		if r := recover(); r != nil {
			j.log.Error("a check of this node crashed", "check", s.Name, "panic", r, "stack", string(debug.Stack()))
			found = []Finding{hurt(s.Name, "crashed: %v", r)}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at, s.last = time.Now(), found
		close(s.done)
	}()
	found = s.Look(ctx)
}

// found is the last result; a run that takes longer than patience is a finding beside it.
func (s *slot) found(done <-chan struct{}, patience time.Duration) []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-done:
		return s.last
	default:
	}
	if time.Since(s.began) < patience {
		return s.last // the caller had no more time
	}
	return append(s.last[:len(s.last):len(s.last)], hurt(s.Name, "has not returned since %s", s.began.Format(time.TimeOnly)))
}

// hurt says that a check itself fails.
func hurt(name, text string, args ...any) Finding {
	k, _ := Of("judge")
	return Warningf("judge", k.Remedy, "the check of "+name+" "+text, args...).About(name)
}
