package reference

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// measured is a number with a unit, as measurements have them.
var measured = regexp.MustCompile(`(?:^|[^\w.:/-])(\d[\d,.]*(?: (?:to|and|of|–) ?\d[\d,.]*)?[   ]?(?:%|×|(?:ms|s|min|seconds?|minutes?|[kMG]?B/s|[kMG]B|[KMG]iB|[MG]bit/s|round trips|of \d+|times)\b))`)

// given are lines whose numbers nobody measured: times and sizes that the code or a protocol sets, and loads of a measurement.
var given = []string{
	"within 10 s. One keeps the node's traffic", "two looks, 5 minutes apart", "installs it, and again within 30 s", "closes it for the whole cluster, within 2 s",
	"(25 minutes, two cores)", "each time after 90 s of silence", "answer a request of 1 kB each 30 s", "for transfers above 16 kB a second",
	"an outage is looked for every 30 s", "more often than every 90 s", "More than 100 MB a month",
}

var codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`]*`|<!-- figures of `make bench`: begin -->.*<!-- figures of `make bench`: end -->")

// unmarked are the numbers with a unit that stand in no mark of a page, each with its line.
func unmarked(page string) (out [][2]string) {
	page = codeBlock.ReplaceAllStringFunc(page, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	for line := range strings.Lines(marked.ReplaceAllString(page, "")) {
		for _, m := range measured.FindAllStringSubmatch(line, -1) {
			out = append(out, [2]string{m[1], strings.TrimSpace(line)})
		}
	}
	return out
}

// TestFigures: on the pages that are filled every measured figure stands in a mark; and no mark is of a figure that no page shows.
func TestFigures(t *testing.T) {
	const root = "../.."
	if len(given) > 20 {
		t.Errorf("%d exceptions, at most 20", len(given))
	}
	used, shown := map[string]bool{}, map[string]bool{}
	for _, page := range figurePages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range marked.FindAllStringSubmatch(string(text), -1) {
			shown[m[1]] = true
		}
	found:
		for _, x := range unmarked(string(text)) {
			for _, g := range given {
				if strings.Contains(x[1], g) {
					used[g] = true
					continue found
				}
			}
			t.Errorf("%s: %q stands outside of a mark: write <!--=NAME-->FIGURE<!--/-->, here and where it was measured: %s", page, x[0], x[1])
		}
	}
	for _, g := range given {
		if !used[g] {
			t.Errorf("no page has the exception %q", g)
		}
	}
	of, err := figures(root)
	if err != nil {
		t.Fatal(err)
	}
	for name := range of {
		if !shown[name] && !strings.HasPrefix(name, "bench.") {
			t.Errorf("no page shows the figure %s: take its mark away", name)
		}
	}
}

// The check finds what is wrong.
func TestUnmarked(t *testing.T) {
	for line, want := range map[string]int{
		"an idle node takes 5 MB a month": 1, "47 of 47": 1, "2.21 × as fast, 3 % lost": 2, "60 to 97 MB": 1, "1.5 s\n0.7 s": 2, "3 minutes": 1,
		"takes <!--=x-->5 MB<!--/--> and <!--=y-->9<!--/--> s": 0, "version 1.30.14, k3s, 10.244.0.0/16, port 4470, a thousand": 0, "`5 MB`\n```\n5 MB\n```": 0,
	} {
		if got := unmarked(line); len(got) != want {
			t.Errorf("%q: %q, want %d", line, got, want)
		}
	}
}
