package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PodMTU is the MTU of pod interfaces and of the TUN, in bytes: the underlay's
// usual 1500, because a tunnel stream carries packets of any size.
const PodMTU = 1500

// Plan is what one node should hold for one State. Two States that list the
// same things in another order have equal Plans, except for the order of relays,
// ranges and a node's own blocks, which has a meaning.
type Plan struct {
	Self    Node
	Subnet  Subnet
	Host    Host
	Routes  []Route // the tunnel's table, by prefix: every block of every member, own blocks included
	Members []Node  // all other members, by name: who may connect
	Relays  []Relay
	IDs     map[PeerID]RawID // of every node and relay above
	Banned  []PeerID         // see State.BannedPeers
	// Observers are State's; Observes reads them.
	Observers []string
	// Encrypted keeps every packet inside the tunnel: no native or VXLAN paths.
	Encrypted bool
	// WAN lists private ranges that count as public: no unencrypted path leads there.
	WAN []netip.Prefix
}

// Underlay reports whether unencrypted packets may go to a: it is private, outside the
// ranges that count as public, and not a pod's (packets to pods go into the tunnel).
func (p Plan) Underlay(a netip.Addr) bool {
	in := func(r netip.Prefix) bool { return r.Contains(a) }
	return PrivateUnderlay(a) && !slices.ContainsFunc(p.WAN, in) && !slices.ContainsFunc(p.Host.ClusterCIDRs, in)
}

// Subnet is what the CNI plugin needs to know (subnet.json).
type Subnet struct {
	PodCIDRs     []netip.Prefix // the node's own blocks
	ClusterCIDRs []netip.Prefix
	MTU          int          // bytes
	Reserved     []netip.Addr // addresses of own blocks that are the node's: no pod gets them
}

// Host is the wanted kernel state. Its size does not depend on the number of
// members, except for one kernel route per member block on a verified LAN, and for Nodes.
type Host struct {
	Blocks       []netip.Prefix // own blocks, behind the bridge
	ClusterCIDRs []netip.Prefix // ranges that go to the TUN unless a better route exists
	MTU          int            // bytes
	// Keep means that another CNI plugin connects this node's pods: there is no bridge of
	// ours, and that plugin's routes lead to Blocks.
	Keep bool
	// Promisc makes the bridge promiscuous, instead of putting its ports into hairpin mode.
	Promisc bool
	LAN     LAN // native and VXLAN paths; their routes are Paths'
	Access  Access
	Forward Forward
	// Nodes are the blocks of all other members, if Access lets nodes in and no pods: a block's gateway is its node.
	Nodes []netip.Prefix
	// Former are addresses that kubelet reports and that are no gateway: a kubelet whose --node-ip the host lacks reports
	// no address at all. Those in the ranges are kept up, others are left where they are.
	Former []netip.Addr
}

// Route says which member owns a prefix.
type Route struct {
	Prefix netip.Prefix
	Peer   PeerID
	Self   bool // the block is this node's own
}

// NewPlan derives the plan of node self from s, without those that s does not admit. s must have passed Validate.
// The Plan shares s's slices, which must not be written. decode returns the binary form of a
// peer ID; it is called here and nowhere else. The error is ErrNotMember, wrapped with the
// node's name, or decode's.
func NewPlan(s State, self string, decode func(PeerID) (RawID, error)) (Plan, error) {
	banned := s.BannedPeers()
	s = s.Admitted()
	p := Plan{Banned: banned, IDs: make(map[PeerID]RawID, len(s.Nodes)+len(s.Relays))}
	found, blocks := false, 0
	for _, n := range s.Nodes {
		blocks += len(n.PodCIDRs)
	}
	p.Members, p.Routes = make([]Node, 0, len(s.Nodes)), make([]Route, 0, blocks)
	var errs []error
	addID := func(of string, id PeerID) {
		raw, err := decode(id)
		if err != nil {
			errs = append(errs, fmt.Errorf("peer ID %s of %s: %w", id, of, err))
		}
		p.IDs[id] = raw
	}
	for _, n := range s.Nodes {
		addID("node "+n.Name, n.PeerID)
		if n.Name == self {
			p.Self, found = n, true
		} else {
			p.Members = append(p.Members, n)
		}
		for _, b := range n.PodCIDRs {
			p.Routes = append(p.Routes, Route{Prefix: b, Peer: n.PeerID, Self: n.Name == self})
		}
	}
	if !found {
		return Plan{}, fmt.Errorf("node %q: %w", self, ErrNotMember)
	}
	for _, r := range s.Relays {
		addID("a relay", r.PeerID)
	}
	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}
	slices.SortFunc(p.Members, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Routes, func(a, b Route) int { return ComparePrefix(a.Prefix, b.Prefix) })
	p.Relays, p.WAN, p.Observers = s.Relays, s.WANCIDRs, s.Observers
	p.Encrypted = s.Encryption == EncryptionAlways
	p.Subnet = Subnet{PodCIDRs: p.Self.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: PodMTU}
	p.Host = Host{Blocks: p.Self.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: PodMTU, Access: s.Access}
	p.Host.Former = p.former()
	for _, a := range p.Host.Former {
		if Inside(p.Self.PodCIDRs, netip.PrefixFrom(a, a.BitLen())) {
			p.Subnet.Reserved = append(p.Subnet.Reserved, a)
		}
	}
	if s.HostAccess == HostNodes {
		p.Host.Nodes = p.blocks()
	}
	return p, nil
}

// former lists the addresses that kubelet reports, without the gateways of own blocks, and without what another member
// owns by now, which would make two nodes answer at one address.
func (p Plan) former() (out []netip.Addr) {
	for _, a := range p.Self.NodeIPs {
		if !slices.ContainsFunc(p.Routes, func(r Route) bool { return r.Prefix.Contains(a) && (!r.Self || a == Gateway(r.Prefix)) }) {
			out = append(out, a)
		}
	}
	return out
}

// blocks lists the blocks of all other members.
func (p Plan) blocks() (out []netip.Prefix) {
	for _, r := range p.Routes {
		if !r.Self {
			out = append(out, r.Prefix)
		}
	}
	return out
}

// Gateway is the address pods of a block use as their gateway: the first one
// after the network address.
func Gateway(block netip.Prefix) netip.Addr { return block.Masked().Addr().Next() }

// Addresses are the mesh addresses of the node that owns blocks: the gateway of its first block of each IP version, in the
// order of the blocks.
func Addresses(blocks []netip.Prefix) (out []netip.Addr) {
	for _, b := range blocks {
		if !slices.ContainsFunc(out, func(a netip.Addr) bool { return a.Is6() == b.Addr().Is6() }) {
			out = append(out, Gateway(b))
		}
	}
	return out
}

// Inside reports whether p is inside one of ranges.
func Inside(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// OfVersion returns the prefixes of one IP version.
func OfVersion(all []netip.Prefix, v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}

// ComparePrefix orders prefixes by address, larger ones first.
func ComparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
}

// LastAddr is the last address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
