package host

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"edgemesh/agent/control"
)

// checkNativeFilter looks for what no rule of ours can overrule: an nftables chain
// beside iptables' own that drops or rejects what is forwarded unless a rule of its own
// accepts it, and none of its table's names the bridge or a pod range (firewalld as it
// comes).
func checkNativeFilter(ctx context.Context, look lookup, fs families) (control.Finding, bool) {
	table := closedForward()
	if table == "" {
		return control.Finding{}, false
	}
	told := []string{`"` + BridgeName + `"`}
	remedy := "let its table accept forwarded packets from and to the pod ranges"
	if strings.HasSuffix(table, " firewalld") {
		remedy = "firewall-cmd --permanent --zone=trusted"
		for _, f := range fs.held() {
			for _, r := range f.ranges {
				remedy += " --add-source=" + r.String()
			}
		}
		if fs.lan.VXLAN {
			remedy += fmt.Sprintf("; firewall-cmd --permanent --add-port=%d/udp", fs.lan.VXLANPort)
		}
		remedy += "; firewall-cmd --reload"
	}
	for _, f := range fs.held() {
		for _, r := range f.ranges {
			told = append(told, r.String())
		}
	}
	if nft := look("nft"); nft != "" {
		out, err := exec.CommandContext(ctx, nft, append([]string{"list", "table"}, strings.Fields(table)...)...).Output()
		for _, t := range told {
			if err == nil && strings.Contains(string(out), t) {
				return control.Finding{}, false
			}
		}
	}
	return finding("nftables", control.Warning,
		"nftables table "+table+" drops or rejects forwarded packets after iptables accepted them: pods may have no connection", remedy), true
}

// closedForward names the table of others whose forward chain lets nothing pass by
// itself, "" when there is none.
func closedForward() string {
	c, err := nftables.New()
	if err != nil {
		return "" // no nftables in the kernel, so no such chain
	}
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
