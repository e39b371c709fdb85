package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// Packet opens a connection.
type Packet struct {
	In, Out  string // interfaces, "" where they are not known
	Src, Dst netip.Addr
	Proto    uint8
	Port     uint16 // of the destination
	Raw      bool   // connection tracking has not seen it yet
}

// port is one that hardly a rule names.
const port = 53211

// most bounds the addresses that are tried.
const most = 32

// Between are packets between a pod of this node and others, in both directions, one list per pair of addresses and
// interfaces, each with one packet per protocol. An address of each prefix in named is among them, for prefixes as wide as
// a node's block: what is said of fewer addresses is policy.
func Between(f plan.Family, named []netip.Prefix) [][]Packet {
	if !f.Wanted || len(f.Blocks) == 0 {
		return nil
	}
	own, bits := mesh.LastAddr(f.Blocks[0]).Prev(), 0
	for _, b := range f.Blocks {
		bits = max(bits, b.Bits())
	}
	for _, b := range f.LAN.Bits {
		bits = max(bits, b)
	}
	var far []netip.Addr
	for _, p := range append(slices.Clone(f.Ranges), named...) {
		a := mesh.LastAddr(p)
		if p.Bits() <= bits && f.InRange(plan.Single(a)) && !f.Own(a) && !slices.Contains(far, a) && len(far) < most {
			far = append(far, a)
		}
	}
	bridge, leads := plan.BridgeName, []string{plan.TUNName}
	if f.Keep {
		bridge = "" // another plugin's
	}
	if f.LAN.VXLAN {
		leads = append(leads, plan.VXLANName)
	}
	var out [][]Packet
	for _, a := range far {
		for _, lead := range leads {
			out = append(out, ofEach(Packet{In: bridge, Out: lead, Src: own, Dst: a}), ofEach(Packet{In: lead, Out: bridge, Src: a, Dst: own}))
		}
	}
	return out
}

// Entering are the packets before they are routed; raw: before connection tracking sees them.
func Entering(pairs [][]Packet, raw bool) [][]Packet {
	var out [][]Packet
	for _, pair := range pairs {
		pair = slices.Clone(pair)
		for i := range pair {
			pair[i].Out, pair[i].Raw = "", raw
		}
		out = append(out, pair)
	}
	return out
}

// ofEach is a packet in each protocol.
func ofEach(p Packet) []Packet {
	p.Port = port
	icmp := uint8(unix.IPPROTO_ICMP)
	if p.Src.Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	var out []Packet
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, icmp} {
		p.Proto = proto
		out = append(out, p)
	}
	return out
}

// Cut is what a firewall does to packets between pods.
type Cut struct {
	Detail, By string // By: the rule
	Sure       bool   // it lets no protocol through
}

// WorseThan reports whether c, and not other, is what to tell.
func (c Cut) WorseThan(other Cut) bool {
	return c.Detail != "" && (other.Detail == "" || c.Sure && !other.Sure)
}

// String says what follows, which packets are dropped, and by which rule.
func (c Cut) String() string {
	verb := "may be"
	if c.Sure {
		verb = "are"
	}
	return fmt.Sprintf("pods %s unreachable: %s, by %s", verb, c.Detail, c.By)
}

// Worst follows the packets through one base chain: "" in Detail when they pass, or when some rule there lets part of them
// through: that is policy.
func (cs Chains) Worst(base string, pairs [][]Packet) (worst Cut) {
	for _, pair := range pairs {
		var protos []string
		cut, meant := Cut{Sure: true}, false
		for _, p := range pair {
			f := cs.Of(base, p)
			meant = meant || f.Meant
			if !f.Dropped {
				cut.Sure = false
				continue
			}
			protos = append(protos, names[p.Proto])
			cut.Sure = cut.Sure && !f.Unsure
			if cut.By == "" {
				cut.By = f.By
			}
		}
		if len(protos) == 0 || meant {
			continue
		}
		cut.Detail = fmt.Sprintf("%s from %s (%s) to %s (%s)", strings.Join(protos, ", "), pair[0].Src, or(pair[0].In), pair[0].Dst, or(pair[0].Out))
		if cut.WorseThan(worst) {
			worst = cut
		}
	}
	return worst
}

// names of protocols.
var names = map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_ICMPV6: "ICMPv6"} //nolint:gochecknoglobals // a constant

func or(name string) string {
	if name == "" {
		return "any interface"
	}
	return name
}
