package p2p

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// gater admits members and relays only, on both sides of a connection, and no
// connection that would run inside the cluster's own ranges (a tunnel in the
// tunnel). It reads the membership afresh for every decision.
type gater struct {
	members atomic.Pointer[roster]
	shunned sync.Map // peer.ID → shun
	// dialable says whether a member's address may be dialed; nil: any.
	dialable func(endpoint) bool
}

var _ connmgr.ConnectionGater = (*gater)(nil)

func (g *gater) known(p peer.ID) bool {
	r := g.members.Load()
	return r.isMember(p) || r.isRelay(p)
}

// welcome says whether p may be connected now.
func (g *gater) welcome(p peer.ID) bool { return g.known(p) && g.refusal(p) == nil }

// outside says whether a's IP address, if it has one, is outside the cluster's
// ranges. For a circuit that is the relay's address.
func (g *gater) outside(a ma.Multiaddr) bool {
	ip, ok := addrIP(a)
	return !ok || !g.members.Load().inCluster(ip)
}

func (g *gater) InterceptPeerDial(p peer.ID) bool { return g.welcome(p) }

// InterceptAddrDial is asked by the swarm, too: the DHT dials whom it looks for, at
// whatever addresses it was told. Those of relays are the operator's word.
func (g *gater) InterceptAddrDial(p peer.ID, a ma.Multiaddr) bool {
	if e, ok := parseEndpoint(a); ok && g.dialable != nil && !g.members.Load().isRelay(p) && !g.dialable(e) {
		return false
	}
	return g.welcome(p) && g.outside(a)
}

func (g *gater) InterceptAccept(c network.ConnMultiaddrs) bool {
	return g.outside(c.RemoteMultiaddr()) && g.outside(c.LocalMultiaddr())
}

func (g *gater) InterceptSecured(_ network.Direction, p peer.ID, c network.ConnMultiaddrs) bool {
	return g.welcome(p) && g.outside(c.RemoteMultiaddr())
}

func (g *gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	return g.welcome(c.RemotePeer()), 0
}

// roster is an immutable view of one membership.
type roster struct {
	names   map[peer.ID]string
	relays  map[peer.ID]int // position in the order of preference
	cluster []netip.Prefix
}

func newRoster(self peer.ID, m Membership) *roster {
	r := &roster{names: make(map[peer.ID]string), relays: make(map[peer.ID]int), cluster: m.ClusterCIDRs}
	for _, x := range m.Members {
		if x.ID != self {
			r.names[x.ID] = x.Name
		}
	}
	for i, x := range m.Relays {
		if _, dup := r.relays[x.ID]; !dup && x.ID != self {
			r.relays[x.ID] = i
		}
	}
	return r
}

func (r *roster) isMember(p peer.ID) bool { _, ok := r.names[p]; return ok }
func (r *roster) isRelay(p peer.ID) bool  { _, ok := r.relays[p]; return ok }

func (r *roster) inCluster(ip netip.Addr) bool {
	ip = ip.Unmap()
	for _, c := range r.cluster {
		if c.Contains(ip) {
			return true
		}
	}
	return false
}

// addrIP returns the first IP address in a.
func addrIP(a ma.Multiaddr) (netip.Addr, bool) {
	if a == nil {
		return netip.Addr{}, false
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	return addr.Unmap(), ok
}
