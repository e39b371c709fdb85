package fleet

import (
	"fmt"

	"github.com/spf13/cobra"

	"edgemesh/agent/findings"
	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

// examined is what doctor found on one node.
type examined struct {
	Node     string             `json:"node"`
	Error    string             `json:"error,omitempty"` // why the agent was not reached
	Findings []findings.Finding `json:"findings,omitempty"`
}

func newDoctor(k *cluster) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [NODE [POD-IP|NODE] [OPTIONS]]",
		Short: "Check all nodes, or one, or the path from one to another",
		Long: `Have every agent check its node, and show what is wrong. Exits with 1 if something is broken
on any node; a node whose agent cannot be reached is named, and counts only if none can.
With NODE, have that node's agent check, and follow a packet to POD-IP or to another node;
options behind it are those of edgemesh-agent doctor; the file of --bundle is made here.`,
		Example: `  kubectl edgemesh doctor
  kubectl edgemesh doctor edge-1
  kubectl edgemesh doctor edge-1 10.244.2.7
  kubectl edgemesh doctor edge-1 --bundle edge-1.tar.gz`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return k.pass(c, args[0], append([]string{"doctor"}, args[1:]...)...)
			}
			members, cluster, err := k.members(c.Context())
			if err != nil {
				return err
			}
			all := make([]examined, len(members))
			each(members, func(i int, m member) {
				all[i].Node = m.Node
				if err := k.query(c.Context(), m, &all[i].Findings, "doctor"); err != nil {
					all[i].Error = err.Error()
				}
			})
			if asJSON {
				if err := cli.JSON(c.OutOrStdout(), report[examined]{all, cluster}); err != nil {
					return err
				}
			} else {
				printFindings(c.OutOrStdout(), "cluster", cluster)
			}
			return judge(c, all, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().SetInterspersed(false)
	return c
}

// judge prints what was found, unless it is printed already, and fails where something is broken, or no agent was reached.
func judge(c *cobra.Command, all []examined, printed bool) error {
	w := c.OutOrStdout()
	reached, broken := 0, 0
	for _, e := range all {
		if e.Error == "" {
			reached++
		}
		if findings.Has(e.Findings, findings.Broken) {
			broken++
		}
		switch {
		case printed:
		case e.Error != "":
			fmt.Fprintf(w, "%s: not reached: %s\n", clean(e.Node), clean(e.Error))
		default:
			printFindings(w, e.Node, e.Findings)
		}
	}
	if !printed {
		fmt.Fprintf(w, "%s: %d checked, something is broken on %d\n", wording.Count(len(all), "node"), reached, broken)
	}
	if broken > 0 || reached == 0 {
		return cli.ErrReported
	}
	return nil
}
