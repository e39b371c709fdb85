package findings

import (
	"sync"
	"time"
)

// ProbedFor is how long what doctor's probes saw is reported after them.
const ProbedFor = 10 * time.Minute

// Tracker knows since when each finding is there. The zero value has seen nothing.
type Tracker struct {
	mu     sync.Mutex              // nothing else is locked while it is held
	since  map[[3]string]time.Time // of what the agent sees, by finding
	looked time.Time               // when the look began that since is from
	probed []Finding               // what doctor saw last that the agent cannot see
	at     time.Time               // when that was
}

// Probed notes what doctor found. Of it the agent continues to report what it cannot see itself.
func (t *Tracker) Probed(now time.Time, all []Finding) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.probed = now, nil
	for _, f := range all {
		if k, _ := Of(f.ID); k.Seen == ByDoctor && f.Severity != OK && f.Severity != Skipped {
			f.Source, f.Since = Doctor, &now
			t.probed = append(t.probed, f.Bounded())
		}
	}
}

// Checked are the results of all of doctor's checks at now: bounded, with the source of each, since when the agent has seen those
// that it sees too, and without the consequences of others.
func (t *Tracker) Checked(now time.Time, all []Finding) []Finding {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Finding, len(all))
	for i, f := range all {
		f = f.Bounded()
		if f.Severity.Wrong() || f.Severity == Note {
			f.Source = Doctor
			if at, seen := t.since[f.key()]; seen && f.Since == nil {
				f.Since, f.Source = &at, Agent
			} else if f.Since == nil {
				f.Since = &now
			}
		}
		out[i] = f
	}
	return Causes(out)
}

// Now is what there is, when the agent itself, in a look that began at now, sees all: bounded, with what doctor saw within the last minutes, since
// when each is there, and without the consequences of others.
func (t *Tracker) Now(now time.Time, all []Finding) []Finding {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := map[[3]string]time.Time{}
	var out []Finding
	for _, f := range all {
		if k, _ := Of(f.ID); f.Severity == OK || f.Severity == Skipped || k.Seen == ByDoctor {
			continue
		}
		f = f.Bounded()
		at, before := t.since[f.key()]
		switch {
		case f.Since != nil: // whoever found it knows
			at = *f.Since
		case !before:
			at = now
		}
		since[f.key()], f.Since = at, &at
		if f.Source == "" {
			f.Source = Agent
		}
		out = append(out, f)
	}
	if !now.Before(t.looked) { // looks run beside each other
		t.since, t.looked = since, now
	}
	if now.Sub(t.at) < ProbedFor {
		for _, f := range t.probed {
			if _, seen := since[f.key()]; !seen {
				out = append(out, f)
			}
		}
	}
	return Causes(out)
}
