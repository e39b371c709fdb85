package ways

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/test/repo"
)

// Each pair of values that the pages allow occurs in a run, no run is of a way that they do not describe, and fewer runs beside those of
// other tests could not have all pairs: as many pairs as there are runs cannot meet in one.
func TestEachPairIsRun(t *testing.T) {
	missing := map[pair]bool{}
	var documented []map[pair]bool // pairs of each documented way, with edges of every form
	for _, w := range all() {
		r := Run{Way: w, Form: values[Form]}
		documented = append(documented, r.pairs())
		for p := range r.pairs() {
			missing[p] = true
		}
	}
	if len(missing) < 80 {
		t.Fatalf("only %d pairs of values are documented: Excluded excludes too much", len(missing))
	}
	var own []Run
	for _, r := range Runs {
		w := r.Way
		if w[Form] = r.Form[0]; !Documented(w) {
			t.Errorf("%v of %s is not documented", r.Way, r.Test)
		}
		if r.Test == "TestWays" {
			own = append(own, r)
			continue
		}
		for p := range r.pairs() {
			delete(missing, p)
		}
	}
	least := apart(missing, documented)
	for _, r := range own {
		news := 0
		for p := range r.pairs() {
			if missing[p] {
				news++
			}
			delete(missing, p)
		}
		if news == 0 {
			t.Errorf("%v has no pair that those before it do not have", r.Way)
		}
	}
	for p := range missing {
		t.Errorf("%s with %s: documented, and no run has it", p[0], p[1])
	}
	if len(own) > least {
		t.Errorf("%d runs of TestWays, %d may do", len(own), least)
	}
	if len(Runs) > 20 {
		t.Errorf("%d runs, want 20 at most", len(Runs))
	}
}

// apart counts pairs of which no two are in one set: each takes a run of its own.
func apart(pairs map[pair]bool, sets []map[pair]bool) (most int) {
	all := slices.Collect(maps.Keys(pairs))
	meet := map[[2]pair]bool{}
	for _, s := range sets {
		for p := range s {
			for q := range s {
				meet[[2]pair{p, q}] = true
			}
		}
	}
	var try func(chosen int, left []pair)
	try = func(chosen int, left []pair) {
		most = max(most, chosen)
		for i, p := range left {
			if chosen+len(left)-i <= most {
				return
			}
			try(chosen+1, slices.DeleteFunc(slices.Clone(left[i+1:]), func(q pair) bool { return meet[[2]pair{p, q}] }))
		}
	}
	try(0, all)
	return most
}

// What is left out is left out by a sentence that stands on its page.
func TestSentencesAreOnTheirPages(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range Excluded {
		text, err := os.ReadFile(filepath.Join(root, u.Page))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), u.Sentence) {
			t.Errorf("%s: no %q, by which %v is left out", u.Page, u.Sentence, u.Way)
		}
	}
}

// The table of the runs stands on the page about what works together.
func TestTableIsOnItsPage(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	const page = "docs/compatibility.md"
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, relay := range values[Relay] {
		row := "| " + relay
		for _, platform := range values[Platform] {
			var cell []string
			for _, r := range Runs {
				if r.Way[Relay] == relay && r.Way[Platform] == platform {
					cell = append(cell, r.Way[By]+", "+r.Way[Controller])
				}
			}
			row += " | " + strings.Join(slices.Compact(cell), "; ")
		}
		if row += " |"; !strings.Contains(string(text), row+"\n") {
			t.Errorf("%s lacks this row:\n%s", page, row)
		}
	}
}
