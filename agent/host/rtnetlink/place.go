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
	width   int         // how many priorities ours have from there on
	lowest  int         // the lowest of all at the last look: what is added without a priority gets the one before
	left    int         // where ours were until the last look, if lower: what was added while they moved got the one before that; else 0
	most    int         // after an answer: those that come back find ours before them
	answers []time.Time // moves, in the last hour, before rules whose priority another program has chosen
	moves   []time.Time // moves, in the last minute, before rules without one
}

// around are the priorities of other programs' rules in the kernel, except those at 0, where it has the local table.
type around struct {
	others []int // which ours stand before
	lowest int   // of all, also those that ours may stand behind; 0 for none
	local  int   // of the local table, where a program has moved it: ours stay behind it
	found  int   // our first one; 0 for none
}

// spare is how many priorities an answer leaves free, for more rules of that program.
const spare = 50

// movesAMinute bounds how often ours move before rules without a priority: a program that adds its own again whenever it is not the
// first would be answered without end.
const movesAMinute = 20

// manyMoves within a minute are more than a program makes when it starts.
const manyMoves = 5

// answerAtMost is where our rules are after each of an hour's answers, at most: the last ones leave room for other programs.
func answerAtMost() []int { return []int{plan.MainRule, 5200, 100} }

// decide returns the place for width priorities of ours. In keep mode the other plugin's own rules stay before ours.
func (p place) decide(now time.Time, have around, width int, keep bool) place {
	top, first := plan.MainRule-width, p.at == 0
	bottom := min(have.local+1, top)
	if keep {
		top = max(bottom, plan.KeepRule)
	}
	if first {
		p.at, p.width = cmp.Or(have.found, top), width
		p.lowest = p.at
	}
	p.answers, p.moves = since(p.answers, now.Add(-time.Hour)), since(p.moves, now.Add(-time.Minute))
	if len(p.answers) > 0 {
		top = min(top, p.most)
	}
	unnumbered, behind := have.before(p.lowest), have.before(p.left)
	ahead, chosen := 0, false
	for _, o := range have.others {
		// One at our own priorities got it while ours moved there: the kernel puts what comes later behind ours.
		switch numbered := (o < unnumbered || o >= p.lowest && o < p.at) && (o < behind || o >= p.left); {
		case o >= p.at+p.width:
			top = min(top, o-width)
		case numbered && keep, o < bottom:
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
	case !chosen && (first || len(p.moves) < movesAMinute):
		p.at = to
		p.moves = append(p.moves, now)
	case !chosen: // later, and what comes meanwhile has no priority either
		p.width = width
		return p
	default:
		if most := answerAtMost(); len(p.answers) < len(most) {
			p.at = min(to-min(spare, to/2), max(1, most[len(p.answers)]-width))
			p.most, p.answers = p.at, append(p.answers, now)
		}
	}
	p.at, p.width, p.left = max(p.at, bottom), width, 0
	if have.found < p.at {
		p.left = have.found
	}
	p.lowest = p.at
	if !keep {
		p.lowest = min(p.at, cmp.Or(have.lowest, p.at))
	}
	return p
}

// before is the lowest of the rules that stand without a gap before a priority, or that itself.
func (a around) before(priority int) int {
	for slices.Contains(a.others, priority-1) {
		priority--
	}
	return priority
}

// since returns the times after began.
func since(all []time.Time, began time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(all), func(t time.Time) bool { return !t.After(began) })
}
