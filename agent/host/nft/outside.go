package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

const (
	chainLast    = "postrouting"
	chainOutside = "outside" // begins the names of chains, one per IP version
	// strayStays is how long a dropped packet is remembered: until after the next probe of the host's firewall.
	strayStays = 6 * time.Minute
)

// Of neighbour discovery (RFC 4861, section 4), which names addresses and carries nothing of pods.
const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

func hopPrefix(v6 bool) string          { return "hops" + suffix(v6) + "-" }
func hopSet(v6 bool, bits int) string   { return fmt.Sprint(hopPrefix(v6), bits) }
func straySet(v6 bool) string           { return "strays" + suffix(v6) }
func (g guard) hops(f plan.Family) bool { return f.LAN.On && g.native }

// hopSets are the names of a family's.
func hopSets(f plan.Family) []string {
	out := []string{hopPrefix(f.V6) + probing}
	for _, bits := range f.LAN.Bits {
		out = append(out, hopSet(f.V6, bits))
	}
	return out
}

// outside lists the chains that drop what would leave for the ranges.
func (g guard) outside() []chain {
	if len(g.outs) == 0 {
		return nil
	}
	hook := chain{name: chainLast, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: lastPriority - 1} // package probe's own chain comes last
	if g.routed {
		hook.add(oifname.is(plan.BridgeName), redirect(false), drop)
		hook.add(oifname.is(plan.BridgeName), redirect(true), drop)
	}
	var out []chain
	for _, f := range g.outs {
		saddr, daddr, nexthop := ip(f.V6).saddr(), ip(f.V6).daddr(), ip(f.V6).nexthop()
		c := chain{name: chainOutside + suffix(f.V6)}
		c.add(oifname.is([]byte(plan.LinkPrefix)), accept) // as much of the name
		c.add(oifname.is("lo"), accept)
		if f.V6 {
			for _, kind := range []byte{neighbourSolicitation, neighbourAdvertisement} { // no router forwards these: their hop limit is 255
				c.add(l4proto.is(byte(unix.IPPROTO_ICMPV6)), ip(true).at(8, 7, 1).is(byte(255)), icmpType.is(kind), accept)
			}
		}
		if g.hops(f) {
			for _, bits := range f.LAN.Bits {
				c.add(inSet(hopSet(f.V6, bits), oif, daddr.bits(bits), nexthop), accept)
				if !f.V6 {
					c.add(g.ownRoute(), inSet(hopSet(f.V6, bits), oif, daddr.bits(bits), nexthop.bits(bits)), accept)
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
func (g guard) ownRoute() words {
	if !g.realms {
		return nil
	}
	return realm.and(bytesOf(host(lowerHalf))).is(host(plan.PathRealm))
}

// addHops adds the elements for where packets may leave.
func (g guard) addHops(to Senders, hops []plan.Hop) {
	sets := g.sets()
	for _, h := range hops {
		v6, via := h.Dst.Addr().Is6(), h.Via
		if !via.IsValid() || via.Is6() != v6 { // the kernel then shows the destination as the next hop
			via = h.Dst.Addr()
		}
		name := hopSet(v6, h.Dst.Bits())
		if h.Probe {
			name = hopPrefix(v6) + probing
		}
		if _, ok := sets[name]; ok {
			to[sender{name, string(slices.Concat(bytesOf(host(h.Link)), h.Dst.Addr().AsSlice(), via.AsSlice()))}] = true
		}
	}
}

// isHop reports whether the element lets packets leave. Its route has to be gone before it.
func (s sender) isHop() bool { return strings.HasPrefix(s.set, "hops") }

// Strays lists what was dropped lately instead of leaving in clear.
func Strays(s plan.State) (out []plan.Stray, err error) {
	c := conn()
	for _, f := range guardOf(s).outs {
		set := &nftables.Set{Table: &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}, Name: straySet(f.V6)}
		elements, err := c.GetSetElements(set)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			size := int(addrSize(f.V6))
			if len(e.Key) != 8+2*size {
				continue
			}
			src, _ := netip.AddrFromSlice(e.Key[8 : 8+size])
			dst, _ := netip.AddrFromSlice(e.Key[8+size:])
			out = append(out, plan.Stray{Link: int(binaryutil.NativeEndian.Uint32(e.Key)), Mark: binaryutil.NativeEndian.Uint32(e.Key[4:]), Src: src, Dst: dst})
		}
	}
	return out, nil
}
