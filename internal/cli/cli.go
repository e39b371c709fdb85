// Package cli holds what the command lines of agent, relay and kubectl plugin share.
//
//	cli.go       exit codes, usage errors, help in 80 columns
//	loglevel.go  the command log-level
//	man.go       the command man
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"edgemesh/internal/screen"
	"edgemesh/internal/wording"
)

// Exit codes: init systems, scripts and tests rely on them.
const (
	ExitFailed = 1 // the system or the network failed
	ExitUsage  = 2 // the command line or the configuration is wrong
)

// helpWidth is how wide help is, also on a wider terminal.
const helpWidth = 80

// ErrReported makes a program exit with ExitFailed and print no error: its output has
// already said what is wrong.
var ErrReported = errors.New("something is broken")

// Exit makes a program exit with this code and print no error: what it ran has said everything.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

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
	var exit Exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case !errors.Is(err, ErrReported):
		text := wording.PrintableLines(root.DisplayName() + ": " + err.Error()) // it may quote what others said
		fmt.Fprintln(stderr, strings.Join(screen.Of(stderr).Fit(text), "\n"))
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
	show := root.Flags().BoolP("version", "v", false, "version for "+root.DisplayName())
	root.AddCommand(manCommand(root, number))
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		var b strings.Builder
		out := c.OutOrStdout()
		c.SetOut(&b)
		help(c, args)
		c.SetOut(out)
		fmt.Fprint(out, wording.Reflow(b.String(), helpWidth))
	})
	root.SetFlagErrorFunc(badFlag)
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			offer := cmp.Or(wording.Offer(args[0], names(c, (*cobra.Command).IsAvailableCommand)),
				wording.Offer(args[0], names(c, func(sub *cobra.Command) bool { return sub.Hidden && sub.DisableFlagParsing }))) // those that say where to go
			return BadUsage(c, fmt.Errorf("unknown command %q%s", args[0], offer))
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

// names are those of a command's commands that are wanted.
func names(c *cobra.Command, want func(*cobra.Command) bool) (out []string) {
	for _, sub := range c.Commands() {
		if want(sub) {
			out = append(out, sub.Name())
		}
	}
	return out
}

// BadUsage is a usage error that names the help of c.
func BadUsage(c *cobra.Command, err error) error {
	return Usage(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
}

// badFlag offers the names that are near an unknown one, and says what a flag's value has to be, in place of what a parser of
// numbers says.
func badFlag(c *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 2 {
		var all []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				all = append(all, "--"+f.Name)
			}
		})
		err = fmt.Errorf("%w%s", err, wording.Offer("--"+unknown.GetSpecifiedName(), all))
	}
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
		kind := bad.GetFlag().Value.Type()
		if want, known := map[string]string{"int": "a whole number", "int64": "a whole number", "duration": "a time such as 30s or 2m", "bool": "true or false"}[kind]; known {
			err = fmt.Errorf("--%s %q: must be %s", bad.GetFlag().Name, bad.GetValue(), want)
		}
	}
	return BadUsage(c, err)
}

// Args accepts exactly the named arguments, spelled as in Use.
func Args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return BadUsage(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
		case len(args) < len(names):
			return BadUsage(c, fmt.Errorf("%s is missing", strings.Join(names[len(args):], " ")))
		}
		return nil
	}
}

// Done prints what was done, unless err says that it was not.
func Done(c *cobra.Command, err error, format string, args ...any) error {
	if err == nil {
		_, err = fmt.Fprintf(c.OutOrStdout(), format+"\n", args...)
	}
	return err
}

// JSON prints v for programs.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Optional accepts at most the named arguments.
func Optional(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return BadUsage(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}
