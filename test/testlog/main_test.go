package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// module is a module of tests that fail in all ways. A mark in the directory $MARKS is what a first run leaves behind.
var module = map[string]string{
	"go.mod": "module made.up\n\ngo 1.26\n",
	"first/first.go": `package first
import ("os"; "path/filepath")
func Run(name string) bool {
	mark := filepath.Join(os.Getenv("MARKS"), name)
	_, err := os.Stat(mark)
	os.WriteFile(mark, nil, 0o644)
	return err != nil
}`,
	"good/a_test.go": `package good
import "testing"
func TestGood(t *testing.T) { t.Log("hidden") }
func TestSkipped(t *testing.T) { t.Skip("needs a printer") }`,
	"once/a_test.go": `package once
import ("made.up/first"; "testing")
func TestOnce(t *testing.T) {
	t.Run("sub", func(t *testing.T) { if first.Run("once") { t.Error("too slow") } })
}
func TestBeside(t *testing.T) { if !first.Run("beside") { t.Error("was run again") } }`,
	"twice/a_test.go": `package twice
import "testing"
func TestTwice(t *testing.T) { t.Error("always wrong") }`,
	"nobuild/a_test.go": `package nobuild
import "testing"
func TestNone(t *testing.T) { undefined() }`,
	"panics/a_test.go": `package panics
import ("made.up/first"; "testing")
func TestPanics(t *testing.T) { if first.Run("panics") { panic("oh") } }
func TestLater(t *testing.T) {}`,
	"paniced/a_test.go": `package paniced
import ("os"; "testing")
func TestMain(m *testing.M) { m.Run(); os.Exit(3) }
func TestFine(t *testing.T) {}`,
	"hangs/a_test.go": `package hangs
import ("made.up/first"; "testing"; "time")
func TestHangs(t *testing.T) { if first.Run("hangs") { time.Sleep(time.Minute) } }`,
	"gone/a_test.go": `package gone
import ("made.up/first"; "testing")
func TestGone(t *testing.T) { if first.Run("gone") { t.Error("wrong") }; t.Skip("not now") }`,
}

// TestRetry runs packages of a module that is made up: what passes when alone is FLAKY, all else fails.
func TestRetry(t *testing.T) {
	dir := t.TempDir()
	for name, text := range module {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	for _, c := range []struct {
		name          string
		packages      []string
		again         string
		red, redAgain bool // whether the run fails, and the retry
		want, not     []string
	}{
		{name: "green", packages: []string{"good"}, again: ".", want: []string{"NOT RUN: 1 tests were skipped\n  needs a printer\n    good.TestSkipped\n"},
			not: []string{"hidden", "FLAKY", "FAILED"}},
		{name: "red once", packages: []string{"once", "good"}, again: ".", want: []string{"FLAKY: made.up/once TestOnce/sub", "too slow", "once more, alone: made.up/once TestOnce\n"},
			not: []string{"FAILED", "was run again"}},
		{name: "red twice", packages: []string{"once", "twice"}, again: ".", redAgain: true,
			want: []string{"FLAKY: made.up/once TestOnce", "FAILED: made.up/twice TestTwice\n  a_test.go:3: always wrong\n"}},
		{name: "not one to try again", packages: []string{"once"}, again: "twice", red: true, want: []string{"FAILED: made.up/once TestOnce"}, not: []string{"FLAKY"}},
		{name: "does not build", packages: []string{"nobuild"}, again: ".", red: true, want: []string{"undefined: undefined", "FAILED: made.up/nobuild"}, not: []string{"once more"}},
		{name: "panic", packages: []string{"panics"}, again: ".", want: []string{"FLAKY: made.up/panics TestPanics", "once more, alone: made.up/panics\n", "panic: oh"}, not: []string{"FAILED"}},
		{name: "names no test", packages: []string{"paniced"}, again: ".", red: true, want: []string{"FAILED: made.up/paniced"}, not: []string{"once more"}},
		{name: "time-out", packages: []string{"hangs"}, again: ".", want: []string{"FLAKY: made.up/hangs TestHangs", "once more, alone: made.up/hangs\n"}, not: []string{"FAILED"}},
		{name: "skipped when alone", packages: []string{"gone"}, again: ".", redAgain: true, want: []string{"FAILED: made.up/gone TestGone"}, not: []string{"FLAKY"}},
		{name: "no such package", packages: []string{"none"}, again: ".", red: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("MARKS", t.TempDir())
			res, err := open(filepath.Join(t.TempDir(), "results"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.close()
			for i, p := range c.packages {
				c.packages[i] = "made.up/" + p
			}
			var out strings.Builder
			command := []string{"go", "test", "-json", "-vet=off", "-timeout=5s"}
			if err := run(&out, res, false, regexp.MustCompile(c.again), command, c.packages); (err != nil) != c.red {
				t.Errorf("run: %v, want an error: %t", err, c.red)
			}
			if err := retry(&out, res); (err != nil) != c.redAgain {
				t.Errorf("retry: %v, want an error: %t", err, c.redAgain)
			}
			all, err := res.read()
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString(summarize(all))
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q", want)
				}
			}
			for _, not := range c.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("%q is shown", not)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func TestManyFailuresAreNoCoincidence(t *testing.T) {
	res, err := open(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.close()
	for i := range maxRetries + 1 {
		res.add(result{Kind: isRetry, Package: "a", Test: "Test" + string(rune('A'+i)), Command: []string{"false"}})
	}
	if err := retry(os.Stdout, res); err == nil || !strings.Contains(err.Error(), "11 tests failed") {
		t.Error(err)
	}
}
