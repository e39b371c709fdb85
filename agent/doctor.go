package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"edgemesh/agent/cli"
	"edgemesh/agent/control"
)

func newDoctor() *cobra.Command {
	var f clientFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node: what is broken, why, and what to do about it",
		Long: `Check this node: key, membership, relays (dialed now), TUN, routes, forwarding,
firewall and peers. Exits with 0 if traffic flows (warnings are allowed) and with 1 if
something is broken.`,
		Example: `  edgemesh-agent doctor
  edgemesh-agent doctor --json | jq '.[] | select(.severity!="ok")'`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			findings, err := control.NewClient(f.runtimeDir).Doctor(c.Context())
			if errors.Is(err, control.ErrNotRunning) {
				findings, err = []control.Finding{{
					Check: "agent", Severity: control.Broken, Detail: err.Error(),
					Remedy: "start the agent; if it does not stay up, the end of its log names the cause",
				}}, nil
			}
			if err != nil {
				return err
			}
			if f.json {
				err = printJSON(c.OutOrStdout(), findings)
			} else {
				printFindings(c.OutOrStdout(), findings)
			}
			if err != nil {
				return err
			}
			for _, x := range findings {
				if x.Severity == control.Broken {
					return cli.ErrReported
				}
			}
			return nil
		},
	}
	f.add(c)
	return c
}

func printFindings(w io.Writer, findings []control.Finding) {
	for _, x := range findings {
		fmt.Fprintf(w, "%-8s %-12s %s\n", x.Severity, x.Check, x.Detail)
		if x.Remedy != "" && x.Severity != control.OK {
			fmt.Fprintf(w, "%-8s %-12s → %s\n", "", "", x.Remedy)
		}
	}
}
