package join

import (
	"context"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/streamguard"
	"edgemesh/tunnel/p2p/who/identity"
)

// maxStreams bounds the streams of a peer that has not proved the secret.
const maxStreams = 16

// Guard wraps a host's resource manager. The streams of a peer that is not served wait there until it is, or until its last
// connection loses its place; only this package's protocol passes. So a stranger learns nothing, and a member's first streams
// are not lost.
func (d *Door) Guard(rm network.ResourceManager, served func(peer.ID) bool) network.ResourceManager {
	return streamguard.Wrap(rm, streamguard.Rules{Served: served, Protocol: identity.JoinProtocol, Most: maxStreams,
		TooMany: errNotProved, Otherwise: d.await})
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
