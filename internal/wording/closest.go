package wording

import (
	"cmp"
	"slices"
	"strings"
)

// most is how many names are offered.
const most = 3

// Closest returns up to three of all that are most like want, the closest first; none where all differ too much.
func Closest(want string, all []string) []string {
	type near struct {
		name string
		off  int
	}
	want = strings.ToLower(want)
	var found []near
	for _, name := range all {
		low := strings.ToLower(name)
		off := distance(want, low)
		if want != "" && strings.Contains(low, want) {
			off = min(off, 1)
		}
		if off <= max(2, len(want)/3) && off < max(len(want), 2) {
			found = append(found, near{name, off})
		}
	}
	slices.SortFunc(found, func(a, b near) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, n := range found[:min(len(found), most)] {
		out = append(out, n.name)
	}
	return out
}

// Offer is a sentence that names them, " (did you mean …?)", or "".
func Offer(want string, all []string) string {
	names := Closest(want, all)
	if len(names) == 0 {
		return ""
	}
	return " (did you mean " + strings.Join(names, ", ") + "?)"
}

// distance is the number of bytes to insert, delete or replace (Levenshtein), and neighbours that change places count once.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
