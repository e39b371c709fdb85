package mesh

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"slices"
)

// PodMTU is the MTU of pod interfaces and of the TUN, in bytes: the underlay's
// usual 1500, because a tunnel stream carries packets of any size.
const PodMTU = 1500

// Plan is what one node should hold for one State. It is a value like the State, whose nodes it shares.
type Plan struct {
	Self   Node
	Subnet Subnet
	Host   Host
	Nodes  []Node // all members, this node among them, in the source's order: see Members
	Relays []Relay
	Banned []PeerID // see State.BannedPeers
	// Observers are State's; Observes reads them.
	Observers []string
	// Encrypted keeps every packet inside the tunnel: no native or VXLAN paths.
	Encrypted bool
	// WAN lists private ranges that count as public: no unencrypted path leads there.
	WAN   []netip.Prefix
	Trust Trust

	lengths [2][129]int32 // how many blocks of other members have a length, IPv4 and IPv6
	history history
}

// Members are all other members, who may connect, in the source's order.
func (p Plan) Members() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for i := range p.Nodes {
			if n := &p.Nodes[i]; n.Name != p.Self.Name && !yield(n) {
				return
			}
		}
	}
}

// Equal reports whether p and q are the same plan. The order of nodes has no meaning; that of relays, ranges and a node's
// own blocks has.
func (p Plan) Equal(q Plan) bool {
	if !p.Since(q).Empty() {
		return false
	}
	p.Nodes, q.Nodes, p.history, q.history = nil, nil, history{}, history{}
	return reflect.DeepEqual(p, q)
}

// Underlay reports whether unencrypted packets may go to a: it is private, or global and trusted, outside the ranges that count as public, and not a pod's (packets to pods go into the tunnel).
func (p Plan) Underlay(a netip.Addr) bool {
	in := func(r netip.Prefix) bool { return r.Contains(a) }
	return (PrivateUnderlay(a) || GlobalUnderlay(a) && p.Trust.Covers(a, a)) && !slices.ContainsFunc(p.WAN, in) && !slices.ContainsFunc(p.Host.ClusterCIDRs, in)
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
	// Moved is what leaves for the mesh, in keep mode, whatever routes the other plugin has: the blocks of members that
	// carry MovedLabel, or the cluster's ranges where this node does.
	Moved []netip.Prefix
	// Promisc makes the bridge promiscuous, instead of putting its ports into hairpin mode.
	Promisc bool
	LAN     LAN // native and VXLAN paths; their routes are Paths'
	Access  Access
	Forward Forward
	// Nodes are the blocks of all other members, if Access keeps pods out: a block's gateway is its node.
	Nodes []netip.Prefix
	// Former are addresses that kubelet reports and that are no gateway: a kubelet whose --node-ip the host lacks reports
	// no address at all. Those in the ranges are kept up, others are left where they are.
	Former []netip.Addr
}

// NewPlan derives the plan of node self from s, without those that s does not admit. s must have passed Validate.
// The Plan shares s's slices, which must not be written. The error is ErrNotMember, wrapped with the node's name.
func NewPlan(s State, self string) (Plan, error) { return Plan{}.Next(s, self) }

// Next is NewPlan for the State that follows the one p was made from. What it costs depends on what changed; all nodes are
// only compared.
func (p Plan) Next(s State, self string) (Plan, error) {
	if p.Self.Name != self {
		p = Plan{}
	}
	banned := s.BannedPeers()
	s = s.Admitted()
	c := Diff(p.Nodes, s.Nodes)
	next := Plan{
		Self: p.Self, Nodes: s.Nodes, Relays: s.Relays, Banned: banned, Observers: s.Observers, WAN: s.WANCIDRs, Trust: s.LAN, Encrypted: s.Encryption == EncryptionAlways,
		lengths: p.lengths, history: history{now: new(struct{ _ byte }), from: p.history.now, change: c},
	}
	for i := range c.Gone {
		next.count(&c.Gone[i], self, -1)
	}
	for i := range c.Come {
		next.count(&c.Come[i], self, 1)
	}
	if next.Self.Name != self {
		return Plan{}, fmt.Errorf("node %q: %w", self, ErrNotMember)
	}
	next.Subnet = Subnet{PodCIDRs: next.Self.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: PodMTU}
	next.Host = Host{Blocks: next.Self.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: PodMTU, Access: s.Access, Former: p.Host.Former}
	if c.touches(next.Self) {
		next.Host.Former = next.former()
	}
	for _, a := range next.Host.Former {
		if Inside(next.Self.PodCIDRs, netip.PrefixFrom(a, a.BitLen())) {
			next.Subnet.Reserved = append(next.Subnet.Reserved, a)
		}
	}
	if s.HostAccess.Closed() {
		next.Host.Nodes = next.blocks()
	}
	next.Host.Moved = next.moved()
	return next, nil
}

// count takes a node in, or out if by is -1.
func (p *Plan) count(n *Node, self string, by int32) {
	if n.Name == self {
		if p.Self = (Node{}); by > 0 {
			p.Self = *n
		}
		return
	}
	for _, b := range n.PodCIDRs {
		v := 0
		if b.Addr().Is6() {
			v = 1
		}
		p.lengths[v][b.Bits()] += by
	}
}

// touches reports whether self's own addresses may be another's now, or no longer.
func (c Change) touches(self Node) bool {
	return slices.ContainsFunc(slices.Concat(c.Gone, c.Come), func(n Node) bool {
		return n.Name == self.Name || slices.ContainsFunc(self.NodeIPs, n.Owns)
	})
}

// Owns reports whether a is inside of one of n's blocks.
func (n *Node) Owns(a netip.Addr) bool {
	return slices.ContainsFunc(n.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
}

// Owner is the member, this node among them, that owns a.
func (p Plan) Owner(a netip.Addr) (Node, bool) {
	i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Owns(a) })
	if i < 0 {
		return Node{}, false
	}
	return p.Nodes[i], true
}

// former lists the addresses that kubelet reports, without the gateways of own blocks, and without what another member
// owns by now, which would make two nodes answer at one address.
func (p Plan) former() (out []netip.Addr) {
	gateway := func(a netip.Addr) bool {
		return slices.ContainsFunc(p.Self.PodCIDRs, func(b netip.Prefix) bool { return a == Gateway(b) })
	}
	for _, a := range p.Self.NodeIPs {
		if n, owned := p.Owner(a); !owned || n.Name == p.Self.Name && !gateway(a) {
			out = append(out, a)
		}
	}
	return out
}

// blocks lists the blocks of all other members, in order.
func (p Plan) blocks() (out []netip.Prefix) {
	for n := range p.Members() {
		out = append(out, n.PodCIDRs...)
	}
	slices.SortFunc(out, ComparePrefix)
	return out
}

// moved is Host.Moved, in order.
func (p Plan) moved() (out []netip.Prefix) {
	if _, self := p.Self.Labels[MovedLabel]; self {
		return p.Host.ClusterCIDRs
	}
	for n := range p.Members() {
		if _, moved := n.Labels[MovedLabel]; moved {
			out = append(out, n.PodCIDRs...)
		}
	}
	slices.SortFunc(out, ComparePrefix)
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
