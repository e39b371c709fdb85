package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/members"
)

// plan is what this node should hold.
type plan struct {
	mesh.Plan
	relays []peer.AddrInfo // as p2p has them
}

// hasRelay reports whether the membership has that node among the relays.
func (p plan) hasRelay(id peer.ID) bool {
	return slices.ContainsFunc(p.relays, func(r peer.AddrInfo) bool { return r.ID == id })
}

// planFor derives this node's plan from s and checks that s and the key agree
// on who this node is.
func planFor(s mesh.State, cfg config.Config, id peer.ID) (plan, error) {
	return plan{}.next(s, cfg, id)
}

// next is planFor for the State that follows.
func (p plan) next(s mesh.State, cfg config.Config, id peer.ID) (plan, error) {
	self := cfg.NodeName
	m, err := p.Next(s, self)
	if errors.Is(err, mesh.ErrNotMember) && s.Bans(self, mesh.PeerID(id.String())) {
		return plan{}, fmt.Errorf("banned: %w: it is listed there, and all others refuse it; an administrator can remove %s or %s from the list", err, self, id)
	}
	if n, listed := s.Node(self); errors.Is(err, mesh.ErrNotMember) && listed && !s.Carries(n) {
		return plan{}, fmt.Errorf("admitLabel: %w: it lacks the label %s, so all others refuse it; only an administrator can give it: kubectl label node %s %s, "+
			"or nodes[].labels in a membership file", err, s.AdmitLabel, self, mesh.LabelArgument(s.AdmitLabel))
	}
	if other := errors.Is(err, mesh.ErrNotMember) || err == nil && m.Self.PeerID != mesh.PeerID(id.String()); other {
		if key, ok := ofKey(s, mesh.PeerID(id.String())); ok { // never its blocks: they are another machine's
			return plan{}, fmt.Errorf("nodes: nodeName is %s, but this node's key is that of %s; set nodeName: %[2]s, or, if this machine is %[1]s, remove its identity.key and list %[1]s with the peer ID of the new one",
				self, key.Name)
		}
	}
	if errors.Is(err, mesh.ErrNotMember) {
		return plan{}, fmt.Errorf("nodes: %w; add {name: %s, peerID: %s, podCIDRs: […]}, or set nodeName to the name it is listed under", err, self, id)
	}
	if err != nil {
		return plan{}, err
	}
	m.Host.Keep, m.Host.Promisc, m.Host.Forward = cfg.CNIMode == config.CNIKeep, cfg.CNI.PromiscMode, cfg.Forward
	if m.Self.PeerID != mesh.PeerID(id.String()) {
		return plan{}, otherKeyError{m.Self.PeerID, fmt.Errorf("nodes: %s has peerID %s, but this node's key is %s; correct the membership, or restore the node's identity.key",
			self, m.Self.PeerID, id)}
	}
	relays, err := admit.Membership(nil, m.Relays, nil, admit.Decode)
	return plan{Plan: m, relays: relays.Relays}, err
}

// news is what a plan changes for p2p and the tunnel, compared with the plan before it.
type news struct {
	members members.Change
	routes  tunnel.Change
	all     bool // routes are all there are, for this node's own are others now
}

// since says what is new since was. The IDs were checked when the membership was read.
func (p plan) since(was plan) (n news, err error) {
	c := p.Since(was.Plan)
	m, err := admit.Membership(c.Come, nil, p.Host.ClusterCIDRs, admit.Decode)
	if err != nil {
		return n, err
	}
	gone, err := admit.Membership(c.Gone, nil, nil, admit.Decode)
	if err != nil {
		return n, err
	}
	m.Relays = p.relays
	m.Banned, _ = admit.PeerIDs(p.Banned) // the others are names of nodes that are not listed
	n.members.Membership = m
	for _, x := range gone.Members {
		n.members.Gone = append(n.members.Gone, x.ID)
		n.routes.Gone = append(n.routes.Gone, tunnel.PeerID(x.ID))
	}
	if n.all = !slices.Equal(p.Self.PodCIDRs, was.Self.PodCIDRs); n.all && len(c.Come) != len(p.Nodes) {
		c.Come = p.Nodes
		if m, err = admit.Membership(c.Come, nil, nil, admit.Decode); err != nil {
			return n, err
		}
	}
	for i, x := range c.Come {
		for _, b := range x.PodCIDRs {
			n.routes.Come = append(n.routes.Come, tunnel.Route{Prefix: b, Peer: tunnel.PeerID(m.Members[i].ID), Self: x.Name == p.Self.Name})
		}
	}
	return n, nil
}

// inForce is the membership and the plan in force.
type inForce struct {
	mu      sync.Mutex     // nothing else is locked while it is held
	wan     []netip.Prefix // of the membership
	now     plan
	problem error  // why the source's membership is not in force, nil when it is
	refused string // why ranges of it are not, "" for none
}

// plan returns the plan in force, and the membership's problem, if any.
func (f *inForce) plan() (plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.problem
}

// current is the plan in force, as package mesh has it.
func (f *inForce) current() mesh.Plan {
	p, _ := f.plan()
	return p.Plan
}

// inside reports whether an address is one of the cluster's pods.
func (f *inForce) inside(a netip.Addr) bool {
	p, _ := f.plan()
	return mesh.Inside(p.Host.ClusterCIDRs, netip.PrefixFrom(a, a.BitLen()))
}

// set replaces what is in force and returns what was.
func (f *inForce) set(wan []netip.Prefix, p plan, problem error) (wanBefore []netip.Prefix, before plan, was error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanBefore, before, was = f.wan, f.now, f.problem
	f.wan, f.now, f.problem = wan, p, problem
	return wanBefore, before, was
}

// setPlan replaces the plan alone, setProblem what is wrong with the membership.
func (f *inForce) setPlan(p plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = p
}

func (f *inForce) setProblem(err error) (before error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.problem = f.problem, err
	return before
}

// setRefused replaces why ranges are not in force, and returns what it was.
func (f *inForce) setRefused(why string) (before string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.refused = f.refused, why
	return before
}

func (f *inForce) whyRefused() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// membershipRemedy is what to do about a membership that is not in force; its error says more.
func membershipRemedy(source string) string {
	if strings.HasSuffix(source, " API") {
		source += ", or the connection to it"
	}
	return fmt.Sprintf("fix it in %s; it is reloaded automatically", source)
}

// checkController notes that nobody renews the controllers' Lease.
func checkController(lease string) []findings.Finding {
	if lease == "" {
		return nil
	}
	return []findings.Finding{findings.Notef("controller", "no controller renews the Lease %s: packets flow, and agents follow Nodes in place of NodeRecords; `kubectl edgemesh status` says why no controller runs", lease)}
}

// checkMembership reports whether the source's membership is in force.
func checkMembership(p plan, problem error, source string) findings.Finding {
	if problem != nil {
		return findings.Warningf("membership", membershipRemedy(source), "the last good membership is in force, and traffic continues with it: %v", problem)
	}
	return findings.Okayf("membership", "%s: %s, this node owns %v", source, wording.Count(len(p.Nodes), "member"), p.Self.PodCIDRs)
}
