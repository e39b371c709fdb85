package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// run runs a go test of packages. Its error is nil if all failed tests are to be tried again.
func run(out io.Writer, res *results, verbose bool, again *regexp.Regexp, command, packages []string) error {
	tests, failed, err := execute(&show{out: out, verbose: verbose, res: res}, command, nil, packages)
	if tests == nil {
		return err
	}
	lost := false
	for _, name := range tests.Packages() {
		p := tests.Package(name)
		if p.Result() == "" && p.Total > 0 {
			return fmt.Errorf("%s has no result: go test ended early", name)
		}
		if p.Result() != testjson.ActionFail && len(p.Failed) == 0 {
			continue
		}
		roots := retries(p)
		if len(roots) == 0 || !again.MatchString(name) {
			lost = true
			if len(p.Failed) == 0 {
				res.add(result{Kind: isFailed, Package: name, Text: said(printed(p, 0))})
			}
			continue
		}
		failed = false // for a reason that is known
		for _, root := range roots {
			res.add(result{Kind: isRetry, Package: name, Test: root, Command: command, Env: environment()})
		}
	}
	switch {
	case err != nil:
		return err
	case lost:
		return errors.New("tests failed")
	case failed:
		return errors.New("go test failed, and no test did")
	}
	return res.err
}

// execute runs a go test. failed is whether it exited with an error; err is that it could not be run or read.
func execute(h testjson.EventHandler, command, env, packages []string) (tests *testjson.Execution, failed bool, err error) {
	c := exec.Command(command[0], slices.Concat(command[1:], packages)...)
	c.Env = append(os.Environ(), env...)
	c.Stderr = os.Stderr
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := c.Start(); err != nil {
		return nil, false, err
	}
	tests, err = testjson.ScanTestOutput(testjson.ScanConfig{Stdout: stdout, Handler: h, IgnoreNonJSONOutputLines: true})
	if err != nil {
		_ = c.Process.Kill()
	}
	ended := c.Wait()
	// go test exits with 1 when tests failed; otherwise it did not run all of them.
	if ended != nil && c.ProcessState.ExitCode() != 1 {
		return tests, true, errors.Join(err, fmt.Errorf("go test ended early: %w", ended))
	}
	return tests, ended != nil, err
}

// retries returns the top-level tests of p to try again; "" stands for all of them, after one took the process with it. There
// are none after a failure of no test, as when p does not build, and after a data race, which is a fault however rarely it shows.
func retries(p *testjson.Package) (roots []string) {
	if len(p.Failed) == 0 {
		return nil
	}
	panicked := false
	for id := range p.Total + 1 { // 0 is the package's own output
		for _, line := range printed(p, id) {
			if strings.HasPrefix(line, "WARNING: DATA RACE") {
				return nil
			}
			panicked = panicked || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
		}
	}
	if panicked {
		return []string{""}
	}
	for _, tc := range p.Failed {
		if root, _ := tc.Test.Split(); !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

// environment is what of this process's environment another pass may have set differently.
func environment() (env []string) {
	for _, name := range []string{"GOARCH", "GOARM", "CGO_ENABLED"} {
		if value, set := os.LookupEnv(name); set {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// printed returns the lines that the test with this ID printed, or for 0 its package.
func printed(p *testjson.Package, id int) []string {
	var b strings.Builder
	_ = p.WriteOutputTo(&b, id) // a strings.Builder takes all
	return slices.Collect(strings.Lines(b.String()))
}

// show shows events as they come, and adds skipped and failed tests to the results.
type show struct {
	out     io.Writer
	verbose bool
	res     *results
}

func (s *show) Err(text string) error {
	fmt.Fprintln(s.out, text)
	return nil
}

func (s *show) Event(e testjson.TestEvent, tests *testjson.Execution) error {
	p := tests.Package(e.Package)
	switch {
	case e.Action == testjson.ActionBuild,
		e.Action == testjson.ActionOutput && (s.verbose || e.Test == "" && strings.HasPrefix(e.Output, "ok ")):
		fmt.Fprint(s.out, e.Output)
	case e.Action == testjson.ActionFail && e.Test == "":
		s.lines(printed(p, 0))
	case e.Action == testjson.ActionFail:
		lines := p.OutputLines(p.LastFailedByName(e.Test))
		s.lines(lines)
		s.res.add(result{Kind: isFailed, Package: e.Package, Test: e.Test, Text: said(lines)})
	case e.Action == testjson.ActionSkip && e.Test != "":
		lines := p.OutputLines(p.Skipped[len(p.Skipped)-1])
		s.res.add(result{Kind: isSkipped, Package: e.Package, Test: e.Test, Text: reason(lines)})
	}
	return nil
}

func (s *show) lines(lines []string) {
	if !s.verbose { // else they were shown
		fmt.Fprint(s.out, strings.Join(lines, ""))
	}
}

// seconds is how long a test took, for a reader.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
