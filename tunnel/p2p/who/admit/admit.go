// Package admit translates a membership, as its source gave it, into what agents and relays need to decide who may
// connect to them.
package admit

import (
	"fmt"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p/who/members"
)

// Decode is the binary form of a peer ID.
func Decode(id mesh.PeerID) (mesh.RawID, error) {
	p, err := peer.Decode(string(id))
	return mesh.RawID(p), err
}

// ID is a peer ID of the membership, which its source has checked, as connections have it; "" for an invalid one.
func ID(of mesh.PeerID) peer.ID {
	id, err := peer.Decode(string(of))
	if err != nil {
		return ""
	}
	return id
}

// PeerIDs decodes those of list that are peer IDs; others are the rest, such as names of nodes among those that are banned.
func PeerIDs[S ~string](list []S) (ids []peer.ID, others []S) {
	for _, s := range list {
		if id, err := peer.Decode(string(s)); err == nil {
			ids = append(ids, id)
		} else {
			others = append(others, s)
		}
	}
	return ids, others
}

// Membership admits these nodes and relays, whose peer IDs it decodes with decode. It fails only where the source did not
// check peer IDs and addresses.
func Membership(nodes []mesh.Node, relays []mesh.Relay, podCIDRs []netip.Prefix, decode func(mesh.PeerID) (mesh.RawID, error)) (members.Membership, error) {
	m := members.Membership{ClusterCIDRs: podCIDRs}
	for _, n := range nodes {
		id, err := decode(n.PeerID)
		if err != nil {
			return m, fmt.Errorf("node %s: peer ID %q: %w", n.Name, n.PeerID, err)
		}
		m.Members = append(m.Members, members.Member{Name: n.Name, ID: peer.ID(id)})
	}
	for _, r := range relays {
		id, err := decode(r.PeerID)
		if err != nil {
			return m, fmt.Errorf("relay: peer ID %q: %w", r.PeerID, err)
		}
		info := peer.AddrInfo{ID: peer.ID(id)}
		for _, text := range r.Addrs {
			a, err := ma.NewMultiaddr(text)
			if err != nil {
				return m, fmt.Errorf("relay %s: address %q: %w", r.PeerID, text, err)
			}
			info.Addrs = append(info.Addrs, a)
		}
		m.Relays = append(m.Relays, info)
	}
	return m, nil
}
