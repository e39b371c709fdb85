package kube

import (
	"maps"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
)

// Of a Node's metadata those labels stay that a node cannot write, and its site; of its conditions, the network's.
func TestTrim(t *testing.T) {
	n := kubetest.Node("a", 1, "10.244.1.0/24")
	n.Meta.Annotations = map[string]string{"big": "value"}
	n.Meta.Labels = map[string]string{"kubernetes.io/os": "linux", "node-restriction.kubernetes.io/mesh": "yes", mesh.SiteLabel: "oslo"}
	n.Status.Conditions = []api.Condition{{Type: "Ready"}, {Type: networkUnavailable}}
	trim(n)
	if !maps.Equal(n.Meta.Labels, map[string]string{"node-restriction.kubernetes.io/mesh": "yes", mesh.SiteLabel: "oslo"}) || n.Meta.Annotations != nil ||
		len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Type != networkUnavailable || len(n.Spec.PodCIDRs) != 1 {
		t.Errorf("left %+v", n)
	}
	s := mesh.State{Nodes: []mesh.Node{{Name: "a", Site: "old"}, {Name: "unlisted", Site: "bergen"}}}
	carry(s, func(name string) *api.Node {
		if name == "a" {
			return n
		}
		return nil
	})
	if s.Nodes[0].Site != "oslo" || s.Nodes[1].Site != "bergen" || s.Nodes[0].Labels != nil {
		t.Errorf("sites: %+v", s.Nodes)
	}
	n.Meta.Labels[mesh.MovedLabel] = ""
	s.AdmitLabel = "node-restriction.kubernetes.io/mesh=yes"
	carry(s, func(string) *api.Node { return n })
	if want := map[string]string{mesh.MovedLabel: "", "node-restriction.kubernetes.io/mesh": "yes"}; !maps.Equal(s.Nodes[0].Labels, want) {
		t.Errorf("labels: %v", s.Nodes[0].Labels)
	}
	b := kubetest.PodBlock("10.244.1.0/24", "a")
	b.Meta.Labels = map[string]string{"node-restriction.kubernetes.io/mesh": "yes"}
	trim(b)
	if b.Meta.Labels != nil || b.Spec.NodeName != "a" {
		t.Errorf("left %+v", b)
	}
}
