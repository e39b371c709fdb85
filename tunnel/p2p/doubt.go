package p2p

import (
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/ladder"
)

// Doubt says that another way to a peer's node has just failed: its direct paths may
// have died with it, and while idle they would show it late. They are probed at once;
// until they answer, relayed ones are used. It does not block.
func (n *Node) Doubt(id peer.ID) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	r := n.peers.m[id]
	if r == nil {
		return
	}
	for _, p := range r.paths {
		if !p.relayed() {
			r.tell(ladder.Doubt{Path: p.id})
		}
	}
}
