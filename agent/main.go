// Command edgemesh-agent joins a node to the pod network. See the commands' help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, a contract with whoever starts the agent.
const (
	exitFailed = 1 // the system or the network is at fault
	exitUsage  = 2 // the call or the configuration is
)

// version is set by the linker.
var version = "dev"

// exitError carries the exit code an error asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{exitUsage, err} }

// errBroken makes doctor exit with 1; its findings have been printed already.
var errBroken = errors.New("something is broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx))
}

// execute runs the command line and maps its error to an exit code.
func execute(ctx context.Context) int {
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errBroken) {
		fmt.Fprintln(os.Stderr, "edgemesh-agent:", err)
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "edgemesh-agent",
		Short: "Pod network agent: pods reach each other by IP wherever their nodes stand",
		Long: `edgemesh-agent runs on every node. It carries packets between the pods of all
members: over the LAN where there is one, else through an encrypted tunnel that is
dialed, hole-punched or relayed.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
	})
	root.AddCommand(newRun(), newID(), newStatus(), newPing(), newDoctor(), newCleanup(), newInstall(), newUninstall(), newVersion())
	root.CompletionOptions.DisableDefaultCmd = true
	for _, c := range root.Commands() {
		args := c.Args
		c.Args = func(c *cobra.Command, a []string) error {
			if err := args(c, a); err != nil {
				return usageError(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
			}
			return nil
		}
	}
	// An unknown command is bad usage too.
	root.Args = func(c *cobra.Command, a []string) error {
		if len(a) > 0 {
			return usageError(fmt.Errorf("unknown command %q (see `%s --help`)", a[0], c.CommandPath()))
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  edgemesh-agent version",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}
