package observe

import (
	"context"
	"iter"
	"log/slog"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/identity"
)

// Node is a running agent, as far as observing needs it. All fields are required.
type Node struct {
	Plan   func() mesh.Plan // the one in force
	Status func() control.Status
	P2P    *p2p.Node
	Tunnel *tunnel.Tunnel
	Log    *slog.Logger
}

// Serve reports to other members which paths this node uses, as far as they may see them, until ctx ends.
func (n Node) Serve(ctx context.Context) {
	a := NewAnswerer(ctx, n.report, func(id mesh.PeerID) bool { return n.Plan().Observes(id) }, n.Log)
	n.P2P.SetStreamHandler(identity.ObserveProtocol, func(id peer.ID, s *paths.Stream) { a.Answer(mesh.PeerID(id.String()), s) })
}

// report is what this node reports.
func (n Node) report() Report { return FromStatus(n.Status()) }

// Observe is Observer.Run, for control.Backend.
func (n Node) Observe(ctx context.Context, each func(any) error) error {
	return Observer{
		Self: func() mesh.Node { return n.Plan().Self }, Members: func() iter.Seq[*mesh.Node] { return n.Plan().Members() }, Own: n.report,
		All: func() bool { p := n.Plan(); return p.Observes(p.Self.PeerID) },
		Open: func(ctx context.Context, of mesh.PeerID) (Stream, error) {
			s, err := n.P2P.OpenStream(ctx, admit.ID(of), identity.ObserveProtocol)
			if err != nil {
				return nil, err // not a typed nil in the interface
			}
			return s, nil
		},
		Leave: func(of mesh.PeerID) { n.release(admit.ID(of)) },
	}.Run(ctx, func(e Event) error { return each(e) })
}

// release disconnects from a member that carries nothing for this node's pods.
func (n Node) release(id peer.ID) {
	if p := n.Tunnel.StatsOf(tunnel.PeerID(id)); p.Peer == "" || p.Idle {
		n.P2P.Disconnect(id)
	}
}
