package host

import (
	"slices"
	"strings"
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

// add notes that a repair was made, and returns how often by now.
func (u *undone) add(now time.Time, part, what string) (times int) {
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
	return u.made[i].times
}

// forget starts again: something else is wanted.
func (u *undone) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.made = nil
}

// finding is what is undone now: the part that may be the cause of the others first.
func (u *undone) finding(now time.Time) []findings.Finding {
	u.mu.Lock()
	defer u.mu.Unlock()
	var parts []string
	var all []repair // one of each part
	for _, r := range u.made {
		rest := max(undoneRest, 2*r.last.Sub(r.first)/time.Duration(max(r.times-1, 1)))
		if r.times >= undoneTimes && now.Sub(r.last) <= rest && !slices.Contains(parts, r.part) {
			parts, all = append(parts, r.part), append(all, r)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b repair) int { return rank(a.part) - rank(b.part) })
	first, more := all[0], ""
	for _, r := range all[1:] {
		more += ", " + r.part
	}
	if more != "" {
		more = "; also of" + strings.TrimPrefix(more, ",")
	}
	f := findings.Warningf("undone", remedyOf("undone"), "another program undid what the agent had set, %s since %s, and each time the agent did it again: %s: %s%s",
		wording.Count(first.times, "time"), first.first.Format(time.TimeOnly), first.part, first.what, more)
	f.Since = &first.first
	return []findings.Finding{f}
}

// Undone says whether another program changes back what Set does.
func (h *Host) Undone() []findings.Finding { return h.undone.finding(time.Now()) }
