// Command testlog shows what `go test -json` says on its standard input as one wants to
// read it: a line per package that passed, everything that a failed test said, and with
// -v everything. Tests that were skipped are added to the file -skips, those that failed to
// a file beside it, FILE.failed. With -summary it reads nothing, and prints these files:
// reasons, each with the tests that were skipped for it, then each failed test with what it said last.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	verbose := flag.Bool("v", false, "show everything that tests say")
	skips := flag.String("skips", "", "file of skipped tests")
	summary := flag.Bool("summary", false, "print the file of skipped tests")
	flag.Parse()
	err := run(*verbose, *skips, *summary)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
}

func run(verbose bool, file string, summary bool) error {
	if summary {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fmt.Print(summarize(string(b)))
		b, err = os.ReadFile(file + failures)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		_, _ = os.Stdout.Write(b)
		return err
	}
	f, err := open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	failed, err := open(file + failures)
	if err != nil {
		return err
	}
	defer failed.Close()
	return newLog(os.Stdout, f, failed, verbose).read(os.Stdin)
}

// failures is how the name of the file of failed tests ends.
const failures = ".failed"

// open opens a file that several processes add to, a few lines at a time.
func open(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// event is what go test says (go doc test2json).
type event struct {
	Action     string // run, output, build-output, pass, fail, skip, …
	Package    string
	ImportPath string // of a package that does not build
	Test       string // empty: the package itself
	Output     string
}

// log is what was said and not shown yet.
type log struct {
	out, skips, failed io.Writer
	verbose            bool
	said               map[string]map[string][]string // package, test: lines
}

func newLog(out, skips, failed io.Writer, verbose bool) *log {
	return &log{out: out, skips: skips, failed: failed, verbose: verbose, said: map[string]map[string][]string{}}
}

func (l *log) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)} // not of a test
			}
			l.take(e)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func (l *log) take(e event) {
	if l.said[e.Package] == nil {
		l.said[e.Package] = map[string][]string{}
	}
	switch said := l.said[e.Package]; e.Action {
	case "build-output":
		fmt.Fprint(l.out, e.Output)
	case "output":
		said[e.Test] = append(said[e.Test], e.Output)
		if l.verbose {
			fmt.Fprint(l.out, e.Output)
		}
	case "pass", "skip", "fail":
		l.end(e, said)
		delete(said, e.Test)
	}
}

// end shows what is worth it of a test or package that has ended.
func (l *log) end(e event, said map[string][]string) {
	if e.Action == "fail" && e.Test != "" {
		fmt.Fprint(l.failed, failure(e, said[e.Test]))
	}
	switch {
	case e.Test != "" && e.Action == "skip":
		fmt.Fprintf(l.skips, "%s\t%s\t%s\n", reason(said[e.Test]), e.Package, e.Test)
	case l.verbose:
	case e.Test != "" && e.Action == "fail":
		l.show(said[e.Test])
	case e.Test == "" && e.Action == "pass":
		l.show(slices.DeleteFunc(said[""], func(line string) bool { return !strings.HasPrefix(line, "ok ") }))
	case e.Test == "" && e.Action == "fail":
		// Tests that were running when the package ended have no end of their own.
		for _, test := range slices.Sorted(maps.Keys(said)) {
			l.show(said[test])
		}
	}
}

func (l *log) show(lines []string) {
	for _, line := range lines {
		fmt.Fprint(l.out, line)
	}
}

// place is where a test said something.
var place = regexp.MustCompile(`^\w+\.go:\d+: `)

// reason is why a test was skipped: the last thing it said.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		return strings.ReplaceAll(place.ReplaceAllString(line, ""), "\t", " ")
	}
	return "no reason given"
}

// failure is a failed test with the last things it said, a line each: what another process logged is left out.
func failure(e event, lines []string) string {
	const last, long = 8, 300
	said := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !place.MatchString(strings.TrimSpace(line)) })
	var b strings.Builder
	fmt.Fprintf(&b, "FAILED: %s %s\n", e.Package, e.Test)
	for _, line := range said[max(0, len(said)-last):] {
		line = strings.TrimSpace(line)
		fmt.Fprintf(&b, "  %s\n", line[:min(len(line), long)])
	}
	return b.String()
}

// summarize has the skipped tests by their reasons, those of most tests first.
func summarize(skips string) string {
	tests := map[string][]string{}
	n := 0
	for line := range strings.Lines(skips) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			continue
		}
		n++
		tests[fields[0]] = append(tests[fields[0]], fields[1][strings.LastIndexByte(fields[1], '/')+1:]+"."+fields[2])
	}
	if n == 0 {
		return "NOT RUN: nothing, no test was skipped\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "NOT RUN: %d tests were skipped\n", n)
	for _, why := range slices.SortedFunc(maps.Keys(tests), func(a, b string) int {
		return cmp.Or(len(tests[b])-len(tests[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(&b, "  %s\n", why)
		for _, test := range slices.Sorted(slices.Values(tests[why])) {
			fmt.Fprintf(&b, "    %s\n", test)
		}
	}
	return b.String()
}
