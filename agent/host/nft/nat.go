package nft

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// kube-proxy's nftables mode masquerades in a table of its own, at the priority of iptables'
// nat. Of two chains with one priority the younger runs first, so iptables' rule for packets
// into the cluster (EDGEMESH-INSIDE) never sees what kube-proxy has translated. On the TUN that
// makes no difference: its address is the gateway. On a native path the packet gets the LAN's
// address, which the peer drops. So where such paths may be used, a chain ahead of both has
// the same rules:
//
//	table inet edgemesh-nat {
//		chain inside { type nat hook postrouting priority srcnat - 1
//			oifname { edgemesh-br, lo } return
//			ip saddr BLOCK, not its GATEWAY, ip daddr RANGE snat to ip saddr   where nodes' packets take the tunnel: no pod may become one
//			ip daddr RANGE meta mark & 0x4000 == 0x4000 snat to GATEWAY
//			ip saddr RANGE return
//			ip daddr RANGE snat to GATEWAY
//		}
//	}
const (
	natTable = "edgemesh-nat"
	natChain = "inside"
)

// natFamilies returns the families that need the table.
func natFamilies(s plan.State) []plan.Family {
	var out []plan.Family
	for _, f := range s.Held() {
		if f.LAN.On && !f.Keep && len(f.Ranges) > 0 {
			f.Access = plan.Access{} // iptables has it
			out = append(out, f)
		}
	}
	return out
}

func natWanted(s plan.State) bool { return len(natFamilies(s)) > 0 }

// natOf returns the wanted table.
func natOf(s plan.State) table {
	c := chain{name: natChain, kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: *nftables.ChainPriorityNATSource - 1}
	c.add(oifname.is(plan.BridgeName), ret)
	c.add(oifname.is("lo"), ret)
	for _, f := range natFamilies(s) {
		saddr, daddr := ip(f.V6).saddr(), ip(f.V6).daddr()
		for _, b := range f.Blocks {
			for _, r := range f.Ranges {
				if f.LAN.PodsOnly { // answers come back here anyway, to the pod's own address
					c.add(isVersion(f.V6), saddr.inBut(b, mesh.Gateway(b)), daddr.in(r), snatToItself(f.V6))
				}
			}
		}
		for _, r := range f.Ranges {
			c.add(isVersion(f.V6), daddr.in(r), mark.and(bytesOf(host(plan.KubeMark))).is(host(plan.KubeMark)), snatTo(f.Gateway))
		}
		for _, r := range f.Ranges {
			c.add(isVersion(f.V6), saddr.in(r), ret)
		}
		for _, r := range f.Ranges {
			c.add(isVersion(f.V6), daddr.in(r), snatTo(f.Gateway))
		}
	}
	return table{name: natTable, chains: []chain{c}, print: fingerprint(3, natFamilies(s)), marks: []string{natChain}}
}

// translated matches pods' connections to far pods that have the node's address from before PodsOnly.
type translated struct{ plan.Family }

func (f translated) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	from, _ := netip.AddrFromSlice(c.Forward.SrcIP)
	far, _ := netip.AddrFromSlice(c.Reverse.SrcIP)
	as, _ := netip.AddrFromSlice(c.Reverse.DstIP)
	from, far, as = from.Unmap(), far.Unmap(), as.Unmap()
	node := slices.ContainsFunc(f.Gateways(), func(p netip.Prefix) bool { return p.Addr() == as })
	return node && from != as && f.Own(from) && !f.Own(far) && f.InRange(plan.Single(far))
}

// forgetTranslated removes these from conntrack: rules give an address to a connection's first packet alone, and peers drop what comes past the
// tunnel with a node's.
func forgetTranslated(s plan.State, log *slog.Logger) {
	for _, f := range natFamilies(s) {
		if !f.LAN.PodsOnly {
			continue
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.ID()), translated{f})
		if n > 0 || err != nil {
			log.Info("hostAccess: conntrack forgot pods' connections that had the node's address", "number", n, "err", err)
		}
	}
}
