// Package cli is what the command lines of agent and relay have in common: exit
// codes, the words for bad usage, and the commands id and version.
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
)

// Exit codes, a contract with whoever starts the programs.
const (
	ExitFailed = 1 // the system or the network is at fault
	ExitUsage  = 2 // the call or the configuration is
)

// ErrSaid makes a program exit with ExitFailed and say nothing more: its output
// has told what is wrong.
var ErrSaid = errors.New("something is broken")

// usageError is the caller's to mend.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as bad usage or configuration: ExitUsage.
func Usage(err error) error { return usageError{err} }

// Main runs root with the process's arguments until it is done, or told to stop
// by SIGTERM or SIGINT, and exits.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(Execute(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
}

// Execute runs a command line, says what went wrong on stderr, and returns the
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
	if !errors.Is(err, ErrSaid) {
		fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	}
	if errors.As(err, new(usageError)) {
		return ExitUsage
	}
	return ExitFailed
}

// prepare makes root print its help, and grades whatever is wrong with a command
// line, for all commands alike.
func prepare(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return badUsage(c, err) })
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return badUsage(c, fmt.Errorf("unknown command %q", args[0]))
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

func badUsage(c *cobra.Command, err error) error {
	return Usage(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
}

// Args takes exactly the arguments that are named, as they are written in Use.
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

// Version is the command that prints version.
func Version(program, version string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  " + program + " version",
		Args:    Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}
