package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/config"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/members"
)

// decodeID makes the binary form of a peer ID. Sources have checked it.
func decodeID(id mesh.PeerID) (mesh.RawID, error) {
	raw, err := peer.Decode(string(id))
	return mesh.RawID(raw), err
}

// planFor derives this node's plan from s and checks that s and the key agree
// on who this node is.
func planFor(s mesh.State, cfg config.Config, id peer.ID) (mesh.Plan, error) {
	self := cfg.NodeName
	plan, err := mesh.NewPlan(s, self, decodeID)
	if errors.Is(err, mesh.ErrNotMember) {
		return plan, fmt.Errorf("nodes: %w; add {name: %s, peerID: %s, podCIDRs: […]}, or set nodeName to the name it is listed under", err, self, id)
	}
	if err != nil {
		return plan, err
	}
	plan.Host.Keep, plan.Host.Promisc = cfg.CNIMode == config.CNIKeep, cfg.CNI.PromiscMode
	if plan.Self.PeerID != mesh.PeerID(id.String()) {
		return plan, fmt.Errorf("nodes: %s has peerID %s, but this node's key is %s; correct the membership, or restore the node's identity.key",
			self, plan.Self.PeerID, id)
	}
	return plan, nil
}

// p2pMembership translates a plan for p2p. Its identifiers were checked when the
// membership was read.
func p2pMembership(plan mesh.Plan) (members.Membership, error) {
	m := members.Membership{ClusterCIDRs: plan.Host.ClusterCIDRs}
	for _, n := range plan.Members {
		id := peer.ID(plan.IDs[n.PeerID])
		m.Members = append(m.Members, members.Member{Name: n.Name, ID: id})
	}
	for _, r := range plan.Relays {
		id := peer.ID(plan.IDs[r.PeerID])
		info := peer.AddrInfo{ID: id}
		for _, text := range r.Addrs {
			a, err := ma.NewMultiaddr(text)
			if err != nil {
				return m, fmt.Errorf("address of relay %s: %w", id, err)
			}
			info.Addrs = append(info.Addrs, a)
		}
		m.Relays = append(m.Relays, info)
	}
	return m, nil
}

// tunnelRoutes translates a plan for the tunnel.
func tunnelRoutes(plan mesh.Plan) []tunnel.Route {
	var out []tunnel.Route
	for _, r := range plan.Routes {
		out = append(out, tunnel.Route{Prefix: r.Prefix, Peer: tunnel.PeerID(plan.IDs[r.Peer]), Self: r.Self})
	}
	return out
}

// onState takes a changed membership into force. A state without this node is
// refused: it says nothing about what this node should do, and others cut it
// off themselves.
func (d *daemon) onState(ctx context.Context, s mesh.State) {
	d.planMu.Lock()
	defer d.planMu.Unlock()
	plan, err := planFor(s, d.cfg, d.id)
	if err != nil {
		d.onBroken(err)
		return
	}
	plan = d.lan.complete(plan)
	d.mu.Lock()
	same := reflect.DeepEqual(plan, d.plan)
	wan := slices.Equal(s.WANCIDRs, d.state.WANCIDRs)
	mended := d.problem != nil
	d.state, d.plan, d.problem = s, plan, nil
	d.mu.Unlock()
	if err := snapshot.Save(d.cfg.StateDir, s); err != nil {
		d.log.Error("the membership cannot be kept for an offline start", "err", err)
	}
	if !wan {
		d.log.Warn("wanCIDRs changed: it takes effect when the agent starts next")
	}
	if mended {
		d.log.Info("membership is good again", "source", d.source)
	}
	if same {
		return
	}
	d.log.Info("membership changed", "members", len(plan.Members)+1, "relays", len(plan.Relays))
	if err := d.apply(ctx, plan); err != nil {
		d.log.Error("membership is only partly in force; retrying", "err", err)
	}
}

// replan takes this node's part in native and VXLAN paths into force, which is another one
// now; the membership is as it was.
func (d *daemon) replan(ctx context.Context) {
	d.planMu.Lock()
	defer d.planMu.Unlock()
	plan, _ := d.current()
	plan = d.lan.complete(plan)
	d.mu.Lock()
	d.plan = plan
	d.mu.Unlock()
	if err := d.apply(ctx, plan); err != nil {
		d.log.Error("the changed underlay is only partly in force; retrying", "err", err)
	}
}

// onBroken reports a membership that cannot be used; the last good one stays.
func (d *daemon) onBroken(err error) {
	d.mu.Lock()
	d.problem = err
	d.mu.Unlock()
	d.log.Error("membership is broken; the last good one stays in force", "source", d.source, "err", err)
}

// apply makes every part hold what plan says: first who may connect and which
// packets are admitted, then the kernel, then what the plugin reads.
func (d *daemon) apply(ctx context.Context, plan mesh.Plan) error {
	members, err := p2pMembership(plan)
	if err != nil {
		return err
	}
	d.node.SetMembership(members)
	d.tunnel.SetRoutes(tunnelRoutes(plan))
	d.lan.setPlan(plan)
	return d.applyHost(ctx)
}

// applyHost sets kernel state and the plugin's files; it is also what the
// periodic repair calls. The plan is the one in force when its turn has come.
func (d *daemon) applyHost(ctx context.Context) error {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	plan, _ := d.current()
	if plan.Host.Keep {
		// First, so that no pod comes to a bridge that goes.
		if err := d.cni.Withdraw(); err != nil {
			return err
		}
	}
	can, err := d.host.Set(ctx, plan.Host)
	d.lan.setCapabilities(can)
	if err != nil || plan.Host.Keep {
		return err
	}
	err = d.cni.Write(plan.Subnet)
	if errors.Is(err, cniconf.ErrWaits) || errors.Is(err, cniconf.ErrFormer) {
		d.setWaits(err)
		return nil
	}
	d.setWaits(nil)
	return err
}

// setWaits notes, and logs when it changes, why the runtime is not told of our
// plugin, or not as configured. It is no failure of the agent: what runs keeps its
// network.
func (d *daemon) setWaits(why error) {
	d.mu.Lock()
	before := d.waits
	d.waits = why
	d.mu.Unlock()
	switch {
	case why != nil && (before == nil || before.Error() != why.Error()):
		d.log.Warn("network plugin", "err", why)
	case why == nil && before != nil:
		d.log.Info("network plugin: the configuration is in place")
	}
}
