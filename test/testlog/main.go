// Command testlog runs go test, shows what a reader needs of its output, and keeps what the end of a run lists.
//
//	main.go     the subcommands
//	run.go      one go test: its output, and which failures are tried again
//	retry.go    failed tests, once more and alone
//	results.go  the file of results, and the lists at the end
//
// testlog run [-v] [-retry PACKAGES] -- COMMAND… -- PACKAGE… runs `COMMAND… PACKAGE…`, which is a go test -json with its flags.
// It shows a line per package that passed and all that a failed test printed; with -v everything. It fails unless all
// failures are of packages that match -retry and name the tests that failed.
//
// testlog retry runs each of these tests once more, alone, and fails if one fails again. testlog summary lists the
// tests that were skipped, by reason, then FLAKY ones, which passed when alone, and failed ones.
// All three share the file -results. What go test -json says is read by gotestsum's testjson.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
)

func main() {
	runtime.LockOSThread() // a command that is to end with its parent ends with the thread that started it
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: testlog run|retry|summary -results FILE …")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	file := flags.String("results", "", "file of results")
	verbose := flags.Bool("v", false, "show everything that tests print")
	again := flags.String("retry", "^$", "packages whose failed tests are tried again, a regular expression")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	packages, err := regexp.Compile(*again)
	if err != nil {
		return fmt.Errorf("-retry: %w", err)
	}
	res, err := open(*file)
	if err != nil {
		return err
	}
	defer res.close()
	switch args[0] {
	case "run":
		rest := flags.Args()
		at := slices.Index(rest, "--")
		if at < 1 {
			return errors.New("usage: testlog run -results FILE -- COMMAND… -- PACKAGE…")
		}
		return run(os.Stdout, res, *verbose, packages, rest[:at], rest[at+1:])
	case "retry":
		return retry(os.Stdout, res)
	case "summary":
		all, err := res.read()
		fmt.Print(summarize(all))
		return err
	}
	return fmt.Errorf("unknown subcommand %q", args[0])
}
