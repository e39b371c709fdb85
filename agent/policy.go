package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

func newPolicy() *cobra.Command {
	var f clientFlags
	c := &cobra.Command{
		Use:   "policy [NAMESPACE/POD|POD-IP]",
		Short: "Show the NetworkPolicies in force on this node, and what they drop",
		Long: `Show which NetworkPolicies apply to pods of this node, how many connections each of them
accepted, and what was dropped: by pod, and the flows of the last minute with the policies
that isolate the pod. A direction without a policy is open, and a pod that is not listed is
open in both. Hits are those of all pods with the same policies. "closed" is a new pod in a
namespace with policies that no source has named yet.`,
		Example: `  edgemesh-agent policy
  edgemesh-agent policy shop/web-0
  edgemesh-agent policy 10.244.1.5 --json | jq '.flows[] | {from, port, policies}'`,
		Args: cli.Optional("NAMESPACE/POD|POD-IP"),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := f.client().Policies(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			if f.json {
				return cli.JSON(c.OutOrStdout(), p)
			}
			printPolicies(c.OutOrStdout(), p)
			return nil
		},
	}
	f.add(c)
	return c
}

func printPolicies(w io.Writer, p control.Policies) {
	switch {
	case p.Off:
		fmt.Fprintln(w, "networkPolicy: off: nothing is enforced")
		return
	case len(p.Pods) == 0:
		fmt.Fprintln(w, "no NetworkPolicy applies")
	}
	fmt.Fprintf(w, "from %s; dropped: %d packets to pods, %d from pods\n", wording.Printable(p.Source), p.Dropped["ingress"], p.Dropped["egress"])
	for _, problem := range []string{p.Problem, p.Failure} {
		if problem != "" {
			fmt.Fprintln(w, "PROBLEM:", wording.Printable(problem))
		}
	}
	for _, pod := range p.Pods {
		fmt.Fprintf(w, "\n%s  %s\n", wording.Printable(pod.Pod), strings.Join(pod.Addresses, ", "))
		printDirection(w, "ingress", pod.Ingress)
		printDirection(w, "egress", pod.Egress)
	}
	if len(p.Flows) > 0 {
		fmt.Fprintln(w, "\ndropped within the last minute:")
	}
	for _, x := range p.Flows {
		fmt.Fprintf(w, "  %s to %s, %s port %d: %s, %s of %s, by %s\n", x.From, x.To, x.Protocol, x.Port, wording.Count(int(x.Packets), "packet"), x.Direction,
			wording.Printable(x.Pod), wording.Printable(wording.List(x.Policies)))
	}
}

func printDirection(w io.Writer, name string, d *control.PolicyDirection) {
	if d == nil {
		fmt.Fprintf(w, "  %s: open\n", name)
		return
	}
	if d.Closed {
		fmt.Fprintf(w, "  %s: closed, since no source has named this pod yet; %d dropped\n", name, d.Dropped)
		return
	}
	fmt.Fprintf(w, "  %s: isolated by %s; %d dropped\n", name, wording.Printable(wording.List(d.Policies)), d.Dropped)
	for _, by := range slices.Sorted(maps.Keys(d.Hits)) {
		fmt.Fprintf(w, "    accepted by %s: %d\n", wording.Printable(by), d.Hits[by])
	}
	who := map[string]string{"ingress": "pod here that the policy selects", "egress": "pod that is a peer"}[name]
	for _, port := range d.NoPort {
		fmt.Fprintf(w, "    no container of a %s has this port, which matches nothing: %s\n", who, wording.Printable(port))
	}
}
