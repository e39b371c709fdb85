package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/cli"
	"edgemesh/agent/control"
	"edgemesh/cni/conf"
)

// clientFlags are shared by the commands that query a running agent.
type clientFlags struct {
	runtimeDir string
	json       bool
}

func (f *clientFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.runtimeDir, "runtime-dir", conf.DefaultRuntimeDir, "runtime directory of the agent")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

func newStatus() *cobra.Command {
	var f clientFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "Show relays and peers, the path to each peer, and why it is not a better one",
		Long: `Show relays and peers, the path to each peer, and why it is not a better one (REASON).

PATH is how packets reach a peer now, best first:
  native    routed by the kernel, over a LAN that both nodes are on
  vxlan     VXLAN in the kernel, across routers between private networks
  direct    through the tunnel, at addresses that the nodes really own
  punched   through the tunnel, hole-punched through a NAT
  relayed   through the tunnel and a relay, encrypted end to end
  none      no path yet: packets wait
  idle      no recent traffic; the next packet connects`,
		Example: `  edgemesh-agent status
  edgemesh-agent status --json | jq '.peers[] | select(.path=="relayed") | .reason'`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := control.NewClient(f.runtimeDir).Status(c.Context())
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(c.OutOrStdout(), s)
			}
			return printStatus(c.OutOrStdout(), s, time.Now())
		},
	}
	f.add(c)
	return c
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printStatus(out io.Writer, s control.Status, now time.Time) error {
	fmt.Fprintf(out, "node %s  %s\n\n", s.Node, s.PeerID)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RELAY\tADDRESS\tCONNECTED\tRESERVED\tRTT\tERROR")
	for _, r := range s.Relays {
		reserved, rtt := yesNo(r.Reserved), "-"
		if r.Spare {
			reserved = "spare"
		}
		if r.RTTMs != nil {
			rtt = fmt.Sprintf("%.1f ms", *r.RTTMs)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shortID(r.PeerID), r.Addr, yesNo(r.Connected), reserved, rtt, cmp.Or(r.Error, "-"))
	}
	fmt.Fprintln(w, "\nPEER\tPODS\tPATH\tVIA\tRTT\tSINCE\tTX\tRX\tDROPS\tREASON")
	for _, p := range s.Peers {
		rtt, since := "-", "-"
		if p.RTTMs != nil {
			rtt = fmt.Sprintf("%.1f ms", *p.RTTMs)
		}
		if p.Since != nil {
			since = now.Sub(*p.Since).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", p.Node, strings.Join(p.PodCIDRs, ","), p.Path,
			cmp.Or(p.Transport, "-"), rtt, since, bytesText(p.TxBytes), bytesText(p.RxBytes), p.Drops, cmp.Or(p.Reason, "-"))
	}
	if len(s.Pools) > 0 {
		fmt.Fprintln(w, "\nPOOL\tADDRESSES\tUSED\tRESERVED\tOLDEST")
	}
	for _, p := range s.Pools {
		size, oldest := strconv.FormatUint(p.Size, 10), "-"
		if p.Size >= 1<<32 {
			size = "2^32 or more"
		}
		if p.Oldest != nil {
			oldest = now.Sub(*p.Oldest).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", strings.Join(p.Blocks, ","), size, p.Used, p.Kept, oldest)
	}
	if len(s.Fallbacks) > 0 {
		fmt.Fprintln(w, "\nDEGRADED\tEFFECT\tREMEDY")
	}
	for _, f := range s.Fallbacks {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.What, f.Effect, f.Remedy)
	}
	if len(s.Problems) > 0 {
		fmt.Fprintln(w, "\nPROBLEM\tCAUSE\tREMEDY")
	}
	for _, f := range s.Problems {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Check, f.Detail, f.Remedy)
	}
	return w.Flush()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// shortID is the end of a peer ID, the part that differs.
func shortID(id string) string {
	const keep = 8
	if len(id) <= keep {
		return id
	}
	return "…" + id[len(id)-keep:]
}

// bytesText is n with a decimal unit.
func bytesText(n uint64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, suffix := float64(n), ""
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		v /= unit
		if suffix = u; v < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, suffix)
}

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
			fmt.Fprintf(w, "%s: seq %d lost: %s\n", who, p.Seq, cmp.Or(p.Error, "-"))
			continue
		}
		fmt.Fprintf(w, "%s: seq %d  %.2f ms  %s\n", who, p.Seq, *p.RTTMs, cmp.Or(p.Path, "-"))
	}
	fmt.Fprintf(w, "%d sent, %d received, path %s", r.Sent, r.Received, strings.TrimSpace(r.Path+" "+r.Transport))
	if r.Received > 0 {
		fmt.Fprintf(w, ", min/avg/max %.2f/%.2f/%.2f ms", *r.MinMs, *r.AvgMs, *r.MaxMs)
	}
	fmt.Fprintln(w)
}
