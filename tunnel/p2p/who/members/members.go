// Package members says who may talk to this host: the membership as it was given,
// and the gate that enforces it on both sides of a connection. Nodes and relays use
// the same one.
//
//	members.go   Membership, and the View that decisions are made from
//	names.go     members by ID, in a form that changes in parts
//	gater.go     the gate: members and relays only, quarantined members not
//	errors.go    ErrNotMember, ErrQuarantined
package members

import (
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/nat64"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// Membership says who may talk to this host. It is a value; the receiver keeps a copy.
type Membership struct {
	Members []Member // this node itself may be among them
	// Relays, each once with all its addresses, in the order of preference until
	// distances are measured.
	Relays []peer.AddrInfo
	// ClusterCIDRs are the pod ranges: addresses in them are never announced or
	// dialed, and accepted of controllers alone.
	ClusterCIDRs []netip.Prefix
	// Banned are refused, and known for it: what refuses them says so.
	Banned []peer.ID
	// Controllers may connect, without being members. Relays know them, nodes need not.
	Controllers []peer.ID
}

// Change is what became of a Membership: its Members are those that come, everything else is as it is now.
type Change struct {
	Gone []peer.ID // members, some of which may come again under another name
	Membership
}

func cloneRelays(relays []peer.AddrInfo) []peer.AddrInfo {
	out := make([]peer.AddrInfo, len(relays))
	for i, r := range relays {
		out[i] = peer.AddrInfo{ID: r.ID, Addrs: append([]ma.Multiaddr(nil), r.Addrs...)}
	}
	return out
}

// View is an immutable view of one membership, without the host that it belongs to.
type View struct {
	self    peer.ID
	names   names
	order   map[peer.ID]int // of relays: their position in relays
	relays  []peer.AddrInfo // without self, each once
	cluster []netip.Prefix
	banned  []peer.ID

	controllers []peer.ID
}

// NewView returns the view of m that host self has. It shares nothing with m.
func NewView(self peer.ID, m Membership) *View {
	return (&View{self: self, names: newNames()}).With(Change{Membership: m})
}

// With is the view after c. It costs what c costs, however many members there are.
func (r *View) With(c Change) *View {
	come := slices.DeleteFunc(slices.Clone(c.Members), func(x Member) bool { return x.ID == r.self })
	next := &View{self: r.self, names: r.names.with(c.Gone, come), order: make(map[peer.ID]int, len(c.Relays)), cluster: slices.Clone(c.ClusterCIDRs),
		banned: slices.Clone(c.Banned), controllers: slices.Clone(c.Controllers)}
	for _, x := range cloneRelays(c.Relays) {
		if _, dup := next.order[x.ID]; !dup && x.ID != r.self {
			next.order[x.ID] = len(next.relays)
			next.relays = append(next.relays, x)
		}
	}
	return next
}

// Plus is the view with one more member.
func (r *View) Plus(m Member) *View {
	next := *r
	next.names = r.names.with(nil, []Member{m})
	return &next
}

// Reduced is the view of a node that stands by for another one: at most relays, and those of ids that are members.
func (r *View) Reduced(relays bool, ids []peer.ID) *View {
	next := *r
	next.names = newNames()
	for _, id := range ids {
		if name, ok := r.names.get(id); ok && relays {
			next.names = next.names.with(nil, []Member{{ID: id, Name: name}})
		}
	}
	if !relays {
		next.order, next.relays = nil, nil
	}
	return &next
}

// IsMember reports whether p is a member.
func (r *View) IsMember(p peer.ID) bool { _, ok := r.names.get(p); return ok }

// IsRelay reports whether p is one of the membership's relays.
func (r *View) IsRelay(p peer.ID) bool { _, ok := r.order[p]; return ok }

// IsOperators reports whether p is a relay and not a member: what is said of it is the
// operator's word, and what it says is believed.
func (r *View) IsOperators(p peer.ID) bool { return r.IsRelay(p) && !r.IsMember(p) }

// IsController reports whether p is one to which nodes may send requests before they are members.
func (r *View) IsController(p peer.ID) bool { return slices.Contains(r.controllers, p) }

// HasControllers reports whether there is anybody to whom such nodes may send requests.
func (r *View) HasControllers() bool { return len(r.controllers) > 0 }

// Known reports whether p may be connected at all.
func (r *View) Known(p peer.ID) bool { return r.IsMember(p) || r.IsRelay(p) || r.IsController(p) }

// Banned reports whether p was named as one that is refused for good.
func (r *View) Banned(p peer.ID) bool { return slices.Contains(r.banned, p) }

// Name is what logs call p: its name, else its ID.
func (r *View) Name(p peer.ID) string {
	if s, _ := r.names.get(p); s != "" {
		return s
	}
	return p.String()
}

// Len is the number of members.
func (r *View) Len() int { return r.names.count }

// Relays returns the relays in order of preference. The caller does not change them.
func (r *View) Relays() []peer.AddrInfo { return r.relays }

// InCluster reports whether ip is in one of the cluster's own ranges.
func (r *View) InCluster(ip netip.Addr) bool {
	ip = nat64.Inside(ip)
	return slices.ContainsFunc(r.cluster, func(c netip.Prefix) bool { return c.Contains(ip) })
}

// Outside reports whether a's IP address, if it has one, is outside the cluster's
// ranges. For a circuit that is the relay's address.
func (r *View) Outside(a ma.Multiaddr) bool {
	ip, ok := endpoint.IP(a)
	return !ok || !r.InCluster(ip)
}

// MayComeFrom reports whether p may have a connection whose other end is a. Of the cluster's own addresses only controllers
// that are nothing else may have one.
func (r *View) MayComeFrom(p peer.ID, a ma.Multiaddr) bool {
	return r.Outside(a) || r.IsController(p) && !r.IsMember(p) && !r.IsRelay(p)
}
