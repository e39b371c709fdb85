package main

import (
	"encoding/json"
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shortID(r.PeerID), r.Addr, yesNo(r.Connected), reserved, rtt, dash(r.Error))
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
			dash(p.Transport), rtt, since, bytesText(p.TxBytes), bytesText(p.RxBytes), p.Drops, dash(p.Reason))
	}
	if len(s.Pools) > 0 {
		fmt.Fprintln(w, "\nPOOL\tADDRESSES\tUSED\tRESERVED\tOLDEST")
	}
	for _, p := range s.Pools {
		size, oldest := strconv.FormatUint(p.Size, 10), "-"
		if p.Size >= 1<<32 {
			size = "plenty"
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

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
