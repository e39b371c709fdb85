package p2p

import (
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/ladder"
)

// shun is the refusal of one member.
type shun struct {
	until time.Time
	why   string
}

// Shun disconnects from a member and refuses it, in both directions, for d: it
// breaks rules that every sound member keeps. why is what an operator reads. It
// does not block.
func (n *Node) Shun(p peer.ID, d time.Duration, why string) {
	n.gater.shunned.Store(p, shun{time.Now().Add(d), why})
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if r := n.peers.m[p]; r != nil {
		r.connectErr = n.gater.refusal(p)
		r.tell(ladder.Refuse{})
		r.signal()
	}
}

// refusal is why p is refused now, an error that wraps ErrShunned; nil if it is not.
func (g *gater) refusal(p peer.ID) error {
	v, ok := g.shunned.Load(p)
	if !ok {
		return nil
	}
	if s, ok := v.(shun); ok && time.Now().Before(s.until) {
		return fmt.Errorf("%w until %s: %s", ErrShunned, s.until.Format(time.TimeOnly), s.why)
	}
	g.shunned.CompareAndDelete(p, v)
	return nil
}
