package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/explain"
	"edgemesh/agent/findings"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/identity"
)

// explainer follows packets of this node. It implements explain.Agent.
type explainer struct {
	force  *inForce
	source string // its name
	node   *p2p.Node
	kernel *kernel
	reach  reach
	log    *slog.Logger
}

// Explain says what happens to a packet from this node to one address, step by step.
func (x explainer) Explain(ctx context.Context, to string) ([]findings.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	node, ip, err := target(x.reach.plan(), to)
	if err != nil {
		return nil, err
	}
	return oneLined(explain.To(ctx, x, node, ip)), nil
}

// answerMembers describes to members this node's side of what happens to packets between them and it.
func (x explainer) answerMembers(ctx context.Context) {
	a := explain.NewAnswers(x)
	x.node.SetStreamHandler(identity.ExplainProtocol, func(id peer.ID, s *paths.Stream) {
		if err := a.Answer(ctx, mesh.PeerID(id.String()), s); err != nil {
			x.log.Debug("a member's query was not answered", "peer", id, "err", err)
		}
	})
}

// Plan is the membership in force, and what doctor finds of it.
func (x explainer) Plan() (mesh.Plan, findings.Finding) {
	p, problem := x.force.plan()
	return p.Plan, checkMembership(p, problem, x.source)
}

// Peer is how a member is reached.
func (x explainer) Peer(n mesh.Node) control.PeerStatus { return x.reach.peer(n) }

// Ping sends one authenticated echo, and says over which path.
func (x explainer) Ping(ctx context.Context, n mesh.Node) (time.Duration, string, error) {
	rtt, path, err := x.node.Ping(ctx, admit.ID(n.PeerID))
	return rtt, fmt.Sprintf("%s over %s", path.Kind, path.Transport), err
}

// Host checks this host, and what becomes of packets between a pod of it and a far one, if these are valid.
func (x explainer) Host(ctx context.Context, own, far netip.Addr) []findings.Finding {
	return x.kernel.host.Check(ctx, x.force.current().Host, own, far)
}

// HasPod reports whether a pod here has the address.
func (x explainer) HasPod(ip netip.Addr) (bool, error) { return upkeep.HasPod(x.kernel.pods, ip) }

// Policy says what NetworkPolicies do to packets for a pod of this node.
func (x explainer) Policy(from, to netip.Addr) findings.Finding {
	return x.kernel.policies.Explain(from, to)
}

// Open opens a stream to a member's explainer.
func (x explainer) Open(ctx context.Context, n mesh.Node) (explain.Stream, error) {
	s, err := x.node.OpenStream(ctx, admit.ID(n.PeerID), identity.ExplainProtocol)
	if err != nil {
		return nil, err // not a typed nil in the interface
	}
	return s, nil
}
