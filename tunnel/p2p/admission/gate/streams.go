package gate

import (
	"context"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/tunnel/p2p/who/refusals"
)

// OpenStream implements network.ResourceManager. libp2p calls it for every stream, and SetProtocol when its protocol is known.
func (g *Gate) OpenStream(p peer.ID, dir network.Direction) (network.StreamManagementScope, error) {
	s, err := g.ResourceManager.OpenStream(p, dir)
	if err != nil {
		g.cfg.Refused(refusals.PeerStreams, p, g.from(p))
		return nil, err
	}
	if g.cfg.Policy == nil {
		return s, nil
	}
	if !g.serves(p) && s.PeerScope().Stat().NumStreamsInbound > g.cfg.Policy.streams {
		s.Done()
		return nil, errRefused
	}
	return stream{s, g, p}, nil
}

// serves reports whether p may use everything.
func (g *Gate) serves(p peer.ID) bool { return g.cfg.IsMember(p) || g.Admits(p) }

// from is the address of p's latest connection.
func (g *Gate) from(p peer.ID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if of := g.peers[p]; of != nil {
		return of.conns[len(of.conns)-1].address()
	}
	return ""
}

// stream is a stream's scope.
type stream struct {
	network.StreamManagementScope
	gate *Gate
	peer peer.ID
}

// SetProtocol implements network.StreamManagementScope. Before it is admitted a peer learns nothing, and if the policy holds
// its streams none of a member's first ones is lost.
func (s stream) SetProtocol(id protocol.ID) error {
	if policy := s.gate.cfg.Policy; id != policy.protocol && !s.gate.serves(s.peer) && !(policy.hold && s.gate.awaits(s.peer)) {
		return errRefused
	}
	return s.StreamManagementScope.SetProtocol(id)
}

// awaits waits until p is admitted or loses its last connection, and reports whether it was admitted. Streams of one peer
// share its proof: they have no connection where they are counted. Each connection needs its own to stay.
func (g *Gate) awaits(p peer.ID) (yes bool) {
	g.mu.Lock()
	of := g.peers[p]
	g.mu.Unlock()
	if of == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.Policy.stay+sweepEvery)
	defer cancel()
	_ = of.changed.Until(ctx, func() bool {
		if yes = g.serves(p); yes {
			return true
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(of.conns) == 0
	})
	return yes
}
