package main

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/agent/mesh"
)

// roster is an immutable view of one membership, as the relay needs it.
type roster struct {
	members map[peer.ID]string // name of the node
	relays  map[peer.ID][]ma.Multiaddr
	cluster []netip.Prefix
}

// newRoster fails only for a State whose source did not check peer IDs and
// addresses.
func newRoster(s mesh.State) (*roster, error) {
	r := &roster{
		members: make(map[peer.ID]string, len(s.Nodes)),
		relays:  make(map[peer.ID][]ma.Multiaddr, len(s.Relays)),
		cluster: s.PodCIDRs,
	}
	for _, n := range s.Nodes {
		id, err := peer.Decode(string(n.PeerID))
		if err != nil {
			return nil, fmt.Errorf("node %s: peer ID %q: %w", n.Name, n.PeerID, err)
		}
		r.members[id] = n.Name
	}
	for _, x := range s.Relays {
		id, err := peer.Decode(string(x.PeerID))
		if err != nil {
			return nil, fmt.Errorf("relay: peer ID %q: %w", x.PeerID, err)
		}
		for _, a := range x.Addrs {
			m, err := ma.NewMultiaddr(a)
			if err != nil {
				return nil, fmt.Errorf("relay %s: address %q: %w", id, a, err)
			}
			r.relays[id] = append(r.relays[id], m)
		}
	}
	return r, nil
}

func (r *roster) isMember(p peer.ID) bool { _, ok := r.members[p]; return ok }

// known says whether p may be connected to us: a member or another relay, which
// shares the DHT.
func (r *roster) known(p peer.ID) bool {
	_, ok := r.relays[p]
	return ok || r.isMember(p)
}

// inCluster says whether a's address is one of a pod or a gateway: such a
// connection would run inside the tunnel.
func (r *roster) inCluster(a ma.Multiaddr) bool {
	ip, err := manet.ToIP(a)
	if err != nil {
		return false
	}
	addr, _ := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	for _, p := range r.cluster {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// others are the relays but self, for the DHT's bootstrap.
func (r *roster) others(self peer.ID) []peer.AddrInfo {
	var out []peer.AddrInfo
	for id, addrs := range r.relays {
		if id != self {
			out = append(out, peer.AddrInfo{ID: id, Addrs: addrs})
		}
	}
	return out
}

// current is the roster in force; every decision reads it afresh.
type current struct{ atomic.Pointer[roster] }
