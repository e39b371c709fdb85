package join

import (
	"context"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/tunnel/p2p/identity"
)

// maxStreams bounds the streams of a peer that has not proved the secret.
const maxStreams = 16

// Guard wraps a host's resource manager, which is asked for every stream and again when its protocol is known. The streams
// of a peer that is not served wait there until it is, or until its last connection loses its place; only this package's
// protocol passes. So a stranger learns nothing, and a member's first streams are not lost.
func (d *Door) Guard(rm network.ResourceManager, served func(peer.ID) bool) network.ResourceManager {
	return guard{rm, d, served}
}

type guard struct {
	network.ResourceManager
	door   *Door
	served func(peer.ID) bool
}

// OpenStream implements network.ResourceManager.
func (g guard) OpenStream(p peer.ID, dir network.Direction) (network.StreamManagementScope, error) {
	scope, err := g.ResourceManager.OpenStream(p, dir)
	if err != nil {
		return nil, err
	}
	if stat := scope.PeerScope().Stat(); !g.served(p) && stat.NumStreamsInbound > maxStreams {
		scope.Done()
		return nil, errNotProved
	}
	return stream{scope, g, p}, nil
}

// stream is a stream's scope.
type stream struct {
	network.StreamManagementScope
	guard guard
	peer  peer.ID
}

// SetProtocol implements network.StreamManagementScope. It waits.
func (s stream) SetProtocol(proto protocol.ID) error {
	if proto != identity.JoinProtocol && !s.guard.served(s.peer) {
		if err := s.guard.door.await(s.peer); err != nil {
			return err
		}
	}
	return s.StreamManagementScope.SetProtocol(proto)
}

// await waits until p is admitted. The error is errNotProved.
func (d *Door) await(p peer.ID) error {
	d.mu.Lock()
	v := d.visitors[p]
	d.mu.Unlock()
	if v == nil {
		return errNotProved
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience+sweepEvery)
	defer cancel()
	var admitted, gone bool
	err := v.changed.Until(ctx, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		admitted, gone = len(v.in) > 0, len(v.waiting)+len(v.in) == 0
		return admitted || gone
	})
	if err != nil || !admitted {
		return errNotProved
	}
	return nil
}
