// Package cli holds what the command lines of agent and relay share: exit codes,
// usage errors, and the commands id and version.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"edgemesh/internal/wording"
)

// Exit codes: init systems, scripts and tests rely on them.
const (
	ExitFailed = 1 // the system or the network failed
	ExitUsage  = 2 // the command line or the configuration is wrong
)

// ErrReported makes a program exit with ExitFailed and print no error: its output has
// already said what is wrong.
var ErrReported = errors.New("something is broken")

// usageError is for the operator to fix.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as bad usage or configuration: ExitUsage.
func Usage(err error) error { return usageError{err} }

// Main runs root with the process's arguments until it returns or SIGTERM or SIGINT
// arrives, and exits.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(Execute(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
}

// Execute runs a command line, prints what went wrong to stderr, and returns the
// exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	prepare(root)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, ErrReported) {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), wording.PrintableLines(err.Error())) // it may quote what others said
	}
	if errors.As(err, new(usageError)) {
		return ExitUsage
	}
	return ExitFailed
}

// prepare makes root print its help, and turns every mistake in a command line into a
// usage error, as of all commands.
func prepare(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	// Not by cobra's template: with package text/template the linker keeps every exported method, 6 MB of an agent.
	number := root.Version
	root.Version = ""
	show := root.Flags().BoolP("version", "v", false, "version for "+root.Name())
	root.AddCommand(manCommand(root, number))
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return badUsage(c, err) })
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return badUsage(c, fmt.Errorf("unknown command %q%s", args[0], wording.Offer(args[0], names(c))))
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error {
		if *show {
			fmt.Fprintln(c.OutOrStdout(), number)
			return nil
		}
		return c.Help()
	}
}

// names are those of a command's visible commands.
func names(c *cobra.Command) (out []string) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			out = append(out, sub.Name())
		}
	}
	return out
}

func badUsage(c *cobra.Command, err error) error {
	return Usage(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
}

// Args accepts exactly the named arguments, spelled as in Use.
func Args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return badUsage(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
		case len(args) < len(names):
			return badUsage(c, fmt.Errorf("%s is missing", strings.Join(names[len(args):], " ")))
		}
		return nil
	}
}

// Optional accepts at most the named arguments.
func Optional(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return badUsage(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}
