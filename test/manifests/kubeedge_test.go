package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// matches reports whether pods of a workload may be on a node with these labels, as the scheduler decides it.
func matches(t *testing.T, workload object, node map[string]string) bool {
	t.Helper()
	selector, _ := workload.at("spec", "template", "spec", "nodeSelector").(map[string]any)
	for k, v := range selector {
		if node[k] != v {
			return false
		}
	}
	terms, _ := workload.at("spec", "template", "spec", "affinity", "nodeAffinity",
		"requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms").([]any)
	if len(terms) == 0 {
		t.Fatalf("%s: no node affinity is required", workload.name())
	}
	return slices.ContainsFunc(terms, func(term any) bool { return fits(t, workload, object(term.(map[string]any)), node) })
}

// fits reports whether a node with these labels has what one term wants.
func fits(t *testing.T, workload, term object, node map[string]string) bool {
	t.Helper()
	for _, e := range term.at("matchExpressions").([]any) {
		x := object(e.(map[string]any))
		value, set := node[x.at("key").(string)]
		values, _ := x.at("values").([]any)
		ok := false
		switch op := x.at("operator"); op {
		case "Exists":
			ok = set
		case "DoesNotExist":
			ok = !set
		case "NotIn":
			ok = !set || !slices.Contains(values, any(value))
		default:
			t.Fatalf("%s: operator %v", workload.name(), op)
		}
		if !ok {
			return false
		}
	}
	return true
}

// A node has the agent of exactly one DaemonSet, or of none if it runs the agent in another form. Controller and relay run on
// the control plane, or where a label says so that no kubelet can give its node.
func TestOneAgentPerNode(t *testing.T) {
	const other, worker, absent = "network.edgemesh.io/agent", "openyurt.io/is-edge-worker", "absent"
	for name, edge := range map[string]string{"least": "", "KubeEdge": "node-role.kubernetes.io/edge", "KubeEdge, everything": "site.example.org/edge"} {
		all := render(t, variants()[name]...)
		may := map[string]object{"node-restriction.kubernetes.io/edgemesh-controller": find(t, all, "Deployment", "edgemesh-controller"),
			"node-restriction.kubernetes.io/edgemesh-relay": find(t, render(t, variants()["relay"]...), "Deployment", "edgemesh-relay")}
		combine(map[string][]string{
			"node-role.kubernetes.io/edge": {absent, "", "true"},
			"site.example.org/edge":        {absent, "", "true"},
			other:                          {absent, "", "static-pod", "systemd", "daemonset"},
			worker:                         {absent, "true", "false"},
		}, absent, func(node map[string]string) {
			var want, got []string
			_, marked := node[edge]
			switch form := node[other]; {
			case form == "static-pod" || form == "systemd":
			case edge != "" && marked:
				want = []string{"edgemesh-agent-edge"}
			default:
				want = []string{"edgemesh-agent"}
			}
			node["kubernetes.io/os"] = "linux"
			for _, o := range all {
				if o.kind() == "DaemonSet" && matches(t, o, node) {
					got = append(got, o.name())
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: a node with %v has %v, want %v", name, node, got, want)
			}
			node["network.edgemesh.io/relay"] = "true" // a kubelet may say so of itself
			for label, workload := range may {
				for _, more := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", label, label + "-2"} {
					node := maps.Clone(node)
					if matches(t, workload, node) {
						t.Errorf("%s: %s may be on a node with %v", name, workload.name(), node)
					}
					node[more] = ""
					if allowed := more == label || more == "node-role.kubernetes.io/control-plane"; matches(t, workload, node) != allowed {
						t.Errorf("%s: %s may be on a node with %v: %v", name, workload.name(), node, !allowed)
					}
				}
			}
		})
	}
}

// combine calls f with each combination of the labels' values; absent leaves a label out.
func combine(values map[string][]string, absent string, f func(map[string]string)) {
	nodes := []map[string]string{{}}
	for key, list := range values {
		var next []map[string]string
		for _, n := range nodes {
			for _, v := range list {
				m := maps.Clone(n)
				if v != absent {
					m[key] = v
				}
				next = append(next, m)
			}
		}
		nodes = next
	}
	for _, n := range nodes {
		f(n)
	}
}

// Edges get no token, with which they would not start offline, but what proves which node they are; the controller knows by
// which CA.
func TestEdgesOfKubeEdge(t *testing.T) {
	for name, certificates := range map[string]string{"KubeEdge": "/etc/kubeedge/certs", "KubeEdge, everything": "/srv/edgecore/certs"} {
		all := render(t, variants()[name]...)
		o := find(t, all, "DaemonSet", "edgemesh-agent-edge")
		if o.at("spec", "template", "spec", "automountServiceAccountToken") != false {
			t.Errorf("%s: the edge's pod has a token", name)
		}
		p := podOf(t, o)
		if !slices.Contains(p.Containers[0].VolumeMounts, mount{"node-certificate", certificates, true}) {
			t.Errorf("%s: mounts %v", name, p.Containers[0].VolumeMounts)
		}
		for _, v := range p.Volumes {
			if h, _ := v["hostPath"].(map[string]any); v["name"] == "node-certificate" && h["path"] != certificates {
				t.Errorf("%s: volume %v", name, v)
			}
		}
		c := podOf(t, find(t, all, "Deployment", "edgemesh-controller")).Containers[0]
		if !slices.Contains(c.Args, "--enroll") || !slices.Contains(c.Args, "--node-ca=/etc/edgemesh-node-ca/kubeedge.crt") ||
			!slices.Contains(c.VolumeMounts, mount{"node-ca", "/etc/edgemesh-node-ca", true}) {
			t.Errorf("%s: the controller's arguments %v, mounts %v", name, c.Args, c.VolumeMounts)
		}
		ca := fmt.Sprint(find(t, all, "ConfigMap", "edgemesh-node-ca").at("data", "kubeedge.crt"))
		if name == "KubeEdge" && strings.TrimSpace(ca) != strings.TrimSpace(nodeCA) {
			t.Errorf("CA %q, want %q", ca, nodeCA)
		}
	}
}
