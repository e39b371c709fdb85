// Command attack runs the tests that docs/security.md names, package by package. `attack list` prints them.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// page is what is read, from the repository's root.
const page = "docs/security.md"

// row is a line of the tables that say what an attacker can and cannot do.
type row struct {
	text  string
	tests []test
	other bool // checked by another make target
}

// test is a Go test.
type test struct{ dir, name string }

// cannot reports whether the row says that something is impossible.
func (r row) cannot() bool {
	return strings.HasPrefix(r.text, "cannot ") || strings.Contains(r.text, ": cannot ")
}

var testName = regexp.MustCompile(`^(Test|Fuzz)\w+(/[\w-]+)*`)

// rows reads the tables. A cell of tests is `DIR` TestA, TestB/subtest; TestC: without a directory they are in test/e2e.
func rows(page string) (out []row) {
	_, page, _ = strings.Cut(page, "## What each can and cannot do")
	page, _, _ = strings.Cut(page, "\n## ")
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 2 {
			continue
		}
		r := row{text: strings.TrimSpace(cells[0]), other: strings.Contains(cells[1], "`make ")}
		for _, group := range strings.Split(cells[len(cells)-1], ";") {
			dir := "test/e2e"
			if _, rest, ok := strings.Cut(group, "`"); ok {
				dir, group, _ = strings.Cut(rest, "`")
			}
			for _, name := range strings.Split(group, ",") {
				if name = testName.FindString(strings.TrimSpace(name)); name != "" {
					r.tests = append(r.tests, test{dir, name})
				}
			}
		}
		out = append(out, r)
	}
	return out
}

// untested are the rows of what is impossible that name no test.
func untested(all []row) (out []string) {
	for _, r := range all {
		if r.cannot() && len(r.tests) == 0 && !r.other {
			out = append(out, r.text)
		}
	}
	return out
}

// byPackage are the names of the tests of each directory.
func byPackage(all []row) map[string][]string {
	out := map[string][]string{}
	for _, r := range all {
		for _, t := range r.tests {
			if !slices.Contains(out[t.dir], t.name) {
				out[t.dir] = append(out[t.dir], t.name)
			}
		}
	}
	return out
}

// pattern is what go test -run takes for these tests.
func pattern(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, "^"+strings.ReplaceAll(name, "/", "$/^")+"$")
	}
	return strings.Join(all, "|")
}

// ran reports whether go test -v says that all of these passed, and that nothing was skipped: a test that did not run shows nothing.
func ran(out string, names []string) bool {
	return !strings.Contains(out, "--- SKIP") &&
		!slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(out, "--- PASS: "+name+" (") })
}

func main() {
	text, err := os.ReadFile(page)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack: run it in the repository's root:", err)
		os.Exit(2)
	}
	all := rows(string(text))
	if open := untested(all); len(open) > 0 {
		fmt.Fprintf(os.Stderr, "attack: no test in %s of: %s\n", page, strings.Join(open, "; "))
		os.Exit(1)
	}
	tests, failed := byPackage(all), []string(nil)
	began := time.Now()
	for _, dir := range slices.Sorted(maps.Keys(tests)) {
		run := pattern(tests[dir])
		if len(os.Args) > 1 {
			fmt.Println("./"+dir, run)
			continue
		}
		var out strings.Builder
		c := exec.Command("go", "test", "-v", "-count=1", "-timeout", "60m", "-run", run, "./"+dir)
		c.Stdout, c.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
		if dir == "test/kube" { // the tests that are named run on KubeEdge
			c.Env = append(os.Environ(), "EDGEMESH_KUBE=kubeedge")
		}
		start := time.Now()
		if c.Run() != nil || !ran(out.String(), tests[dir]) {
			failed = append(failed, dir)
		}
		fmt.Printf("attack: ./%s took %.0f s, all until now %.0f s\n", dir, time.Since(start).Seconds(), time.Since(began).Seconds())
	}
	if len(failed) > 0 {
		fmt.Fprintln(os.Stderr, "attack: failed or skipped in", strings.Join(failed, ", "))
		os.Exit(1)
	}
}
