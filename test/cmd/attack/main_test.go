package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every row that says "cannot" names a test, and every test that a row names is there.
func TestRows(t *testing.T) {
	text, err := os.ReadFile("../../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	all := rows(string(text))
	if len(all) < 50 {
		t.Errorf("%d rows are read", len(all))
	}
	if open := untested(all); len(open) > 0 {
		t.Errorf("without a test: %q", open)
	}
	for dir, names := range byPackage(all) {
		files, err := filepath.Glob("../../../" + dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		var source strings.Builder
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(data)
		}
		for _, name := range names {
			name, _, _ = strings.Cut(name, "/")
			if !strings.Contains(source.String(), fmt.Sprintf("\nfunc %s(", name)) {
				t.Errorf("%s has no %s", dir, name)
			}
		}
	}
}

// The control: a row without a test is found, and cells are read as they are written.
func TestCells(t *testing.T) {
	got := rows("## What each can and cannot do\n| | test |\n|---|---|\n| cannot fly | |\n| can walk | |\n| where it rains: cannot swim | |\n| cannot run: a | b | `x/y` TestA, TestB/c-d; TestD |\n\n## Next\n| cannot | |\n")
	var text []string
	for _, r := range got {
		text = append(text, fmt.Sprint(r.cannot(), r.tests))
	}
	if s := strings.Join(text, " "); !strings.HasSuffix(s, "false [] true [] false [] true [] true [{x/y TestA} {x/y TestB/c-d} {test/e2e TestD}]") {
		t.Error(s)
	}
	if p := pattern([]string{"TestA", "TestB/c-d"}); p != "^TestA$|^TestB$/^c-d$" {
		t.Error(p)
	}
}

// A test that did not run, or in part, shows nothing.
func TestRan(t *testing.T) {
	const out = "--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\n"
	names := []string{"TestA", "TestA/b"}
	if !ran(out, names) || ran(out, append(names, "TestA/c")) || ran(out+"    --- SKIP: TestA/d (0.00s)\n", names) {
		t.Error("what ran is not known")
	}
}
