package relayservice

import (
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"
)

// acl lets members and controllers reserve, members connect to members and controllers, and to these also others that may
// ask. It also holds the
// total of circuits, which circuit relay v2 counts per peer only.
type acl struct {
	isMember    func(peer.ID) bool
	controllers Controllers
	circuits    func() int // open now
	maxCircuits int
	refused     func(reason string, p peer.ID, from string)
}

var _ relayv2.ACLFilter = (*acl)(nil)

func (a *acl) AllowReserve(p peer.ID, from ma.Multiaddr) bool {
	if a.isMember(p) || a.controllers.Is(p) {
		return true
	}
	a.refused("reservation of no member", p, from.String())
	return false
}

func (a *acl) AllowConnect(src peer.ID, from ma.Multiaddr, dst peer.ID) bool {
	switch {
	case a.circuits() >= a.maxCircuits:
		a.refused(tooManyCircuits, src, from.String())
		return false
	case a.isMember(src) && (a.isMember(dst) || a.controllers.Is(dst)):
		return true
	case !a.controllers.Is(dst) || !a.controllers.MayAsk(src):
		a.refused("circuit of no member", src, from.String())
		return false
	}
	return true
}
