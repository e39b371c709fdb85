// Package members says who may talk to this host: the membership as it was given,
// and the gate that enforces it on both sides of a connection. Nodes and relays use
// the same one.
//
//	members.go   Membership, and the View that decisions are made from
//	gater.go     the gate: members and relays only, quarantined members not
//	errors.go    ErrNotMember, ErrQuarantined
package members

import (
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/endpoint"
)

// Membership says who may talk to this host. It is a value; the receiver keeps a copy.
type Membership struct {
	Members []Member // this node itself may be among them
	// Relays, each once with all its addresses, in the order of preference until
	// distances are measured.
	Relays []peer.AddrInfo
	// ClusterCIDRs are the pod ranges: addresses in them are never announced,
	// dialed or accepted.
	ClusterCIDRs []netip.Prefix
	// Banned are refused, and known for it: what refuses them says so.
	Banned []peer.ID
	// Controllers may connect, without being members. Relays know them, nodes need not.
	Controllers []peer.ID
}

// Member is a node of the cluster.
type Member struct {
	Name string // for logs
	ID   peer.ID
}

// Clone returns a deep copy.
func (m Membership) Clone() Membership {
	return Membership{Members: slices.Clone(m.Members), Relays: cloneRelays(m.Relays), ClusterCIDRs: slices.Clone(m.ClusterCIDRs), Banned: slices.Clone(m.Banned),
		Controllers: slices.Clone(m.Controllers)}
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
	names   map[peer.ID]string
	order   map[peer.ID]int // of relays: their position in relays
	relays  []peer.AddrInfo // without self, each once
	cluster []netip.Prefix
	banned  []peer.ID

	controllers []peer.ID
}

// NewView returns the view of m that host self has. It shares nothing with m.
func NewView(self peer.ID, m Membership) *View {
	m = m.Clone()
	r := &View{names: make(map[peer.ID]string, len(m.Members)), order: make(map[peer.ID]int, len(m.Relays)), cluster: m.ClusterCIDRs, banned: m.Banned,
		controllers: m.Controllers}
	for _, x := range m.Members {
		if x.ID != self {
			r.names[x.ID] = x.Name
		}
	}
	for _, x := range m.Relays {
		if _, dup := r.order[x.ID]; !dup && x.ID != self {
			r.order[x.ID] = len(r.relays)
			r.relays = append(r.relays, x)
		}
	}
	return r
}

// IsMember reports whether p is a member.
func (r *View) IsMember(p peer.ID) bool { _, ok := r.names[p]; return ok }

// IsRelay reports whether p is one of the membership's relays.
func (r *View) IsRelay(p peer.ID) bool { _, ok := r.order[p]; return ok }

// IsOperators reports whether p is a relay and not a member: what is said of it is the
// operator's word, and what it says is believed.
func (r *View) IsOperators(p peer.ID) bool { return r.IsRelay(p) && !r.IsMember(p) }

// IsController reports whether p is one that nodes may ask before they are members.
func (r *View) IsController(p peer.ID) bool { return slices.Contains(r.controllers, p) }

// HasControllers reports whether there is anybody whom such nodes may ask.
func (r *View) HasControllers() bool { return len(r.controllers) > 0 }

// Known reports whether p may be connected at all.
func (r *View) Known(p peer.ID) bool { return r.IsMember(p) || r.IsRelay(p) || r.IsController(p) }

// Banned reports whether p was named as one that is refused for good.
func (r *View) Banned(p peer.ID) bool { return slices.Contains(r.banned, p) }

// Name is what logs call p: its name, else its ID.
func (r *View) Name(p peer.ID) string {
	if s := r.names[p]; s != "" {
		return s
	}
	return p.String()
}

// Len is the number of members.
func (r *View) Len() int { return len(r.names) }

// Relays returns the relays in order of preference. The caller does not change them.
func (r *View) Relays() []peer.AddrInfo { return r.relays }

// InCluster reports whether ip is in one of the cluster's own ranges.
func (r *View) InCluster(ip netip.Addr) bool {
	ip = ip.Unmap()
	return slices.ContainsFunc(r.cluster, func(c netip.Prefix) bool { return c.Contains(ip) })
}

// Outside reports whether a's IP address, if it has one, is outside the cluster's
// ranges. For a circuit that is the relay's address.
func (r *View) Outside(a ma.Multiaddr) bool {
	ip, ok := endpoint.IP(a)
	return !ok || !r.InCluster(ip)
}
