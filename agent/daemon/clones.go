package daemon

import (
	"context"
	"fmt"

	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/who/clones"
)

// followStandby takes this node's LAN paths down while another machine keeps its traffic.
func (m *membership) followStandby(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.node.StandbyChanged():
			m.replan(ctx)
		}
	}
}

// maxPlace bounds what another machine says of itself, in bytes.
const maxPlace = 200

func place(a clones.At) string { return wording.Foreign(a.String(), maxPlace) }

// checkClones says which machines share a key: with this one, and among its peers.
func checkClones(node *p2p.Node, cfg config.Config) (out []findings.Finding) {
	const id = "clone"
	kind, _ := findings.Of(id)
	if p, ok := node.Clone(); ok {
		other := place(p.At)
		by := node.MemberName(p.Witness)
		if by == "" {
			by = "relay " + p.Witness.String()
		}
		if node.StandsBy() {
			out = append(out, findings.Brokenf(id, fmt.Sprintf("if this is the copy, remove %s, %s and membership.json from %s, restart the agent and register the new peer ID; "+
				"if it is to carry the node, switch the other one off, then remove %[2]s and restart this agent", keyfile.Name, clones.HardwareFile, cfg.StateDir),
				"another machine runs as %s with the same key, at %s, seen by %s, and keeps the node's traffic: %s. This one stands by: its pods reach no other node",
				cfg.NodeName, other, by, p.Theirs.Why(p.Mine)))
		} else {
			out = append(out, findings.Warningf(id, kind.Remedy, "another machine runs as %s with the same key, at %s, seen by %s. It stands by, and this one keeps the node's traffic: %s",
				cfg.NodeName, other, by, p.Mine.Why(p.Theirs)))
		}
	}
	for _, p := range node.Pairs() {
		name := node.MemberName(p.Peer)
		if name == "" {
			continue
		}
		out = append(out, findings.Warningf(id, kind.Remedy, "two machines run as %s with one key: %s keeps the node's traffic, since %s; %s stands by",
			name, place(p.Keeps), wording.Foreign(p.Why, maxPlace), place(p.StandsBy)).About(name))
	}
	return out
}
