package api

import (
	"maps"
	"slices"
	"time"
)

// NodeRecord is what a controller says of the Node of that name: all that a membership needs of it, and nothing that a
// kubelet reports. No node may write one; its owner is the Node.
type NodeRecord struct {
	Type
	Meta Meta           `json:"metadata"`
	Spec NodeRecordSpec `json:"spec"`
}

// NodeRecordSpec is copied from the Node.
type NodeRecordSpec struct {
	NodeUID  string            `json:"nodeUID"`
	Created  *time.Time        `json:"created,omitempty"` // the Node
	PodCIDRs []string          `json:"podCIDRs"`
	Labels   map[string]string `json:"labels"`           // that no node can give itself
	Signed   string            `json:"signed,omitempty"` // the controller's statement about the member, where it is a delegate
}

// Metadata implements Object.
func (r *NodeRecord) Metadata() *Meta { return &r.Meta }

// RecordSpec is what a NodeRecord says of n, whose labels are trimmed to those that count.
func (n *Node) RecordSpec() NodeRecordSpec {
	labels := map[string]string{}
	maps.Copy(labels, n.Meta.Labels)
	return NodeRecordSpec{NodeUID: n.Meta.UID, Created: n.Meta.CreationTimestamp, PodCIDRs: append([]string{}, n.Spec.PodCIDRs...), Labels: labels}
}

// Equal reports whether both say the same.
func (s NodeRecordSpec) Equal(o NodeRecordSpec) bool {
	return s.NodeUID == o.NodeUID && slices.Equal(s.PodCIDRs, o.PodCIDRs) && maps.Equal(s.Labels, o.Labels) && s.Signed == o.Signed
}

// Node is the Node that r stands for: of r's version, and with the Node's UID.
func (r *NodeRecord) Node() *Node {
	return &Node{
		Meta: Meta{Name: r.Meta.Name, UID: r.Spec.NodeUID, ResourceVersion: r.Meta.ResourceVersion, CreationTimestamp: r.Spec.Created,
			Labels: r.Spec.Labels},
		Spec: NodeSpec{PodCIDRs: r.Spec.PodCIDRs}, Record: r.Meta.UID, Signed: r.Spec.Signed,
	}
}
