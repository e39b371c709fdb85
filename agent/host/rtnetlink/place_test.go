package rtnetlink

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/host/plan"
)

// ruleList is a model of the kernel's list (net/core/fib_rules.c): by priority, of equal ones the older first. A rule without
// a priority gets the one before the second's.
type ruleList []listed

type listed struct {
	priority int
	name     string
}

func newRuleList() ruleList { return ruleList{{0, "local"}, {32766, "main"}, {32767, "default"}} }

func (l *ruleList) add(priority int, name string) {
	if priority < 0 {
		priority = max(0, (*l)[1].priority-1)
	}
	at := slices.IndexFunc(*l, func(r listed) bool { return r.priority > priority })
	if at < 0 {
		at = len(*l)
	}
	*l = slices.Insert(*l, at, listed{priority, name})
}

func (l *ruleList) remove(name string) {
	*l = slices.DeleteFunc(*l, func(r listed) bool { return r.name == name })
}

// names are those of other programs' rules, in order.
func (l ruleList) names() string {
	var out []string
	for _, r := range l {
		if r.name != "ours" {
			out = append(out, r.name)
		}
	}
	return strings.Join(out, " ")
}

// look makes the kernel hold our rule where p decides.
func (l *ruleList) look(p *place, now time.Time, keep bool) { l.lookWhile(p, now, keep, func() {}) }

// lookWhile is look; another program does something between what is read and what is written.
func (l *ruleList) lookWhile(p *place, now time.Time, keep bool, other func()) {
	var have around
	for _, r := range *l {
		if r.name == "ours" {
			have.found = r.priority
		} else if r.priority > 0 {
			have.others = append(have.others, r.priority)
			have.lowest = min(r.priority, cmp.Or(have.lowest, r.priority))
		}
	}
	*p = p.decide(now, have, 1, keep)
	if other(); p.at != have.found {
		l.add(p.at, "moved")
		l.remove("ours")
		(*l)[slices.IndexFunc(*l, func(r listed) bool { return r.name == "moved" })].name = "ours"
	}
}

func (l ruleList) first(t *testing.T) {
	t.Helper()
	if l[1].name != "ours" {
		t.Fatalf("ours are not the first: %v", l)
	}
}

// TestPlaceKeepsTheOrderOfOthers: whatever other programs add and delete, their rules are in the order that they have without
// us, and ours come first.
func TestPlaceKeepsTheOrderOfOthers(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 55))
		here, without, now := newRuleList(), newRuleList(), time.Unix(0, 0)
		var p place
		var added []string
		if seed%3 > 0 {
			here.look(&p, now, false)
		}
		add := func(priority int, name string) {
			here.add(priority, name)
			without.add(priority, name)
			added = append(added, name)
		}
		numbered := rnd.Perm(30)
		for step := range 40 {
			switch name := fmt.Sprint("r", step); rnd.IntN(8) {
			case 0, 1, 2:
				for i := range min(len(added), 1+rnd.IntN(3)) {
					i = rnd.IntN(len(added))
					here.remove(added[i])
					without.remove(added[i])
					added = slices.Delete(added, i, i+1)
				}
			case 3:
				add(1000*(1+numbered[step%len(numbered)]), name)
				here.look(&p, now, false)
				now = now.Add(time.Hour) // the place that an answer left free is used again
			default:
				for i := range 1 + rnd.IntN(3) {
					add(-1, fmt.Sprint(name, "-", i))
				}
			}
			now = now.Add(10 * time.Second)
			here.look(&p, now, false)
			here.first(t)
			if here.names() != without.names() {
				t.Fatalf("seed %d, step %d: order is\n%s\nand without us\n%s", seed, step, here.names(), without.names())
			}
		}
		for _, name := range added {
			here.remove(name)
		}
		if here.look(&p, now.Add(time.Hour), false); here[1] != (listed{plan.MainRule - 1, "ours"}) {
			t.Fatalf("seed %d: alone, ours are not before main: %v", seed, here)
		}
	}
}

// TestPlaceOfVPN: wg-quick's pair, before us, after us, and again and again.
func TestPlaceOfVPN(t *testing.T) {
	up := func(l *ruleList) { l.add(-1, "not-fwmark"); l.add(-1, "suppress") }
	var before place
	l := newRuleList()
	up(&l)
	l.look(&before, time.Now(), false)
	l.first(t)
	if l.names() != "local suppress not-fwmark main default" {
		t.Errorf("wg-quick first: %v", l)
	}
	var after place
	l = newRuleList()
	now := time.Now()
	l.look(&after, now, false)
	for range 2 * plan.MainRule {
		now = now.Add(10 * time.Second)
		up(&l)
		l.look(&after, now, false)
		l.first(t)
		if l.names() != "local suppress not-fwmark main default" || len(after.answers) > 0 {
			t.Fatalf("wg-quick second: %v, answers %v", l, after.answers)
		}
		l.remove("suppress")
		l.remove("not-fwmark")
		l.look(&after, now, false)
	}
}

// TestPlaceOfVPNWhileMoving: wg-quick's second rule gets the priority to which ours are about to move. That is no priority that a
// program has chosen: ours return before main once the VPN is down.
func TestPlaceOfVPNWhileMoving(t *testing.T) {
	l, p, now := newRuleList(), place{}, time.Now()
	l.look(&p, now, false)
	start := p.at
	for range manyMoves {
		l.add(-1, "mark")
		l.lookWhile(&p, now, false, func() { l.add(-1, "suppress") })
		l.look(&p, now, false)
		l.first(t)
		if names := l.names(); names != "local suppress mark main default" {
			t.Fatalf("%s", names)
		}
		l.remove("mark")
		l.remove("suppress")
		if l.look(&p, now, false); p.at != start {
			t.Fatalf("ours are at %d without the VPN, want %d", p.at, start)
		}
	}
}

// TestPlaceOfVPNWhileReturning: wg-quick's rules get the priorities before the place that ours are about to leave for the one before main.
func TestPlaceOfVPNWhileReturning(t *testing.T) {
	l, p, now := newRuleList(), place{}, time.Now()
	l.look(&p, now, false)
	start := p.at
	up := func() { l.add(-1, "mark"); l.add(-1, "suppress") }
	up()
	for range manyMoves {
		l.look(&p, now, false)
		l.remove("mark")
		l.remove("suppress")
		l.lookWhile(&p, now, false, up)
		l.look(&p, now, false)
		l.first(t)
		if names := l.names(); names != "local suppress mark main default" || len(p.answers) > 0 {
			t.Fatalf("%s, answers %v", names, p.answers)
		}
	}
	l.remove("mark")
	l.remove("suppress")
	if l.look(&p, now, false); p.at != start {
		t.Fatalf("ours are at %d without the VPN, want %d", p.at, start)
	}
}

// TestPlaceBeforeChosenPriorities: rules with a priority are answered three times an hour, and not in keep mode.
func TestPlaceBeforeChosenPriorities(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := newRuleList()
	l.add(1001, "mwan3") // before the agent's start: no answer
	var p place
	l.look(&p, now, false)
	l.first(t)
	if len(p.answers) != 0 || p.at != 1000 {
		t.Errorf("at the start: at %d, answers %v", p.at, p.answers)
	}
	for range 5 { // within the hour: a program that starts again and again has the same priorities
		l.remove("mwan3")
		l.look(&p, now, false)
		l.add(1001, "mwan3")
		l.look(&p, now, false)
		l.first(t)
	}
	if len(p.answers) != 1 {
		t.Errorf("one program's priority was answered %d times", len(p.answers))
	}
	chase := func() { l.add(p.at-1-1, fmt.Sprint("chaser", p.at)); l.look(&p, now, false) }
	chase()
	chase()
	l.first(t)
	chase()
	if l[1].name == "ours" || len(p.answers) != 3 {
		t.Errorf("a fourth answer within the hour: %v, answers %v", l, p.answers)
	}
	now = now.Add(59 * time.Minute)
	l.look(&p, now, false)
	if l[1].name == "ours" {
		t.Errorf("answered within the hour: %v", l)
	}
	now = now.Add(2 * time.Minute)
	l.look(&p, now, false)
	l.first(t)

	l, p = newRuleList(), place{}
	l.add(1, "first")
	l.look(&p, now, false) // no room before it
	if p.at != plan.MainRule-1 {
		t.Errorf("ours are at %d", p.at)
	}

	l, p = newRuleList(), place{}
	l.add(100, "plugin")
	l.look(&p, now, true)
	l.add(2000, "plugin")
	l.look(&p, now, true)
	l.add(-1, "newcomer") // 99: as the plugin's would be
	l.look(&p, now, true)
	if p.at != plan.KeepRule || len(p.answers) > 0 {
		t.Errorf("keep mode: ours are at %d, answers %v", p.at, p.answers)
	}
	l, p = newRuleList(), place{}
	l.look(&p, now, true)
	l.add(-1, "not-fwmark")
	l.add(-1, "suppress")
	l.look(&p, now, true)
	l.first(t)
}

// TestPlaceIsNotChased: a program that adds its rule again without a priority whenever it is not the first.
func TestPlaceIsNotChased(t *testing.T) {
	now, l := time.Unix(1e9, 0), newRuleList()
	var p place
	l.look(&p, now, false)
	moved := 0
	for range 600 {
		now = now.Add(100 * time.Millisecond)
		l.remove("chaser")
		l.add(-1, "chaser")
		before := p.at
		if l.look(&p, now, false); p.at < before {
			moved++
		}
	}
	if moved < 5 || moved > 40 || len(p.answers) > 0 {
		t.Errorf("within a minute ours moved %d times, answers %v", moved, p.answers)
	}
	now = now.Add(time.Minute) // it has stopped
	l.look(&p, now, false)
	l.first(t)
}

// TestPlaceOfTwo: ours have two priorities now, as hostAccess has it. This is no answer to another program.
func TestPlaceOfTwo(t *testing.T) {
	var p place
	have, now := around{others: []int{32766, 32767}, lowest: 32766}, time.Now()
	p = p.decide(now, have, 1, false)
	have.found = p.at
	if p = p.decide(now, have, 2, false); p.at != plan.MainRule-2 || len(p.answers) > 0 {
		t.Errorf("ours are at %d, answers %v", p.at, p.answers)
	}
}

// TestPlaceBehindLocal: a program has moved the rule of the local table: whatever comes before it, ours stay behind.
func TestPlaceBehindLocal(t *testing.T) {
	for local, want := range map[int]int{100: 101, plan.MainRule - 1: plan.MainRule - 1} {
		var p place
		have, now := around{others: []int{50, 32766, 32767}, lowest: 50, local: local}, time.Now()
		for _, o := range []int{0, local + 1, local - 2, 20, 2} {
			if o > 0 {
				have.others = append(have.others, o)
			}
			have.found = p.at
			if p = p.decide(now, have, 1, false); p.at <= local && p.at != want {
				t.Errorf("local at %d, a rule at %d: ours are at %d", local, o, p.at)
			}
		}
	}
}
