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

// CheckForward looks for what no rule of ours can overrule: a foreign nftables chain that drops or
// rejects forwarded packets unless one of its own rules accepts them, in a table that names
// neither the bridge nor a pod range (firewalld by default). It returns what is wrong and what
// to do, "" if there is no such chain. nft is the program's path, "" if it is missing.
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
	return "nftables table " + table + " drops or rejects forwarded packets that iptables has accepted: pods may be unreachable", remedy
}

// closedForward names the foreign table whose forward chain passes nothing by itself, "" if there is
// none.
func closedForward() string {
	c := conn()
	all, err := c.ListChains()
	if err != nil {
		return ""
	}
	for _, chain := range all {
		kind := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[chain.Table.Family]
		iptables := kind != "inet" && chain.Table.Name == "filter" // iptables' own, checked as FORWARD
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

// refusesAll reports whether a rule drops or rejects every packet.
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
