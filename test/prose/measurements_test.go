package prose

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	goTest   = regexp.MustCompile("`([^`]*\\bgo\\s+test\\s[^`]*)`")
	selector = regexp.MustCompile(`-(?:run|bench)[ =]+('[^']*'|\S+)`)
	testDir  = regexp.MustCompile(`\./[a-z0-9/]+`)
)

// TestMeasurementCommands: each `go test` on the pages of measurements and on docs/performance.md selects tests or benchmarks
// that exist where the command looks for them.
func TestMeasurementCommands(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/measurements/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	selected := 0
	for _, page := range append(pages, filepath.Join(root, "docs/performance.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range goTest.FindAllStringSubmatch(string(text), -1) {
			command := strings.Join(strings.Fields(m[1]), " ")
			dir := testDir.FindString(command)
			if dir == "" {
				continue // a form with a placeholder
			}
			for _, s := range selector.FindAllStringSubmatch(command, -1) {
				want := strings.Trim(s[1], "'")
				if want == "^$" || strings.EqualFold(want, "xxx") {
					continue // no test beside the benchmark
				}
				for name := range strings.SplitSeq(want, "|") {
					name, _, _ = strings.Cut(name, "/")
					if selected++; !selects(t, filepath.Join(root, dir), name) {
						t.Errorf("%s: %s: no test or benchmark in %s matches %q", page, command, dir, name)
					}
				}
			}
		}
	}
	if selected < 40 {
		t.Errorf("only %d tests are named: this test does not understand the pages any longer", selected)
	}
}

// selects reports whether a test or benchmark of the directory matches the pattern.
func selects(t *testing.T, dir, pattern string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(pattern)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`).FindAllStringSubmatch(string(data), -1) {
			if match.MatchString(m[1]) {
				return true
			}
		}
	}
	return false
}
