package relayservice

import (
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"
)

// acl lets members reserve, and members connect to members. It also holds the
// total of circuits, which circuit relay v2 counts per peer only.
type acl struct {
	isMember    func(peer.ID) bool
	circuits    func() int // open now
	maxCircuits int
	refused     func(reason string) // counts; the reasons are values of a metric's label
}

var _ relayv2.ACLFilter = (*acl)(nil)

func (a *acl) AllowReserve(p peer.ID, _ ma.Multiaddr) bool {
	if a.isMember(p) {
		return true
	}
	a.refused("reservation of no member")
	return false
}

func (a *acl) AllowConnect(src peer.ID, _ ma.Multiaddr, dst peer.ID) bool {
	switch {
	case !a.isMember(src) || !a.isMember(dst):
		a.refused("circuit of no member")
		return false
	case a.circuits() >= a.maxCircuits:
		a.refused("too many circuits")
		return false
	}
	return true
}
