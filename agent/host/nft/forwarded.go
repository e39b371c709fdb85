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
//		oifname edgemesh-br, iifname != edgemesh-br, ip daddr PROBE, ip saddr @probers4 goto taken4
//		oifname edgemesh-br, iifname != edgemesh-br, ip daddr PROBE, ct status snat, th dport { 5214, 5215 } or ICMP's identifier goto taken4
//		                                                          a rule of this host has translated it
//		oifname edgemesh-br, iifname != edgemesh-br, ip daddr PROBE, ct state related limit rate 20/second log group 5212
//		oifname edgemesh-br, iifname != edgemesh-br, ip daddr PROBE, ct state related drop   what a rule answers that rejects them
//	}
//	chain translated { type filter hook prerouting priority -99
//		iifname != edgemesh-br accept
//		ct status & dnat == 0 accept                              chain pods has noted it
//		ip daddr RANGE, ip saddr != PROBE add @sent4-24           what pods send to Services
//	}
//	chain taken4 {
//		update @probers4-rate { ip saddr limit rate over 200/second } drop
//		log group 5212
//		drop
//	}
const (
	chainForwarded = "forwarded"
	chainTaken     = "taken" // begins the names of chains, one per IP version
	chainDNAT      = "translated"
	rated          = "-rate"
	proberStays    = 10 * time.Second
	proberRate     = 200             // a second
	answerRate     = 20              // likewise
	sentStays      = 2 * time.Second // twice as long as it takes between two readings
)

func proberSet(v6 bool) string { return "probers" + suffix(v6) }

// noteSent notes to which blocks pods send.
func (c *chain) noteSent(f plan.Family) {
	for _, r := range f.Ranges {
		for _, bits := range f.LAN.Bits {
			if daddr := ip(f.V6).daddr(); f.Probe.IsValid() {
				c.add(isVersion(f.V6), daddr.in(r), ip(f.V6).saddr().isNot(f.Probe), noteOnce(sentSet(f.V6, bits), sentStays, daddr.bits(bits)))
			}
		}
	}
}

// forwarded are the chains that take forwarded probes of these families, and that which notes what pods send to Services.
func forwarded(families []plan.Family) (out []chain) {
	log := words{&expr.Log{Key: 1 << unix.NFTA_LOG_GROUP, Group: plan.ForwardGroup}}
	hook := chain{name: chainForwarded, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: lastPriority}
	services := chain{name: chainDNAT, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityNATDest + 1}
	services.add(iifname.isNot(plan.BridgeName), accept)
	services.add(ctStatus.and(bytesOf(host(destinationNAT))).is(host(0)), accept)
	for _, f := range families {
		if !f.Probe.IsValid() {
			continue
		}
		services.noteSent(f)
		saddr, c := ip(f.V6).saddr(), chain{name: chainTaken + suffix(f.V6)}
		snatted := ctStatus.and(bytesOf(host(sourceNAT))).isNot(host(0))
		to := rule(oifname.is(plan.BridgeName), iifname.isNot(plan.BridgeName), isVersion(f.V6), ip(f.V6).daddr().is(f.Probe))
		for _, from := range []words{
			inSet(proberSet(f.V6), saddr), rule(snatted, dport.is(uint16(mesh.ForwardTo))), rule(snatted, dport.is(uint16(mesh.ForwardFlow))),
			rule(snatted, payload(expr.PayloadBaseTransportHeader, 4, 2).is(uint16(mesh.ForwardID))),
		} {
			hook.add(to, from, goTo(c.name))
		}
		few := words{&expr.Limit{Type: expr.LimitTypePkts, Rate: answerRate, Unit: expr.LimitTimeSecond, Burst: answerRate}}
		related := ctState.and(bytesOf(host(expr.CtStateBitRELATED))).isNot(host(0))
		hook.add(to, related, few, log)
		hook.add(to, related, drop)
		limit := note(proberSet(f.V6)+rated, proberStays, saddr)
		limit[len(limit)-1].(*expr.Dynset).Exprs = []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: proberRate, Unit: expr.LimitTimeSecond, Burst: proberRate, Over: true}}
		c.add(limit, drop)
		c.add(log)
		c.add(drop)
		out = append(out, c)
	}
	if out == nil {
		return nil
	}
	return append(out, services, hook)
}
