package daemon

import (
	"context"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/mesh"
	"edgemesh/agent/observe"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/paths"
)

// answerObservers tells other members which paths this node uses, as far as they may ask, until ctx ends.
func (b *backend) answerObservers(ctx context.Context) {
	a := observe.NewAnswerer(ctx, b.report, func(id mesh.PeerID) bool { p, _ := b.force.plan(); return p.Observes(id) }, b.log)
	b.node.SetStreamHandler(identity.ObserveProtocol, func(id peer.ID, s *paths.Stream) { a.Answer(mesh.PeerID(id.String()), s) })
}

// report is what this node tells.
func (b *backend) report() observe.Report { return observe.FromStatus(b.Status()) }

// Observe implements control.Backend.
func (b *backend) Observe(ctx context.Context, each func(any) error) error {
	plan := func() plan { p, _ := b.force.plan(); return p }
	return observe.Asker{
		Self: func() mesh.Node { return plan().Self }, Members: func() []mesh.Node { return plan().Members }, Own: b.report,
		All: func() bool { p := plan(); return p.Observes(p.Self.PeerID) },
		Open: func(ctx context.Context, id mesh.PeerID) (observe.Stream, error) {
			s, err := b.node.OpenStream(ctx, plan().id(id), identity.ObserveProtocol)
			if err != nil {
				return nil, err // not a typed nil in the interface
			}
			return s, nil
		},
		Leave: func(id mesh.PeerID) { b.release(plan().id(id)) },
	}.Run(ctx, func(e observe.Event) error { return each(e) })
}

// release disconnects from a member that carries nothing for this node's pods.
func (b *backend) release(id peer.ID) {
	for _, p := range b.tunnel.Stats().Peers {
		if p.Peer == tunnel.PeerID(id) && !p.Idle {
			return
		}
	}
	b.node.Disconnect(id)
}
