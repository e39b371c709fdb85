package host

import (
	"slices"
	"sync"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

const (
	// undoneTimes is how often the same repair is made until another program must be at work, undoneWithin how soon each has to
	// follow the one before.
	undoneTimes  = 5
	undoneWithin = 10 * time.Minute
	// undoneRest is how long nothing was repaired when it is over: twice the time between two repairs, at least this long.
	undoneRest = 8 * time.Second
)

// undone counts repairs by what they change: one that returns again and again is undone by another program.
type undone struct {
	mu   sync.Mutex // a leaf
	made []repair   // in the order of the first
}

type repair struct {
	part, what  string
	first, last time.Time
	times       int
}

// add notes that a repair was made.
func (u *undone) add(now time.Time, part, what string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.made = slices.DeleteFunc(u.made, func(r repair) bool { return now.Sub(r.last) > undoneWithin })
	i := slices.IndexFunc(u.made, func(r repair) bool { return r.part == part && r.what == what })
	if i < 0 {
		i = len(u.made)
		u.made = append(u.made, repair{part: part, what: what, first: now})
	}
	u.made[i].last = now
	u.made[i].times++
}

// findings are the parts whose repairs are undone now, one each.
func (u *undone) findings(now time.Time) (out []findings.Finding) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range u.made {
		if r.times < undoneTimes || now.Sub(r.last) > max(undoneRest, 2*r.last.Sub(r.first)/time.Duration(r.times-1)) ||
			slices.ContainsFunc(out, func(f findings.Finding) bool { return f.Subject == r.part }) {
			continue
		}
		kind, _ := findings.Of("undone")
		f := findings.Warningf("undone", kind.Remedy, "%s: another program undoes what the agent sets: repaired %s since %s: %s",
			r.part, wording.Count(r.times, "time"), r.first.Format(time.TimeOnly), r.what).About(r.part)
		f.Since = &r.first
		out = append(out, f)
	}
	return out
}

// Undone are the parts of the kernel's state that another program changes back, whatever Set does.
func (h *Host) Undone() []findings.Finding { return h.undone.findings(time.Now()) }
