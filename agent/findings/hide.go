package findings

import (
	"fmt"
	"slices"
	"strings"

	"edgemesh/internal/wording"
)

// Ordered puts what is broken first, then warnings, notes, what was not checked, and what is well. Within each, kinds that can
// be the cause of others come first, as in the catalogue; otherwise the order stays.
func Ordered(all []Finding) []Finding {
	severities := []Severity{Broken, Warning, Note, Skipped, OK}
	rank := func(f Finding) (int, int) {
		kind := slices.IndexFunc(Kinds, func(k Kind) bool { return k.ID == f.ID })
		if kind < 0 {
			kind = len(Kinds)
		}
		return slices.Index(severities, f.Severity), kind
	}
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b Finding) int {
		sa, ka := rank(a)
		sb, kb := rank(b)
		if sa != sb || !a.Severity.Wrong() {
			return sa - sb
		}
		return ka - kb
	})
	return out
}

// Causes are all without the consequences of others, which are victims of their cause, in order. Of a chain of causes the first
// has them all.
func Causes(all []Finding) []Finding {
	all = Ordered(all)
	cause := make([]int, len(all))
	for i, f := range all {
		cause[i] = slices.IndexFunc(all, func(c Finding) bool { return hides(c, f) })
	}
	root := func(i int) int {
		for range all { // no longer than the longest chain, also in a circle
			if cause[i] < 0 {
				break
			}
			i = cause[i]
		}
		return i
	}
	out := []Finding{}  // in JSON a list, also of none
	at := map[int]int{} // in out, by index in all
	for i, f := range all {
		if cause[i] < 0 {
			f.Victims = slices.Clone(f.Victims)
			at[i] = len(out)
			out = append(out, f)
		}
	}
	for i, f := range all {
		if j, visible := at[root(i)]; cause[i] >= 0 && visible {
			victim := strings.TrimSpace(f.ID + " " + f.Subject)
			if !slices.Contains(out[j].Victims, victim) {
				out[j].Victims = append(out[j].Victims, victim)
			}
		}
	}
	return out
}

// hides reports whether f follows from c.
func hides(c, f Finding) bool {
	if !c.Severity.Wrong() || f.Severity == OK || f.Severity == Skipped || c.Node != f.Node {
		return false
	}
	k, _ := Of(c.ID)
	return c.Severity == Broken && slices.Contains(k.Hides, f.ID) || c.Subject != "" && c.Subject == f.Subject && slices.Contains(k.Same, f.ID)
}

// Only are those with one of these severities.
func Only(all []Finding, of ...Severity) []Finding {
	out := []Finding{}
	for _, f := range all {
		if slices.Contains(of, f.Severity) {
			out = append(out, f)
		}
	}
	return out
}

// Has reports whether one of all has that severity.
func Has(all []Finding, s Severity) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == s })
}

// Where names the node that found it, where that is another one.
func (f Finding) Where() string {
	if f.Node == "" {
		return ""
	}
	return "on " + f.Node + ": "
}

// Trouble is the verdict where these findings are wrong, causes first.
func Trouble(wrong []Finding) string {
	text := "TROUBLE: " + wrong[0].Where() + wrong[0].Text
	if n := len(wrong) - 1; n > 0 {
		text += fmt.Sprintf("; and %s more", wording.Number(n))
	}
	return text
}
