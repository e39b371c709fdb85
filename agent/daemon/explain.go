package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/explain"
	"edgemesh/cni/upkeep"
	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

// Explain implements control.Backend: what happens to a packet from this node to one address, step by step.
func (b *backend) Explain(ctx context.Context, to string) ([]control.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	plan, _ := b.force.plan()
	node, ip, err := target(plan.Plan, to)
	if err != nil {
		return nil, err
	}
	return oneLined(explain.To(ctx, explained{b}, node, ip)), nil
}

// answerMembers tells members this node's side of what happens to packets between them and it.
func answerMembers(ctx context.Context, b *backend) {
	a := explain.NewAnswers(explained{b})
	b.node.SetStreamHandler(identity.ExplainProtocol, func(id peer.ID, s *paths.Stream) {
		if err := a.Answer(ctx, mesh.PeerID(id.String()), s); err != nil {
			b.log.Debug("a member's question was not answered", "peer", id, "err", err)
		}
	})
}

// explained implements explain.Agent.
type explained struct{ b *backend }

func (x explained) Plan() (mesh.Plan, control.Finding) {
	p, problem := x.b.force.plan()
	return p.Plan, x.b.checkMembership(p, problem)
}

func (x explained) Peer(n mesh.Node) control.PeerStatus { return x.b.peer(n) }

func (x explained) Ping(ctx context.Context, n mesh.Node) (time.Duration, string, error) {
	rtt, path, err := x.b.node.Ping(ctx, admit.ID(n.PeerID))
	return rtt, fmt.Sprintf("%s over %s", path.Kind, path.Transport), err
}

func (x explained) Host(ctx context.Context) []control.Finding {
	p, _ := x.b.force.plan()
	return x.b.kernel.host.Check(ctx, p.Host)
}

func (x explained) HasPod(ip netip.Addr) (bool, error) { return upkeep.HasPod(x.b.kernel.pods, ip) }

func (x explained) Open(ctx context.Context, n mesh.Node) (explain.Stream, error) {
	s, err := x.b.node.OpenStream(ctx, admit.ID(n.PeerID), identity.ExplainProtocol)
	if err != nil {
		return nil, err // not a typed nil in the interface
	}
	return s, nil
}
