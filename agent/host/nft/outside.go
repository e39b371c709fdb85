package nft

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

const (
	chainLast    = "postrouting"
	chainOutside = "outside" // begins the names of chains, one per IP version
	// strayStays is how long a dropped packet is remembered: until after the next probe of the host's firewall.
	strayStays = 6 * time.Minute
	probing    = "-probes" // ends the names of sets of who sends probes alone
)

// Of neighbour discovery (RFC 4861, section 4), which names addresses and carries nothing of pods.
const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

func hopPrefix(v6 bool) string        { return "hops" + suffix(v6) + "-" }
func hopSet(v6 bool, bits int) string { return fmt.Sprint(hopPrefix(v6), bits) }
func straySet(v6 bool) string         { return "strays" + suffix(v6) }

// outside is what the chains are made from that drop what would leave for the ranges.
type outside struct {
	families               []plan.Family // whose packets may not leave over other programs' interfaces
	native, routed, realms bool          // as the guard has them
}

func (o outside) hops(f plan.Family) bool { return f.LAN.On && o.native }

// hopSets are the names of a family's.
func hopSets(f plan.Family) []string {
	out := []string{hopPrefix(f.V6) + probing}
	for _, bits := range f.LAN.Bits {
		out = append(out, hopSet(f.V6, bits))
	}
	return out
}

func (o outside) chains() []chain {
	if len(o.families) == 0 {
		return nil
	}
	hook := chain{name: chainLast, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: lastPriority - 1} // package probe's own chain comes last
	if o.routed {
		hook.add(oifname.is(plan.BridgeName), redirect(false), drop)
		hook.add(oifname.is(plan.BridgeName), redirect(true), drop)
	}
	var out []chain
	for _, f := range o.families {
		saddr, daddr, nexthop := ip(f.V6).saddr(), ip(f.V6).daddr(), ip(f.V6).nexthop()
		c := chain{name: chainOutside + suffix(f.V6)}
		c.add(oifname.is([]byte(plan.LinkPrefix)), accept) // as much of the name
		c.add(oifname.is("lo"), accept)
		if f.V6 {
			for _, kind := range []byte{neighbourSolicitation, neighbourAdvertisement} { // no router forwards these: their hop limit is 255
				c.add(l4proto.is(byte(unix.IPPROTO_ICMPV6)), ip(true).at(8, 7, 1).is(byte(255)), icmpType.is(kind), accept)
			}
		}
		if o.hops(f) {
			for _, bits := range f.LAN.Bits {
				c.add(inSet(hopSet(f.V6, bits), oif, daddr.bits(bits), nexthop), accept)
				if !f.V6 {
					c.add(o.ownRoute(), inSet(hopSet(f.V6, bits), oif, daddr.bits(bits), nexthop.bits(bits)), accept)
				}
			}
			if f.Probe.IsValid() {
				c.add(saddr.is(f.Probe), inSet(hopPrefix(f.V6)+probing, oif, daddr, nexthop), accept)
			}
			c.add(isUDP, mark.and(bytesOf(host(plan.OwnMarkMask))).is(host(plan.OwnMarks)), inSet(hopPrefix(f.V6)+probing, oif, daddr, nexthop), accept)
		}
		c.add(note(straySet(f.V6), strayStays, oif, mark, saddr, daddr))
		c.add(drop)
		out = append(out, c)
		for _, r := range f.Ranges {
			hook.add(isVersion(f.V6), daddr.in(r), goTo(c.name))
		}
	}
	return append(out, hook)
}

// redirect matches an ICMP redirect (RFC 792, RFC 4861 4.5).
func redirect(v6 bool) words {
	if v6 {
		return append(l4proto.is(byte(unix.IPPROTO_ICMPV6)), icmpType.is(byte(137))...)
	}
	return append(l4proto.is(byte(unix.IPPROTO_ICMP)), icmpType.is(byte(5))...)
}

// ownRoute matches IPv4 packets that a path's route over an IPv6 next hop sends, where the kernel shows that.
func (o outside) ownRoute() words {
	if !o.realms {
		return nil
	}
	return realm.and(bytesOf(host(lowerHalf))).is(host(plan.PathRealm))
}
