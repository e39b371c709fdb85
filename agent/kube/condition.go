package kube

import (
	"context"
	"fmt"
	"time"

	"edgemesh/agent/kube/api"
)

const (
	// readyType and blockType are the conditions of a MeshNode.
	readyType = "Ready"
	blockType = "BlockAllocated"
	// networkUnavailable is the condition of a Node that cloud controllers set to
	// True until the pod network is there; the node lifecycle controller turns it
	// into the taint node.kubernetes.io/network-unavailable:NoSchedule.
	networkUnavailable = "NetworkUnavailable"
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
	if err := r.client.patch(ctx, api.Nodes().Path(r.cfg.NodeName)+"/status", contentStrategic, nil, patch, &got); err != nil {
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
