// Package streamguard bounds the streams of peers that a relay does not serve yet: few, and of one protocol.
package streamguard

import (
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// Rules say what a peer may do. All of them are required.
type Rules struct {
	Served   func(peer.ID) bool // these may do everything
	Protocol protocol.ID        // the one of all others
	Most     int                // of their streams at a time
	TooMany  error              // the end of those beyond
	// Otherwise is asked about a stream of another protocol. It may wait; the stream ends with its error.
	Otherwise func(peer.ID) error
}

// Wrap wraps a host's resource manager, which is asked for every stream and again when its protocol is known.
func Wrap(rm network.ResourceManager, r Rules) network.ResourceManager { return guard{rm, r} }

type guard struct {
	network.ResourceManager
	rules Rules
}

// OpenStream implements network.ResourceManager.
func (g guard) OpenStream(p peer.ID, dir network.Direction) (network.StreamManagementScope, error) {
	scope, err := g.ResourceManager.OpenStream(p, dir)
	if err != nil {
		return nil, err
	}
	if !g.rules.Served(p) && scope.PeerScope().Stat().NumStreamsInbound > g.rules.Most {
		scope.Done()
		return nil, g.rules.TooMany
	}
	return stream{scope, g.rules, p}, nil
}

// stream is a stream's scope.
type stream struct {
	network.StreamManagementScope
	rules Rules
	peer  peer.ID
}

// SetProtocol implements network.StreamManagementScope.
func (s stream) SetProtocol(id protocol.ID) error {
	if id != s.rules.Protocol && !s.rules.Served(s.peer) {
		if err := s.rules.Otherwise(s.peer); err != nil {
			return err
		}
	}
	return s.StreamManagementScope.SetProtocol(id)
}
