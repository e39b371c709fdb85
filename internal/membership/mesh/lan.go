package mesh

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
)

// Numbers that two nodes must agree on to find each other on a LAN.
const (
	// VXLANID is the VNI of the cluster's VXLAN, and VXLANPort its UDP port. It is neither
	// IANA's 4789 nor 8472, which other plugins on the same host use.
	VXLANID   = 5210
	VXLANPort = 5210
	// ProbeSlots is how many candidates for one peer can be probed at the same time; each
	// has its own routing table for the probes.
	ProbeSlots = 4
	// Forwarded probes go from ForwardFrom to ForwardTo, from ForwardFlow to the same port, or have this ICMP identifier.
	ForwardFrom = 5213
	ForwardTo   = 5214
	ForwardFlow = 5215
	ForwardID   = 0xed9e
)

// PathKind says which kernel path carries a member's blocks.
type PathKind string

const (
	// Native is a route to the peer's address on a common layer-2 segment.
	Native PathKind = "native"
	// VXLAN is a route into the VXLAN device, whose outer packets are routed.
	VXLAN PathKind = "vxlan"
)

// Trust is the membership's `lan`: networks in which no router, and nobody on its path, reads or forges packets.
type Trust struct {
	// Trusted is where VXLAN may cross routers between private addresses, and where neighbours may have global ones: both ends
	// inside one entry.
	Trusted []netip.Prefix `json:"trusted,omitempty"`
}

// Covers reports whether both addresses are inside one entry.
func (t Trust) Covers(a, b netip.Addr) bool {
	return slices.ContainsFunc(t.Trusted, func(p netip.Prefix) bool { return p.Contains(a) && p.Contains(b) })
}

// siteBits is the least length of a network of global addresses that is trusted: a provider's allocation is no site.
const siteBits = 32

// Check fails with *Invalid where no path could use an entry.
func (t Trust) Check() error {
	var bad Invalid
	t.check(&bad)
	return bad.Err()
}

// check refuses entries that no path could use.
func (t Trust) check(bad *Invalid) {
	for i, p := range t.Trusted {
		field := fmt.Sprintf("lan.trusted[%d]", i)
		if checkPrefix(bad, field, p) && (!private(p) || !p.Addr().IsPrivate()) && (!GlobalUnderlay(p.Addr()) || p.Bits() < siteBits) {
			bad.Addf(field, "%s is not inside a private range (RFC 1918, 4193), nor a site's network of global IPv6 addresses (/%d or longer), and packets without encryption go nowhere else; remove it", p, siteBits)
		}
	}
}

// LAN is this node's part in native and VXLAN paths. The zero value has none.
type LAN struct {
	Native, VXLAN bool
	ProbePort     uint16 // where probes arrive, at the gateways; UDP
	VXLANPort     uint16
	IPv6Underlay  bool    // the VXLAN's outer packets are IPv6
	MAC           [6]byte // of the VXLAN device
	// Bits are the lengths that members' blocks have, IPv4 and IPv6.
	Bits [2][]int
}

// Candidate is one possible path to a peer that bypasses the tunnel, for its pods of one
// IP version, and what the kernel is to do with it. It is an input of Plan.Paths.
type Candidate struct {
	Peer PeerID
	V6   bool // of the pods, not of the underlay
	Kind PathKind
	Slot int        // 0 to ProbeSlots-1; no two of one peer and IP version share one
	Link string     // the uplink to Via; unused for VXLAN
	In   string     // the uplink by which the peer's packets come, "" for Link; unused for VXLAN
	Via  netip.Addr // the peer's underlay address
	// Local is this node's underlay address that VXLAN to Via leaves from, and that VXLAN from Via
	// comes to; unused for native ones, which have Link.
	Local netip.Addr
	// MAC is that of the link that has Via, as the peer says. Of VXLAN: both ends are on one link, and only that MAC's packets
	// are let in; none where the outer packets may be routed, which Plan.Trust must cover.
	MAC [6]byte
	MTU int // bytes of the largest packet that passes
	// Probe lets probes out, Accept lets the peer's packets in, Use routes pods'
	// packets here. Of one peer and IP version at most one is in use.
	Probe, Accept, Use bool
	// Aside is the peer's address to which forwarded probes are routed here; invalid: as pods' packets are.
	Aside netip.Addr
}

// Paths is the wanted kernel state of all native and VXLAN paths.
type Paths struct {
	Routes  []PathRoute
	Probes  []ProbeRoute
	VTEPs   []VTEP
	Senders []Sender
	Probers []netip.Addr // from which forwarded probes are taken
}

// Links are the uplinks by which packets of peers may come, in order.
func (p Paths) Links() (out []string) {
	for _, s := range p.Senders {
		out = append(out, s.Link)
	}
	for _, r := range p.Probes {
		if r.Kind == Native && r.Slot < ProbeSlots {
			out = append(out, r.Link)
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(link string) bool { return link == "" })
}

// PathRoute is the route to one block of a member.
type PathRoute struct {
	Block netip.Prefix
	Hop
	MTU int
}

// ProbeRoute is the route to a member's gateway for probes, and for nothing else; with slot ProbeSlots to its address for forwarded ones.
type ProbeRoute struct {
	Target netip.Addr
	Slot   int
	Hop
}

// Hop is the next hop of a route: an address on a link, or the gateway Via of a peer behind
// the VXLAN device.
type Hop struct {
	Kind PathKind
	Link string // "" for VXLAN
	Via  netip.Addr
}

// Sender identifies who sends packets with a source inside Block: a MAC on a link, a pair of
// underlay addresses for VXLAN, which comes in where this node's own address is.
type Sender struct {
	Block    netip.Prefix
	Link     string     // "" for VXLAN
	MAC      [6]byte    // on Link; of VXLAN: of the outer packets, none for any
	Underlay netip.Addr // of VXLAN
	Local    netip.Addr // of VXLAN: this node's
	Pods     bool       // pods' packets are let in; otherwise only probes
}

// Count is what came in, since the kernel began to count it. Bytes are those of IP packets,
// of VXLAN with its headers.
type Count struct{ Packets, Bytes uint64 }

// Inlet is where packets with a source inside Block arrive.
type Inlet struct {
	Block netip.Prefix
	Link  string // "" for VXLAN
	Out   bool   // instead, pods of this node have sent something there lately: not counted
}

// VTEP is a peer's end of the VXLAN.
type VTEP struct {
	Gateways []netip.Addr // inner next hops that have MAC
	MAC      [6]byte
	Underlay netip.Addr
	Local    netip.Addr // this node's, the only source of packets to Underlay
	Routed   bool       // outer packets may cross routers
}

// VTEPAddr is the MAC of a node's VXLAN device. It is derived from the node's identity, so
// that nothing needs to be stored and every member knows it. It is locally administered
// and unicast.
func VTEPAddr(id PeerID) (mac [6]byte) {
	sum := sha256.Sum256([]byte("edgemesh vxlan mac\x00" + string(id)))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// Paths derives the kernel's part from candidates. It leaves out those to peers that are
// not members, of an IP version for which one of the two nodes has no block, of a kind that
// this node does not use, and to addresses that are not Underlay.
func (p Plan) Paths(candidates []Candidate) Paths {
	members := make(map[PeerID][]netip.Prefix, len(candidates))
	for _, w := range candidates {
		members[w.Peer] = nil
	}
	if len(members) == 0 {
		return Paths{}
	}
	for m := range p.Members() {
		if _, wanted := members[m.PeerID]; wanted {
			members[m.PeerID] = m.PodCIDRs
		}
	}
	return p.PathsTo(candidates, func(id PeerID) []netip.Prefix { return members[id] })
}

// PathsTo is Paths for a caller that knows the other members' blocks: blocksOf returns none for everybody else.
func (p Plan) PathsTo(candidates []Candidate, blocksOf func(PeerID) []netip.Prefix) Paths {
	var out Paths
	vteps := map[PeerID]int{}   // index in out.VTEPs
	senders := map[Sender]int{} // index in out.Senders, Pods left out of the key
	for _, w := range candidates {
		blocks := OfVersion(blocksOf(w.Peer), w.V6)
		if len(blocks) == 0 || !p.takes(w) {
			continue
		}
		hop := Hop{Kind: w.Kind, Link: w.Link, Via: w.Via}
		if w.Kind == VXLAN {
			hop = Hop{Kind: VXLAN, Via: Gateway(blocks[0])}
			out.addVTEP(vteps, w, hop.Via)
		}
		if w.Probe {
			out.Probes = append(out.Probes, ProbeRoute{Target: Gateway(blocks[0]), Slot: w.Slot, Hop: hop})
		}
		if w.Aside.IsValid() {
			out.Probes = append(out.Probes, ProbeRoute{Target: w.Aside, Slot: ProbeSlots, Hop: hop})
		}
		for _, b := range blocks {
			out.addSender(senders, w, b.Masked())
			if w.Use {
				out.Routes = append(out.Routes, PathRoute{Block: b.Masked(), Hop: hop, MTU: w.MTU})
			}
		}
	}
	return out
}

// takes reports whether this node may use w.
func (p Plan) takes(w Candidate) bool {
	lan := p.Host.LAN
	switch {
	case p.Encrypted:
		return false
	case w.Kind == Native && !lan.Native, w.Kind == VXLAN && (!lan.VXLAN || w.Via.Is6() != lan.IPv6Underlay):
		return false
	case w.Kind == Native && w.V6 && w.Via.Is4(): // Linux has no such route
		return false
	case w.Kind == Native && w.MAC == [6]byte{}: // no Ethernet
		return false
	case w.Kind == VXLAN && (!p.Underlay(w.Local) || !PrivateUnderlay(w.Local) || !PrivateUnderlay(w.Via) || w.Local.Is6() != w.Via.Is6()):
		return false
	case w.Kind == VXLAN && w.MAC == [6]byte{} && !p.Trust.Covers(w.Local, w.Via):
		return false
	case w.Slot < 0 || w.Slot >= ProbeSlots:
		return false
	}
	return p.Underlay(w.Via) && len(OfVersion(p.Self.PodCIDRs, w.V6)) > 0
}

// addSender records who sends w's packets of a block. Two candidates may share a sender.
func (out *Paths) addSender(at map[Sender]int, w Candidate, block netip.Prefix) {
	s := Sender{Block: block, Link: cmp.Or(w.In, w.Link), MAC: w.MAC}
	if w.Kind == VXLAN {
		s = Sender{Block: block, Underlay: w.Via, Local: w.Local, MAC: w.MAC}
	}
	i, ok := at[s]
	if !ok {
		i = len(out.Senders)
		at[s] = i
		out.Senders = append(out.Senders, s)
	}
	out.Senders[i].Pods = out.Senders[i].Pods || w.Accept
}

func (out *Paths) addVTEP(at map[PeerID]int, w Candidate, gateway netip.Addr) {
	i, ok := at[w.Peer]
	if !ok {
		i = len(out.VTEPs)
		at[w.Peer] = i
		out.VTEPs = append(out.VTEPs, VTEP{MAC: VTEPAddr(w.Peer), Underlay: w.Via, Local: w.Local, Routed: w.MAC == [6]byte{}})
	}
	if v := &out.VTEPs[i]; !slices.Contains(v.Gateways, gateway) {
		v.Gateways = append(v.Gateways, gateway)
	}
}

// BlockBits lists the lengths that members' blocks have, IPv4 and IPv6, in order.
func (p Plan) BlockBits() (out [2][]int) {
	for v := range out {
		for bits, n := range p.lengths[v] {
			if n > 0 {
				out[v] = append(out[v], bits)
			}
		}
	}
	return out
}

// PrivateUnderlay reports whether unencrypted packets may go to a: only RFC 1918 and RFC
// 4193 addresses. Carrier NAT's 100.64.0.0/10 is shared with other customers.
func PrivateUnderlay(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.IsPrivate() }

// GlobalUnderlay reports whether a is in the IPv6 internet (RFC 4291, section 2.5.4; 2000::/3 is all that is allocated). Packets
// without encryption go there only if the membership trusts the network, and to a neighbour on one link.
func GlobalUnderlay(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.As16()[0]>>5 == 1
}

// Uplink is an address of this node on a link to other hosts.
type Uplink struct {
	Link  string
	Index int
	Addr  netip.Addr
	Bits  int     // of the prefix on the link
	MTU   int     // of the link, bytes
	MAC   [6]byte // of the link; zero if it has none
}
