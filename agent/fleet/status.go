package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/cli"
	"edgemesh/internal/screen"
	"edgemesh/internal/wording"
)

// paths are those of peers, best first.
var paths = []string{"native", "vxlan", "direct", "punched", "relayed", "none", "idle"} //nolint:gochecknoglobals // a constant

// state is one member, and what its agent said.
type state struct {
	member
	Error  string          `json:"error,omitempty"` // why the agent was not reached
	Status *control.Status `json:"status,omitempty"`
}

func newStatus(k *cluster) *cobra.Command {
	var all, asJSON, check bool
	c := &cobra.Command{
		Use:   "status [NODE [OPTIONS]]",
		Short: "Show all nodes: a summary, and what is wrong with which; or one node",
		Long: `Show the nodes of the pod network: how many are ready and answer, their versions, and the
paths between them; then the nodes with trouble: not ready, not reached, without a relay,
with peers to which there is no path, or with problems of their own. --check exits with 1
if something is broken on any, or none was reached; that no controller runs breaks nothing. With NODE, show that node's own status;
options behind NODE are those of edgemesh-agent status.`,
		Example: `  kubectl edgemesh status
  kubectl edgemesh status --all
  kubectl edgemesh status edge-1 --path relayed
  kubectl edgemesh status --json | jq '.nodes[] | select(.error) | .node'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return k.pass(c, args[0], append([]string{"status"}, args[1:]...)...)
			}
			states, cluster, err := k.states(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if err := cli.JSON(c.OutOrStdout(), report[state]{states, cluster}); err != nil {
					return err
				}
			}
			if len(states) == 0 {
				return errors.New("the cluster has no MeshNode: no agent has joined; `kubectl get pods -A -l app.kubernetes.io/name=edgemesh` shows the agents' pods")
			}
			if !asJSON {
				show(c.OutOrStdout(), states, cluster, all)
			}
			if check && broken(states) {
				return cli.ErrReported
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "show every node, also those without trouble")
	c.Flags().BoolVar(&check, "check", false, "exit with 1 if something is broken on any node")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().SetInterspersed(false)
	return c
}

// report is what --json prints.
type report[T any] struct {
	Nodes    []T                `json:"nodes"`
	Findings []findings.Finding `json:"findings,omitempty"` // of the cluster as a whole
}

// states queries all agents.
func (k *cluster) states(ctx context.Context) ([]state, []findings.Finding, error) {
	members, cluster, err := k.members(ctx)
	if err != nil {
		return nil, nil, err
	}
	out := make([]state, len(members))
	each(members, func(i int, m member) {
		out[i].member = m
		var st control.Status
		if err := k.query(ctx, m, &st, "status"); err != nil {
			out[i].Error = err.Error()
		} else {
			out[i].Status = &st
		}
	})
	return out, cluster, nil
}

// broken reports whether something is, on any node, or none was reached.
func broken(states []state) bool {
	reached := false
	for _, s := range states {
		reached = reached || s.Status != nil
		if s.Status != nil && findings.Has(s.Status.Found(), findings.Broken) {
			return true
		}
	}
	return !reached
}

// severities are the words for how a node is, worst first.
var severities = []string{string(findings.Broken), "unreached", string(findings.Warning), string(findings.OK)} //nolint:gochecknoglobals // a constant

// severity is one of severities.
func severity(s state, all []state) string {
	switch {
	case s.Status == nil:
		return severities[1]
	case findings.Has(s.Status.Found(), findings.Broken):
		return severities[0]
	case trouble(s, all) != "":
		return severities[2]
	}
	return severities[3]
}

// worstFirst are all by severity, then as they were.
func worstFirst(all []state) []state {
	return slices.SortedStableFunc(slices.Values(all), func(a, b state) int {
		return slices.Index(severities, severity(a, all)) - slices.Index(severities, severity(b, all))
	})
}

// verdict is the first line: what is wrong on how many nodes, with the first of them, or that nothing is.
func verdict(states []state, cluster []findings.Finding) string {
	nodes, first := 0, ""
	for _, s := range states {
		if why := trouble(s, states); why != "" {
			nodes++
			first = cmp.Or(first, s.Node+": "+why)
		}
	}
	if nodes == 0 && len(cluster) > 0 {
		return findings.Trouble(cluster)
	}
	if nodes == 0 {
		return fmt.Sprintf("OK: %s, nothing is wrong on any", wording.Count(len(states), "node"))
	}
	return clean(fmt.Sprintf("TROUBLE on %d of %s: %s", nodes, wording.Count(len(states), "node"), first))
}

// show prints the verdict, the summary, the nodes, and their findings: the worst node first.
func show(w io.Writer, states []state, cluster []findings.Finding, all bool) {
	states = worstFirst(states)
	screen.Of(w).Line(w, screen.Plain, "", verdict(states, cluster))
	summary(w, states)
	t := screen.Table{Below: []string{"PEERS", "TROUBLE"}, Spare: []string{"VERSION", "SITE", "NAT"}}
	t.Add(screen.Plain, "NODE", "STATE", "READY", "VERSION", "SITE", "NAT", "RELAYS", "PEERS", "TROUBLE")
	well := 0
	for _, s := range states {
		why := trouble(s, states)
		if why == "" && !all {
			well++
			continue
		}
		site, nat, relays, peers := "-", "-", "-", "-"
		if st := s.Status; st != nil {
			reserved := 0
			for _, r := range st.Relays {
				if r.Reserved {
					reserved++
				}
			}
			site, nat, relays = cmp.Or(st.Site, "-"), st.NAT.Kind, fmt.Sprintf("%d/%d", reserved, len(st.Relays))
			peers = counted(st.Peers)
		}
		t.Add(screen.Plain, s.Node, severity(s, states), cmp.Or(s.Ready, "-"), cmp.Or(s.Version, "-"), site, nat, relays, peers, cmp.Or(why, "-"))
	}
	if well < len(states) {
		fmt.Fprintln(w)
		t.Print(w, screen.Of(w))
	}
	if well > 0 {
		fmt.Fprintf(w, "\n%s without trouble: --all shows them\n", wording.Count(well, "node"))
	}
	printFindings(w, "cluster", cluster)
	for _, s := range states {
		if s.Status != nil {
			printFindings(w, s.Node, s.Status.Found())
		}
	}
	next := "`kubectl edgemesh status NODE` shows one node"
	if i := slices.IndexFunc(states, func(s state) bool { return s.Status != nil && trouble(s, states) != "" }); i >= 0 {
		next = "`kubectl edgemesh doctor " + clean(states[i].Node) + "` checks that node"
	}
	fmt.Fprintln(w)
	screen.Of(w).Line(w, screen.Plain, "next: ", next)
}

// summary is all nodes in a few lines.
func summary(w io.Writer, states []state) {
	ready, reached := 0, 0
	versions := map[string]int{}
	var peers []control.PeerStatus
	for _, s := range states {
		if s.Ready == "True" {
			ready++
		}
		if s.Status != nil {
			reached++
			peers = append(peers, s.Status.Peers...)
		}
		versions[cmp.Or(s.Version, "unknown")]++
	}
	fmt.Fprintf(w, "nodes     %d: %d ready, %d reached\n", len(states), ready, reached)
	var texts []string
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		texts = append(texts, fmt.Sprintf("%s (%d)", clean(v), versions[v]))
	}
	fmt.Fprintf(w, "versions  %s\n", strings.Join(texts, ", "))
	fmt.Fprintf(w, "paths     %s\n", counted(peers))
}

// counted is how many peers have which path: "3: 2 native, 1 idle".
func counted(peers []control.PeerStatus) string {
	n := map[string]int{}
	for _, p := range peers {
		n[p.Path]++
	}
	var parts []string
	for _, path := range paths {
		if n[path] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[path], path))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprint(len(peers))
	}
	return fmt.Sprintf("%d: %s", len(peers), strings.Join(parts, ", "))
}

// trouble is what an operator has to look at, "" if there is nothing.
func trouble(s state, all []state) string {
	var out []string
	if s.Ready != "True" {
		out = append(out, "not ready: "+cmp.Or(s.Because, "its agent has not said why"))
	}
	if s.Status == nil {
		return strings.Join(append(out, "not reached: "+s.Error, "to the others it is "+seen(s.Node, all)), "; ")
	}
	if s.Status.Findings == nil {
		out = append(out, unjudged(*s.Status)...)
	}
	if wrong := findings.Only(s.Status.Found(), findings.Broken, findings.Warning); len(wrong) > 0 {
		out = append(out, strings.TrimPrefix(findings.Trouble(wrong), "TROUBLE: "))
	}
	return strings.Join(out, "; ")
}

// unjudged is what agents until release 0.9 leave to others to judge.
func unjudged(st control.Status) (out []string) {
	if len(st.Relays) > 0 && !slices.ContainsFunc(st.Relays, func(r control.RelayStatus) bool { return r.Reserved }) {
		out = append(out, "no relay: "+cmp.Or(st.Relays[0].Error, "no reservation"))
	}
	var none []string
	for _, p := range st.Peers {
		if p.Path == "none" {
			none = append(none, p.Node)
		}
	}
	if len(none) > 0 {
		out = append(out, "no path to "+wording.Most(none, 3))
	}
	return out
}

// seen says by which paths the agents that were reached see a node.
func seen(node string, all []state) string {
	var as []control.PeerStatus
	for _, s := range all {
		if s.Status == nil {
			continue
		}
		for _, p := range s.Status.Peers {
			if p.Node == node {
				as = append(as, p)
			}
		}
	}
	if len(as) == 0 {
		return "unknown"
	}
	_, text, _ := strings.Cut(counted(as), ": ")
	return text
}

// printFindings shows what is wrong with one node, and what to do.
func printFindings(w io.Writer, node string, all []findings.Finding) {
	for _, f := range all {
		if !f.Severity.Wrong() {
			continue
		}
		screen.Of(w).Line(w, screen.Plain, "", fmt.Sprintf("%s: %s: %s: %s", node, f.Severity, f.ID, f.Text))
		if f.Remedy != "" {
			screen.Of(w).Line(w, screen.Plain, "  → ", f.Remedy)
		}
	}
}
