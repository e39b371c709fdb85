package rtnetlink

import (
	"cmp"
	"slices"
	"time"

	"edgemesh/agent/host/plan"
)

// place is where our rules of one family stand: directly before the first rule of other programs.
//
// The kernel gives a rule that is added without a priority the one before the second rule's, and the second is ours: so such
// a rule stands before ours, and before all that were added like this earlier. Ours move before it. The order among the others
// is what it would be without us, also where they have priorities: a rule without one is as near to theirs as it would be.
type place struct {
	at      int         // the priority of the first of ours; 0: not known yet
	lowest  int         // the lowest of all at the last look: what is added without a priority gets the one before
	most    int         // after an answer: those that come back find ours before them
	answers []time.Time // moves, in the last hour, before rules whose priority another program has chosen
}

// spare is how many priorities an answer leaves free, for more rules of that program.
const spare = 50

// answerAtMost is where our rules are after each of an hour's answers, at most: the last ones leave room for other programs.
func answerAtMost() []int { return []int{plan.MainRule, 5200, 100} }

// decide returns the place for width priorities of ours. others are the priorities of other programs' rules, except those at 0,
// where the kernel has the local table; found is our first one in the kernel, 0 for none. In keep mode the other plugin's own
// rules stay before ours.
func (p place) decide(now time.Time, others []int, found, width int, keep bool) place {
	top, first := plan.MainRule-width, p.at == 0
	if keep {
		top = plan.KeepRule
	}
	if first {
		p.at = cmp.Or(found, top)
		p.lowest = p.at
	}
	p.answers = slices.DeleteFunc(slices.Clone(p.answers), func(t time.Time) bool { return now.Sub(t) >= time.Hour })
	if len(p.answers) > 0 {
		top = min(top, p.most)
	}
	unnumbered := p.lowest
	for slices.Contains(others, unnumbered-1) {
		unnumbered--
	}
	ahead, chosen := 0, false
	for _, o := range others {
		switch numbered := o < unnumbered || o >= p.lowest; {
		case o >= p.at+width:
			top = min(top, o-width)
		case numbered && keep:
		default:
			chosen = chosen || numbered && !first
			if ahead == 0 || o < ahead {
				ahead = o
			}
		}
	}
	switch to := ahead - width; {
	case ahead == 0:
		p.at = top
	case to < 1: // no room
	case !chosen:
		p.at = to
	default:
		if most := answerAtMost(); len(p.answers) < len(most) {
			p.at = min(to-min(spare, to/2), max(1, most[len(p.answers)]-width))
			p.most, p.answers = p.at, append(p.answers, now)
		}
	}
	p.lowest = p.at
	if !keep {
		p.lowest = min(p.at, slices.Min(append(others, p.at)))
	}
	return p
}
