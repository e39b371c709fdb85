package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/members"
)

// SetMembership replaces the membership. Peers and relays that are no longer in
// it are refused from now on and are being disconnected, which takes some 10 ms;
// relays that are new are connected in the background.
func (n *Node) SetMembership(m members.Membership) {
	r := members.NewView(n.ID(), m)
	n.gater.SetView(r)
	for _, c := range n.sw.Conns() {
		if !n.gater.View().Known(c.RemotePeer()) || !n.gater.View().Outside(c.RemoteMultiaddr()) {
			n.goClose(c)
		}
	}
	n.peers.retain(r.IsMember)
	n.book.Retain(r.IsMember)
	n.relays.Reports.Retain(r.IsMember)
	if f := n.lan.Load(); f != nil {
		f.Retain()
	}
	n.relays.Use(r.Relays())
}

// Quarantine disconnects from a member and refuses it, in both directions, for d: it
// breaks rules that every sound member keeps. why is what an operator reads. It
// does not block.
func (n *Node) Quarantine(p peer.ID, d time.Duration, why string) {
	n.gater.Quarantine(p, d, why)
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if r := n.peers.m[p]; r != nil {
		r.connectErr = n.gater.Refusal(p)
		r.tell(ladder.Refuse{})
		r.changed.Broadcast()
	}
}
