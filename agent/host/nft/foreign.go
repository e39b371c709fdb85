package nft

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
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
	table := closed(nftables.ChainHookForward)
	if table == "" || mentions(ctx, nft, table, s, `"`+plan.BridgeName+`"`) {
		return "", ""
	}
	return "nftables table " + table + " drops or rejects forwarded packets that iptables has accepted: pods may be unreachable",
		opening(table, "let its table accept forwarded packets from and to the pod ranges", s)
}

// CheckInput is CheckForward for what comes to this node itself. A table that opens kubelet's port is meant so.
func CheckInput(ctx context.Context, nft string, s plan.State) (detail, remedy string) {
	table := closed(nftables.ChainHookInput)
	if table == "" || mentions(ctx, nft, table, s, `"`+plan.TUNName+`"`, plan.KubeletPort) {
		return "", ""
	}
	return "nftables table " + table + " drops or rejects what comes to this node, so other nodes may not reach its mesh address: kubectl logs and exec, Services, scrapes",
		opening(table, "let its table accept what comes from the pod ranges", s)
}

// opening says how a table lets the pod ranges in; other is for tables of programs not known here.
func opening(table, other string, s plan.State) string {
	if !strings.HasSuffix(table, " firewalld") {
		return other
	}
	remedy := "firewall-cmd --permanent --zone=trusted"
	for _, r := range s.Ranges() {
		remedy += " --add-source=" + r.String()
	}
	if s.LAN.VXLAN {
		remedy += fmt.Sprintf("; firewall-cmd --permanent --add-port=%d/udp", s.LAN.VXLANPort)
	}
	return remedy + "; firewall-cmd --reload"
}

// mentions reports whether a table has rules about a pod range, or about one of told.
func mentions(ctx context.Context, nft, table string, s plan.State, told ...string) bool {
	if nft == "" {
		return false
	}
	for _, r := range s.Ranges() {
		told = append(told, r.String())
	}
	out, err := exec.CommandContext(ctx, nft, append([]string{"-s", "list", "table"}, strings.Fields(table)...)...).Output()
	return err == nil && slices.ContainsFunc(told, func(t string) bool { return strings.Contains(string(out), t) })
}

// closed names the foreign table whose chain at a hook passes nothing by itself, "" if there is none.
func closed(hook *nftables.ChainHook) string {
	c := conn()
	all, err := c.ListChains()
	if err != nil {
		return ""
	}
	for _, chain := range all {
		kind := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[chain.Table.Family]
		iptables := kind != "inet" && chain.Table.Name == "filter" // iptables' own, checked as FORWARD and INPUT
		if kind == "" || iptables || chain.Type != nftables.ChainTypeFilter || chain.Hooknum == nil || *chain.Hooknum != *hook {
			continue
		}
		drops := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		if rules, err := c.GetRules(chain.Table, chain); err == nil && len(rules) > 0 {
			drops = drops || refusesAll(rules[len(rules)-1])
		}
		if drops {
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
