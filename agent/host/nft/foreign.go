package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/verdict"
)

// CheckForward looks for what no rule of ours can overrule: native nftables chains that drop or reject packets between pods.
// sure: one of them drops all of them. detail is "" if there is no such chain.
func CheckForward(s plan.State) (detail, remedy string, sure bool) {
	var worst verdict.Cut
	for _, hook := range []nftables.ChainHook{*nftables.ChainHookForward, *nftables.ChainHookPrerouting, *nftables.ChainHookPostrouting} {
		for _, b := range foreign(hook) {
			for _, f := range s.Each {
				cut := b.worst(f)
				if !cut.WorseThan(worst) {
					continue
				}
				worst = cut
				detail = fmt.Sprintf("nftables table %s drops or rejects forwarded packets that iptables has accepted: %s", b.table, cut)
				remedy = opening(b.table, "let its table accept forwarded packets from and to the pod ranges: `nft -a list table "+b.table+"` shows chain and rule", s)
			}
		}
	}
	return detail, remedy, worst.Sure
}

// CheckInput is CheckForward for what comes to this node itself. A table that opens kubelet's port is meant so.
func CheckInput(s plan.State) (detail, remedy string) {
	kubelet, _ := strconv.ParseUint(plan.KubeletPort, 10, 16)
	for _, b := range foreign(*nftables.ChainHookInput) {
		for _, f := range s.Each {
			for _, pair := range verdict.Between(f, nil) {
				p := pair[0]
				p.Proto, p.Port, p.Out, p.Dst = unix.IPPROTO_TCP, uint16(kubelet), "", f.Gateway
				if p.In != plan.TUNName || !p.Dst.IsValid() || !b.concerns(f) {
					continue
				}
				if fate := b.chains.Of(b.name, p); fate.Dropped && !fate.Meant {
					return "nftables table " + b.table + " drops or rejects what comes to this node, so other nodes may not reach its mesh address: kubectl logs and exec, Services, scrapes",
						opening(b.table, "let its table accept what comes from the pod ranges", s)
				}
			}
		}
	}
	return "", ""
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

// base is a chain that a hook calls, with all chains of its table.
type base struct {
	table  string // family and name
	name   string
	hook   nftables.ChainHook
	raw    bool // before connection tracking
	chains verdict.Chains
	named  []netip.Prefix
}

// concerns reports whether a table sees a family's packets.
func (b base) concerns(f plan.Family) bool {
	return !strings.HasPrefix(b.table, map[bool]string{true: "ip ", false: "ip6 "}[f.V6])
}

// worst follows packets between pods through the chain.
func (b base) worst(f plan.Family) verdict.Cut {
	if !b.concerns(f) {
		return verdict.Cut{}
	}
	packets := verdict.Between(f, b.named)
	if b.hook == *nftables.ChainHookPrerouting {
		packets = verdict.Entering(packets, b.raw)
	}
	return b.chains.Worst(b.name, packets)
}

// kinds are the families of tables that see routed packets.
var kinds = map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"} //nolint:gochecknoglobals // a constant

// ofIPTables are the tables that iptables makes, which package iptables reads.
var ofIPTables = []string{"raw", "mangle", "nat", "filter", "security"} //nolint:gochecknoglobals // a constant

// foreign lists the chains of other programs' tables at a hook that can drop something.
func foreign(hook nftables.ChainHook) (out []base) {
	c := conn()
	all, err := c.ListChains()
	if err != nil {
		return nil
	}
	for _, chain := range all {
		kind := kinds[chain.Table.Family]
		ours := kind == "inet" && slices.Contains([]string{guardTable, natTable}, chain.Table.Name)
		iptables := kind != "inet" && slices.Contains(ofIPTables, chain.Table.Name)
		if kind == "" || iptables || ours || chain.Type != nftables.ChainTypeFilter || chain.Hooknum == nil || *chain.Hooknum != hook {
			continue
		}
		b := base{table: kind + " " + chain.Table.Name, name: chain.Name, hook: hook}
		b.raw = chain.Priority != nil && *chain.Priority <= *nftables.ChainPriorityConntrack
		t := &reader{conn: c, table: chain.Table, sets: map[string]*set{}}
		b.chains, b.named = t.read(chain, all)
		out = append(out, b)
	}
	return out
}
