package nft

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"edgemesh/agent/host/plan"
)

// CheckForward looks for what no rule of ours can overrule: an nftables chain
// beside iptables' own that drops or rejects what is forwarded unless a rule of its own
// accepts it, and none of its table's names the bridge or a pod range (firewalld as it
// comes). It says what is wrong and what to do, "" when there is nothing. nft is the
// program's path, "" where there is none.
func CheckForward(ctx context.Context, nft string, s plan.State) (detail, remedy string) {
	table := closedForward()
	if table == "" {
		return "", ""
	}
	told := []string{`"` + plan.BridgeName + `"`}
	remedy = "let its table accept forwarded packets from and to the pod ranges"
	if strings.HasSuffix(table, " firewalld") {
		remedy = "firewall-cmd --permanent --zone=trusted"
		for _, r := range s.Ranges() {
			remedy += " --add-source=" + r.String()
		}
		if s.LAN.VXLAN {
			remedy += fmt.Sprintf("; firewall-cmd --permanent --add-port=%d/udp", s.LAN.VXLANPort)
		}
		remedy += "; firewall-cmd --reload"
	}
	for _, r := range s.Ranges() {
		told = append(told, r.String())
	}
	if nft != "" {
		out, err := exec.CommandContext(ctx, nft, append([]string{"list", "table"}, strings.Fields(table)...)...).Output()
		for _, t := range told {
			if err == nil && strings.Contains(string(out), t) {
				return "", ""
			}
		}
	}
	return "nftables table " + table + " drops or rejects forwarded packets after iptables accepted them: pods may have no connection", remedy
}

// closedForward names the table of others whose forward chain lets nothing pass by
// itself, "" when there is none.
func closedForward() string {
	c := conn()
	all, err := c.ListChains()
	if err != nil {
		return ""
	}
	for _, chain := range all {
		kind := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[chain.Table.Family]
		iptables := kind != "inet" && chain.Table.Name == "filter" // looked at as FORWARD
		if kind == "" || iptables || chain.Type != nftables.ChainTypeFilter || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		closed := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		if rules, err := c.GetRules(chain.Table, chain); err == nil && len(rules) > 0 {
			closed = closed || refusesAll(rules[len(rules)-1])
		}
		if closed {
			return kind + " " + chain.Table.Name
		}
	}
	return ""
}

// refusesAll reports whether a rule drops or rejects whatever comes to it.
func refusesAll(r *nftables.Rule) bool {
	refuses := false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			refuses = true
		case *expr.Verdict:
			refuses = refuses || e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return refuses
}
