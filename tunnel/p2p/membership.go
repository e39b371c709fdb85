package p2p

import (
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// Membership says who may talk to this node. It is a value; the node keeps a
// copy.
type Membership struct {
	Members []Member // this node itself may be among them
	// Relays, each once, with all its addresses; the order counts as long as
	// nothing is measured. A node holds reservations at up to maxRelays of them.
	Relays []peer.AddrInfo
	// ClusterCIDRs are the pod ranges: addresses in them are never announced,
	// dialed or accepted.
	ClusterCIDRs []netip.Prefix
}

// Member is a node of the cluster.
type Member struct {
	Name string // for logs
	ID   peer.ID
}

func (m Membership) clone() Membership {
	out := Membership{
		Members:      append([]Member(nil), m.Members...),
		ClusterCIDRs: append([]netip.Prefix(nil), m.ClusterCIDRs...),
	}
	for _, r := range m.Relays {
		out.Relays = append(out.Relays, peer.AddrInfo{ID: r.ID, Addrs: append([]ma.Multiaddr(nil), r.Addrs...)})
	}
	return out
}

// SetMembership replaces the membership. Peers and relays that are no longer in
// it are refused from now on and are being disconnected, which takes some 10 ms;
// relays that are new are connected in the background.
func (n *Node) SetMembership(m Membership) {
	m = m.clone()
	r := newRoster(n.ID(), m)
	n.gater.members.Store(r)
	for _, c := range n.sw.Conns() {
		if !n.gater.known(c.RemotePeer()) || !n.gater.outside(c.RemoteMultiaddr()) {
			n.goClose(c)
		}
	}
	n.peers.retain(r.isMember)
	n.book.retain(r.isMember)
	n.relays.retain(r.isMember)
	if f := n.lan.Load(); f != nil {
		f.Retain()
	}
	n.relays.set(m.Relays)
}
