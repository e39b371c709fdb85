package watchdog

import (
	"slices"
	"time"
)

// Work is where a loop stands.
type Work struct {
	Name  string // as operators read it
	Busy  bool   // it has work
	Steps uint64 // changes whenever it gets something done, or waits for work
	Free  func() // nil, or what may free it: called once, after half of Patience

	task *task // nil: a source shows it, under a name of its own
}

// id is what distinguishes one work from others.
type id struct {
	name string
	task *task
}

func (w Work) id() id { return id{w.Name, w.task} }

// Hung is a loop that hangs.
type Hung struct {
	Name  string
	Since time.Time // its last progress, within some seconds
	Why   string    // why that is only reported, "": it is not, the process is ended
}

// judge says which loops hang. Time counts only while the judge itself ran on schedule: a machine that was suspended, a
// process that was stopped and one that got no processor accuse nobody.
type judge struct {
	last  time.Duration // of the last look, since the boot
	loops map[id]*stalled
}

// stalled is a loop that has had work since it made progress.
type stalled struct {
	steps uint64
	since time.Time
	time  time.Duration // that counts
	waits time.Duration // that does not: the process waited in a call of the kernel
	freed bool
	hung  bool // until it makes progress
}

// look takes what is seen of all loops now, and returns those that hang and what may free others. waits reports whether the
// process waits in a call of the kernel: no time counts then.
func (j *judge) look(now time.Duration, all []Work, waits func() bool) (hung []Hung, free []func()) {
	passed := now - j.last
	j.last = now
	onTime := passed <= j.next()+late
	loops := make(map[id]*stalled)
	for _, x := range all {
		if !x.Busy {
			continue
		}
		s := j.loops[x.id()]
		if s == nil || s.steps != x.Steps {
			s = &stalled{steps: x.Steps, since: time.Now()}
		} else if !onTime {
			s.time, s.waits = 0, 0
		} else {
			s.time += passed
		}
		loops[x.id()] = s
	}
	if onTime && anyStalled(loops) && waits() {
		for _, s := range loops {
			s.time = max(0, s.time-passed)
			s.waits += passed
		}
	}
	for _, x := range all {
		s := loops[x.id()]
		if s == nil {
			continue
		}
		if s.time >= Patience/2 && !s.freed && x.Free != nil {
			s.freed = true
			free = append(free, x.Free)
		}
		if s.hung = s.hung || s.time > Patience-closer/2; s.hung { // looks do not come to the microsecond
			hung = add(hung, Hung{Name: x.Name, Since: s.since})
		} else if s.waits >= waitsLong {
			hung = add(hung, Hung{x.Name, s.since, "a thread waits for a disk, for another program's lock of a file or for a child, which a restart does not end"})
		}
	}
	j.loops = loops
	return hung, free
}

// add adds a loop, once for all of its work that hangs for the same reason.
func add(all []Hung, h Hung) []Hung {
	if slices.ContainsFunc(all, func(o Hung) bool { return o.Name == h.Name && o.Why == h.Why }) {
		return all
	}
	return append(all, h)
}

// next is when to look again: soon, where it is about to matter.
func (j *judge) next() time.Duration {
	if len(j.loops) > 0 {
		return closer
	}
	return every
}

func anyStalled(loops map[id]*stalled) bool {
	for _, s := range loops {
		if s.time > 0 {
			return true
		}
	}
	return false
}
