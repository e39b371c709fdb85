package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// reporter reports this node's state to people and to the cluster.
type reporter struct {
	*writer
	health     health
	relayAddrs []string   // where this node is a relay
	place      api.Place  // of this node
	healthy    *[2]string // reason and message of what is broken on it, no reason: nothing is; nil: not said yet
	said       time.Time  // when the Node's condition was last written, and how
	saidStatus string
}

// report is what people want to see, within the bounds of the CRD; without times.
func (r *reporter) report(w want, m *api.MeshNode, blockErr error) api.MeshNodeStatus {
	relays := fitting(r.relayAddrs)
	st := api.MeshNodeStatus{AgentVersion: r.cfg.AgentVersion, RelayAddresses: relays, Addresses: r.place.Addresses}
	if r.place.Addresses == nil { // not said yet
		st.Addresses = m.Status.Addresses
	}
	for _, p := range w.blocks[:min(len(w.blocks), mostBlocks)] {
		st.PodCIDRs = append(st.PodCIDRs, p.String())
	}
	st.Conditions = append([]api.Condition{r.blockCondition(w, blockErr), r.readyCondition(w)}, r.place.Condition(m.Status.Conditions)...)
	st.Conditions = append(st.Conditions, r.healthyCondition(m.Status.Conditions)...)
	for i, short := range [2]string{shown("blocks", len(w.blocks), len(st.PodCIDRs)), shown("relay addresses", len(r.relayAddrs), len(relays))} {
		if c := &st.Conditions[i]; short != "" {
			c.Message = clip(short + c.Message)
		}
	}
	return st
}

// status writes that, when it changes.
func (r *reporter) status(ctx context.Context, w want, m *api.MeshNode, blockErr error) error {
	st := r.report(w, m, blockErr)
	if statusEqual(m.Status, st) {
		return nil
	}
	now := time.Now().UTC().Truncate(time.Second)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.LastTransitionTime = &now
		if old := api.FindCondition(m.Status.Conditions, c.Type); old != nil && old.Status == c.Status && old.LastTransitionTime != nil {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	var got api.MeshNode
	patch := map[string]any{"metadata": map[string]string{"uid": m.Meta.UID}, "status": statusPatch{st, st.PodCIDRs, st.RelayAddresses, st.Addresses}}
	err := r.patch(ctx, api.MeshNodes().Path(r.cfg.NodeName)+"/status", patch, &got)
	if err == nil && len(st.Addresses) > 0 && len(got.Status.Addresses) == 0 { // dropped by a CRD of an earlier release, which has no such field
		st.Addresses, r.place.Addresses = nil, nil
	}
	if err == nil && !statusEqual(got.Status, st) {
		err = errLied
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone meanwhile: its event comes
	}
	if err != nil {
		return fmt.Errorf("write the status of this node's MeshNode: %w", err)
	}
	r.send(ctx, event{api.MeshNodes(), modified, &got})
	return nil
}

// What the CRD of MeshNodes takes: more of a list is not shown, and has no use there except for members' relays.
const mostBlocks, mostRelays, mostRelayText = 8, 8, 1024

// fitting is the beginning of a list of relay addresses.
func fitting(all []string) []string {
	text := 0
	for i, a := range all {
		if text += len(a); i == mostRelays || text > mostRelayText {
			return all[:i:i]
		}
	}
	return all
}

// shown says that a list is not whole, "" if it is.
func shown(what string, all, some int) string {
	if all == some {
		return ""
	}
	return fmt.Sprintf("only the first %d of %d %s are shown; ", some, all, what)
}

// statusPatch is a status in a merge patch (RFC 7396): a list that is empty now is sent as null, or the old one stays.
type statusPatch struct {
	api.MeshNodeStatus
	PodCIDRs       []string `json:"podCIDRs"`
	RelayAddresses []string `json:"relayAddresses"`
	Addresses      []string `json:"addresses"`
}

func (r *reporter) readyCondition(w want) api.Condition {
	c := api.Condition{Type: readyType, Status: "False", Reason: "Starting", Message: "the agent is setting up the node"}
	switch {
	case len(w.blocks) == 0:
		c.Reason, c.Message = "NoBlock", "the node has no pod block"
	case r.health.known && r.health.unserved == nil:
		c.Status, c.Reason, c.Message = "True", "Serving", "pods of this node have their network"
	case r.health.known:
		c.Reason, c.Message = "Failing", clip(r.health.unserved.Error())
	}
	return c
}

// healthyCondition is what this node finds of itself; before it has said anything, what old has.
func (r *reporter) healthyCondition(old []api.Condition) []api.Condition {
	if r.healthy == nil {
		if c := api.FindCondition(old, healthyType); c != nil {
			return []api.Condition{*c}
		}
		return nil
	}
	if r.healthy[0] == "" {
		return []api.Condition{{Type: healthyType, Status: "True", Reason: "NothingBroken", Message: "nothing is broken on this node"}}
	}
	return []api.Condition{{Type: healthyType, Status: "False", Reason: r.healthy[0], Message: clip(r.healthy[1])}}
}

func (r *reporter) blockCondition(w want, err error) api.Condition {
	c := api.Condition{Type: blockType, Status: "False", Reason: "Waiting", Message: "no block yet"}
	var later again
	if errors.As(err, &later) {
		err = nil
	}
	given, foreign := counting(w.node, w.ranges)
	ignored := ""
	if len(foreign) > 0 {
		ignored = fmt.Sprintf("; the Node's podCIDRs %v are outside the PodNetwork's %v and do not count", foreign, w.ranges)
	}
	switch {
	case errors.Is(err, ErrExhausted):
		c.Reason, c.Message = "Exhausted", clip(err.Error())
	case err != nil:
		c.Reason, c.Message = "Failing", clip(err.Error())
	case len(w.plugin) > 0 && len(w.blocks) > 0:
		c.Status, c.Reason, c.Message = "True", "FromPlugin", "given by the network plugin that has the node's pods"
	case len(w.plugin) > 0:
		c.Reason, c.Message = "Refused", "the blocks that the node's network plugin gives belong to another node"
	case len(given) > 0 && len(w.blocks) > 0:
		c.Status, c.Reason, c.Message = "True", "FromNode", "from the Node's spec.podCIDRs"+ignored
	case len(given) > 0:
		c.Reason, c.Message = "Refused", "the Node's spec.podCIDRs belong to another node"+ignored
	case len(w.blocks) > 0:
		c.Status, c.Reason, c.Message = "True", "Claimed", "claimed as PodBlock"+ignored
	case ignored != "":
		c.Message += ignored
	}
	c.Message = clip(c.Message)
	return c
}

// statusEqual compares what is worth a write; times are not.
func statusEqual(a, b api.MeshNodeStatus) bool {
	return a.AgentVersion == b.AgentVersion && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		slices.Equal(a.RelayAddresses, b.RelayAddresses) && slices.Equal(a.Addresses, b.Addresses) &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(x, y api.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
		})
}

const (
	// readyType, blockType and healthyType are the conditions of a MeshNode.
	readyType   = "Ready"
	blockType   = "BlockAllocated"
	healthyType = "Healthy"
	// contest is how soon the condition is written again when another program, such
	// as a cloud's route controller, has changed it.
	contest = 10 * time.Second
)

// condition maintains NetworkUnavailable on this node's Node. It says nothing before the
// node's network was set up; a restart of the agent changes nothing.
func (r *reporter) condition(ctx context.Context, w want) error {
	if !r.health.known {
		return nil
	}
	c := api.Condition{Type: networkUnavailable, Status: "False", Reason: "EdgeMeshIsUp", Message: "the pod network of this node works"}
	if r.health.unserved != nil {
		c.Status, c.Reason, c.Message = "True", "EdgeMeshIsDown", clip(r.health.unserved.Error())
	}
	now := time.Now().UTC().Truncate(time.Second)
	old := api.FindCondition(w.node.Status.Conditions, networkUnavailable)
	if old != nil && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
		return nil
	}
	if left := contest - time.Since(r.said); r.saidStatus == c.Status && left > 0 {
		return again{left}
	}
	c.LastTransitionTime, c.LastHeartbeatTime = &now, &now
	if old != nil && old.Status == c.Status && old.LastTransitionTime != nil {
		c.LastTransitionTime = old.LastTransitionTime
	}
	var got api.Node
	patch := map[string]any{"status": map[string]any{"conditions": []api.Condition{c}}}
	if err := r.client.Patch(ctx, api.Nodes().Path(r.cfg.NodeName)+"/status", client.Strategic, nil, patch, &got); err != nil {
		return fmt.Errorf("write the Node's condition %s: %w", networkUnavailable, err)
	}
	trim(&got)
	if a := api.FindCondition(got.Status.Conditions, networkUnavailable); a == nil || a.Status != c.Status {
		return fmt.Errorf("write the Node's condition %s: %w", networkUnavailable, errLied)
	}
	r.said, r.saidStatus = time.Now(), c.Status
	r.send(ctx, event{api.Nodes(), modified, &got})
	return nil
}

// health is whether this node serves its pods, and what is reported of it.
type health struct {
	sustain  time.Duration // a failure is reported when it has lasted for so long
	known    bool          // anything was said so far
	unserved error         // why the node does not serve, as reported to the API
	failing  time.Time     // since when it does not, zero: it does
	cause    error         // why it does not
}

// serve notes whether the node serves. The first cause stands for those that
// follow from it.
func (h *health) serve(err error) {
	switch {
	case err == nil:
		h.known, h.unserved, h.failing = true, nil, time.Time{}
	case !h.known:
		h.known, h.unserved = true, err
	case h.unserved == nil && h.failing.IsZero():
		h.failing, h.cause = time.Now(), err
	}
}

// sustained reports a failure to the API once it lasts: a Node that is tainted and
// untainted at every repair would move pods back and forth.
func (h *health) sustained() error {
	if h.unserved != nil || h.failing.IsZero() {
		return nil
	}
	if left := h.sustain - time.Since(h.failing); left > 0 {
		return again{left}
	}
	h.unserved = h.cause
	return nil
}
