package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"edgemesh/agent/cli"
	"edgemesh/agent/control"
)

// maxPings bounds --count so that a ping ends within its ten seconds.
const maxPings = 20

// errNoAnswer makes ping exit with 1 when every probe was lost.
var errNoAnswer = errors.New("no probe was answered")

func newPing() *cobra.Command {
	var f clientFlags
	var count int
	c := &cobra.Command{
		Use:   "ping NODE|POD-IP",
		Short: "Probe a node over the path in use, or a pod through the data plane",
		Long: `Probe another member. Given a node's name, each probe is an authenticated echo
between the two agents over the path in use. Given a pod's IP, each probe is an ICMP
echo from this node to the pod, through bridge, tunnel and firewall. Ends within 10 s;
exits with 1 if no probe was answered.`,
		Example: `  edgemesh-agent ping edge-2
  edgemesh-agent ping 10.244.2.7 --count 10 --json`,
		Args: cli.Args("NODE|POD-IP"),
		RunE: func(c *cobra.Command, args []string) error {
			if count < 1 || count > maxPings {
				return cli.Usage(fmt.Errorf("--count %d: must be between 1 and %d", count, maxPings))
			}
			r, err := control.NewClient(f.runtimeDir).Ping(c.Context(), control.PingRequest{Target: args[0], Count: count})
			if err != nil {
				return err
			}
			if f.json {
				err = printJSON(c.OutOrStdout(), r)
			} else {
				printPing(c.OutOrStdout(), r)
			}
			if err == nil && r.Received == 0 {
				err = fmt.Errorf("ping %s: %w: %s", r.Target, errNoAnswer, lastError(r))
			}
			return err
		},
	}
	f.add(c)
	c.Flags().IntVar(&count, "count", 4, "number of probes")
	return c
}

func lastError(r control.PingReply) string {
	for i := len(r.Probes) - 1; i >= 0; i-- {
		if r.Probes[i].Error != "" {
			return r.Probes[i].Error
		}
	}
	return "timed out"
}

func printPing(w io.Writer, r control.PingReply) {
	who := "node " + r.Node
	if r.PodIP != "" {
		who = "pod " + r.PodIP + " on " + who
	}
	for _, p := range r.Probes {
		if p.RTTMs == nil {
			fmt.Fprintf(w, "%s: seq %d lost: %s\n", who, p.Seq, dash(p.Error))
			continue
		}
		fmt.Fprintf(w, "%s: seq %d  %.2f ms  %s\n", who, p.Seq, *p.RTTMs, dash(p.Path))
	}
	fmt.Fprintf(w, "%d sent, %d received, path %s", r.Sent, r.Received, strings.TrimSpace(r.Path+" "+r.Transport))
	if r.Received > 0 {
		fmt.Fprintf(w, ", min/avg/max %.2f/%.2f/%.2f ms", *r.MinMs, *r.AvgMs, *r.MaxMs)
	}
	fmt.Fprintln(w)
}
