package nft

import (
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// The guard's table also takes forwarded probes, at the last place of POSTROUTING: before that a rule of any program may have dropped
// them, and behind it the kernel would look for a neighbour that does not exist.
//
//	set probers4 { type ipv4_addr }                               where peers send them from; no pod has these addresses
//	set probers4-rate { type ipv4_addr; timeout }                 as rules add them, each with its limit
//	chain forwarded { type filter hook postrouting priority 2147483646
//		ip daddr PROBE, oifname edgemesh-br, iifname != edgemesh-br goto probes4
//	}
//	chain probes4 {
//		ip saddr @probers4 goto taken4
//		ct status snat, th dport { 5214, 5215 } or ICMP's identifier goto taken4   a rule of this host has translated it
//		ct state related limit rate 20/second log group 5212
//		ct state related drop                                     what a rule answers that rejects them
//	}
//	chain translated { type filter hook prerouting priority -99
//		ct status & dnat == 0 accept                              chain pods has noted it
//		ip daddr RANGE, ip saddr != PROBE add @sent4-24           what goes to Services
//	}
//	chain taken4 {
//		update @probers4-rate { ip saddr limit rate over 200/second } drop
//		log group 5212
//		drop
//	}
const (
	chainForwarded = "forwarded"
	chainProbes    = "probes" // begins the names of chains, one per IP version
	chainTaken     = "taken"  // likewise
	chainDNAT      = "translated"
	rated          = "-rate"
	proberStays    = 10 * time.Second
	proberRate     = 200             // a second
	answerRate     = 20              // likewise
	sentStays      = 2 * time.Second // twice as long as it takes between two readings
)

func proberSet(v6 bool) string { return "probers" + suffix(v6) }

// noteSent notes to which blocks packets are sent that the words match.
func (c *chain) noteSent(f plan.Family, which words) {
	daddr := ip(f.V6).daddr()
	if f.Probe.IsValid() {
		which = append(which, ip(f.V6).saddr().isNot(f.Probe)...)
	}
	for _, r := range f.Ranges {
		for _, bits := range f.LAN.Bits {
			c.add(isVersion(f.V6), daddr.in(r), which, noteOnce(sentSet(f.V6, bits), sentStays, daddr.bits(bits)))
		}
	}
}

// forwarded are the chains that take forwarded probes of these families, and that which notes what is sent to Services.
// Each packet of the host enters the hooks, so these have as few rules as can be.
func forwarded(families []plan.Family) (out []chain) {
	log := words{&expr.Log{Key: 1 << unix.NFTA_LOG_GROUP, Group: plan.ForwardGroup}}
	hook := chain{name: chainForwarded, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: lastPriority}
	services := chain{name: chainDNAT, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityNATDest + 1}
	services.add(ctStatus.and(bytesOf(host(destinationNAT))).is(host(0)), accept)
	for _, f := range families {
		if !f.Probe.IsValid() {
			continue
		}
		services.noteSent(f, nil)
		saddr, daddr := ip(f.V6).saddr(), ip(f.V6).daddr()
		probes, taken := chain{name: chainProbes + suffix(f.V6)}, chain{name: chainTaken + suffix(f.V6)}
		hook.add(isVersion(f.V6), daddr.is(f.Probe), oifname.is(plan.BridgeName), iifname.isNot(plan.BridgeName), goTo(probes.name))
		snatted := ctStatus.and(bytesOf(host(sourceNAT))).isNot(host(0))
		for _, from := range []words{
			inSet(proberSet(f.V6), saddr), rule(snatted, dport.is(uint16(mesh.ForwardTo))), rule(snatted, dport.is(uint16(mesh.ForwardFlow))),
			rule(snatted, payload(expr.PayloadBaseTransportHeader, 4, 2).is(uint16(mesh.ForwardID))),
		} {
			probes.add(from, goTo(taken.name))
		}
		few := words{&expr.Limit{Type: expr.LimitTypePkts, Rate: answerRate, Unit: expr.LimitTimeSecond, Burst: answerRate}}
		related := ctState.and(bytesOf(host(expr.CtStateBitRELATED))).isNot(host(0))
		probes.add(related, few, log)
		probes.add(related, drop)
		limit := note(proberSet(f.V6)+rated, proberStays, saddr)
		limit[len(limit)-1].(*expr.Dynset).Exprs = []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: proberRate, Unit: expr.LimitTimeSecond, Burst: proberRate, Over: true}}
		taken.add(limit, drop)
		taken.add(log)
		taken.add(drop)
		out = append(out, taken, probes)
	}
	if out == nil {
		return nil
	}
	return append(out, services, hook)
}
