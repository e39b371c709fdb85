package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Kinds of results.
const (
	isSkipped = "skipped"
	isFailed  = "failed"
	isRetry   = "retry" // a failed test that is tried again
	isFlaky   = "flaky" // it passed then
)

// result is one line of the file of results.
type result struct {
	Kind    string
	Package string
	Test    string   `json:",omitempty"` // "": all of the package
	Text    string   `json:",omitempty"` // why it was skipped, what it said last
	Command []string `json:",omitempty"` // that runs it, without the package
	Env     []string `json:",omitempty"`
}

func (r result) name() string { return strings.TrimSpace(r.Package + " " + r.Test) }

// results is the file of results, to which several processes add; nil keeps none. err is the first error of add.
type results struct {
	file *os.File
	err  error
}

func open(file string) (*results, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	return &results{file: f}, err
}

func (r *results) close() { _ = r.file.Close() }

func (r *results) add(one result) {
	if r.file == nil {
		return
	}
	b, err := json.Marshal(one)
	if err == nil {
		_, err = r.file.Write(append(b, '\n'))
	}
	r.err = cmp.Or(r.err, err)
}

func (r *results) read() (all []result, err error) {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for d := json.NewDecoder(r.file); d.More(); {
		var one result
		if err := d.Decode(&one); err != nil {
			return all, fmt.Errorf("%s: %w", r.file.Name(), err)
		}
		all = append(all, one)
	}
	return all, nil
}

// place is where a test said something.
var place = regexp.MustCompile(`^\w+\.go:\d+: `)

// reason is why a test was skipped: the last thing it said.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			return place.ReplaceAllString(line, "")
		}
	}
	return "no reason given"
}

// said is what a failed test said last, or else its last lines; what other processes logged is left out.
func said(lines []string) string {
	const last, long = 12, 300
	own := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !place.MatchString(strings.TrimSpace(line)) })
	if len(own) == 0 {
		own = lines
	}
	var b strings.Builder
	for _, line := range own[max(0, len(own)-last):] {
		line = strings.TrimSpace(line)
		fmt.Fprintf(&b, "  %s\n", line[:min(len(line), long)])
	}
	return b.String()
}

// summarize lists what was skipped, then the flaky tests, then those that failed.
func summarize(all []result) string {
	skips, flaky := map[string][]string{}, map[string]bool{}
	n := 0
	for _, r := range all {
		switch r.Kind {
		case isSkipped:
			n++
			skips[r.Text] = append(skips[r.Text], path.Base(r.Package)+"."+r.Test)
		case isFlaky:
			flaky[r.name()] = true
		}
	}
	var b, lost strings.Builder
	if n == 0 {
		b.WriteString("NOT RUN: nothing, no test was skipped\n")
	} else {
		fmt.Fprintf(&b, "NOT RUN: %d tests were skipped\n", n)
	}
	for _, why := range slices.SortedFunc(maps.Keys(skips), func(a, b string) int {
		return cmp.Or(len(skips[b])-len(skips[a]), cmp.Compare(a, b))
	}) {
		title, between := why, "\n    "
		if strings.HasPrefix(why, "tier ") { // many, and on purpose
			title, between = fmt.Sprintf("%s, %d of them", why, len(skips[why])), ", "
		}
		fmt.Fprintf(&b, "  %s\n    %s\n", title, strings.Join(slices.Sorted(slices.Values(skips[why])), between))
	}
	for _, r := range all {
		if r.Kind != isFailed {
			continue
		}
		root, _, _ := strings.Cut(r.Test, "/")
		if flaky[r.Package] || flaky[r.Package+" "+root] {
			fmt.Fprintf(&b, "FLAKY: %s failed, and passed alone\n%s", r.name(), r.Text)
		} else {
			fmt.Fprintf(&lost, "FAILED: %s\n%s", r.name(), r.Text)
		}
	}
	return b.String() + lost.String()
}
