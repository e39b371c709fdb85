package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// maxRetries is how many failed tests are tried again: more than that are no coincidence.
const maxRetries = 10

// retry runs each test that is to be tried again once more, alone. Its error is nil if all pass now.
func retry(out io.Writer, res *results) error {
	all, err := res.read()
	if err != nil {
		return err
	}
	var tries []result
	for _, r := range all {
		same := func(o result) bool { return o.name() == r.name() && slices.Equal(o.Env, r.Env) }
		if r.Kind == isRetry && !slices.ContainsFunc(tries, same) {
			tries = append(tries, r)
		}
	}
	if len(tries) > maxRetries {
		return fmt.Errorf("%d tests failed; up to %d are tried again", len(tries), maxRetries)
	}
	red := false
	for _, r := range tries {
		command := append(slices.Clone(r.Command), "-count=1")
		if r.Test != "" {
			command = append(command, "-run", "^"+r.Test+"$")
		}
		fmt.Fprintf(out, "once more, alone: %s\n", r.name())
		start := time.Now()
		tests, failed, err := execute(&show{out: out, res: &results{}}, command, r.Env, []string{r.Package})
		if err != nil {
			return err
		}
		if failed || !passed(tests.Package(r.Package), r.Test) {
			red = true
			fmt.Fprintf(out, "failed again after %s: %s\n", seconds(time.Since(start)), r.name())
			continue
		}
		res.add(result{Kind: isFlaky, Package: r.Package, Test: r.Test})
	}
	if red {
		return errors.New("tests failed twice")
	}
	return res.err
}

// passed reports whether a test of p ran and passed; for "" whether one did, and none failed.
func passed(p *testjson.Package, test string) bool {
	return p != nil && len(p.Failed) == 0 && slices.ContainsFunc(p.Passed, func(tc testjson.TestCase) bool {
		return test == "" || tc.Test.Name() == test
	})
}
