package main

import (
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// gater admits members and other relays. A stranger is cut off as soon as the
// handshake has shown its peer ID, before it learns any protocol of ours.
type gater struct {
	roster  *current
	refused func(reason string) // counts
}

var _ connmgr.ConnectionGater = (*gater)(nil)

func (g *gater) InterceptPeerDial(p peer.ID) bool { return g.roster.Load().known(p) }

func (g *gater) InterceptAddrDial(p peer.ID, a ma.Multiaddr) bool {
	r := g.roster.Load()
	return r.known(p) && !r.inCluster(a)
}

func (g *gater) InterceptAccept(c network.ConnMultiaddrs) bool {
	if r := g.roster.Load(); r.inCluster(c.RemoteMultiaddr()) || r.inCluster(c.LocalMultiaddr()) {
		g.refused("inside the tunnel")
		return false
	}
	tuneTCP(c)
	return true
}

func (g *gater) InterceptSecured(_ network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	if g.roster.Load().known(p) {
		return true
	}
	g.refused("stranger")
	return false
}

func (g *gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	return g.roster.Load().known(c.RemotePeer()), 0
}
