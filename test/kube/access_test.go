package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

const meshAPI = "/apis/network.edgemesh.io/v1alpha1/"

// A node's token, the DaemonSet pod's or kubelet's own, writes nothing of another
// node's: the API server refuses.
func TestForeignObjects(t *testing.T) {
	c, _ := installed(t)
	if minor(t, c) < 30 {
		t.Skip("nothing guards the objects before Kubernetes 1.30")
	}
	byToken, err := c.API().As(c.Kubeconfig, agentToken(t, c, "edge-a1"))
	ok(t, err)
	byCertificate, err := c.AsNode("edge-a1")
	ok(t, err)
	for who, api := range map[string]*cluster.API{"service account": byToken, "kubelet": byCertificate} {
		t.Run(strings.ReplaceAll(who, " ", "-"), func(t *testing.T) { foreignObjects(t, c, api) })
	}
}

func foreignObjects(t *testing.T, c *cluster.Cluster, api *cluster.API) {
	const otherID = "12D3KooWAZd41w3aFjwNWsAMG8T89XBsZwtMENBHCQfurGcTfDSa"
	// All have the own Node as owner: what is refused is not that.
	var node corev1.Node
	ok(t, c.API().Get(t.Context(), "/api/v1/nodes/edge-a1", &node))
	object := func(kind, name string, spec map[string]any) any {
		return map[string]any{"apiVersion": "network.edgemesh.io/v1alpha1", "kind": kind, "spec": spec,
			"metadata": map[string]any{"name": name, "ownerReferences": []any{
				map[string]any{"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": node.UID}}}}
	}
	block := func(name, cidr, node string) any {
		return object("PodBlock", name, map[string]any{"cidr": cidr, "nodeName": node})
	}
	annotate := map[string]any{"metadata": map[string]any{"annotations": map[string]string{"e2e": "x"}}}
	status := map[string]any{"status": map[string]any{"agentVersion": "forged"}}
	another := map[string]any{"peerID": otherID}
	// An administrator allows edge-b1 another key: it is that node that may write it.
	rotation := "network.edgemesh.io/rotate-from"
	kubectl(t, "annotate", "meshnode", "edge-b1", rotation+"="+peerID(t, c, "edge-b1"))
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "annotate", "meshnode", "edge-b1",
			rotation+"-"); err != nil {
			t.Error(err)
		}
	})
	refused := 0
	const (
		foreign = "may not write what is of node "
		nodes   = meshAPI + "meshnodes"
		blocks  = meshAPI + "podblocks"
	)
	type attempt struct {
		what, method, path string
		body               any
		says               string // part of the refusal
	}
	patch := func(what, path string, body any, says string) attempt {
		return attempt{what, http.MethodPatch, path, body, says}
	}
	post := func(what, path string, body any, says string) attempt {
		return attempt{what, http.MethodPost, path, body, says}
	}
	noRelays := map[string]any{"spec": map[string]any{"relays": []string{}}}
	attempts := []attempt{
		patch("another node's peer ID", nodes+"/edge-b1", object("MeshNode", "edge-b1", another), foreign+"edge-b1"),
		patch("another node's MeshNode", nodes+"/edge-b1", annotate, foreign+"edge-b1"),
		patch("another node's status", nodes+"/edge-b1/status", status, foreign+"edge-b1"),
		patch("the own peer ID without a rotation", nodes+"/edge-a1", map[string]any{"spec": another}, "rotate-from="),
		patch("another node's Node status", "/api/v1/nodes/edge-b1/status", annotate, "edge-b1"),
		patch("the PodNetwork", meshAPI+"podnetworks/cluster", noRelays, "cannot patch resource"),
		post("a MeshNode for another node", nodes, object("MeshNode", "edge-a2", another), foreign+"edge-a2"),
		post("a block for another node", blocks, block("10-244-77-0-24", "10.244.77.0/24", "edge-b1"), foreign+"edge-b1"),
		post("a larger block", blocks, block("10-244-128-0-17", "10.244.128.0/17", "edge-a1"), "not of the block size"),
		post("a block under another one's name", blocks, block("10-244-78-0-24", "10.244.79.0/24", "edge-a1"), "the name is the CIDR"),
	}
	if minor(t, c) != 30 { // its policies cannot compare CIDRs
		attempts = append(attempts,
			post("a block outside of the range", blocks, block("10-99-7-0-24", "10.99.7.0/24", "edge-a1"), "outside the podCIDRs"))
	}
	for _, try := range attempts {
		err := api.Do(t.Context(), try.method, try.path+"?dryRun=All", try.body, nil)
		var status *cluster.StatusError
		switch {
		case err == nil:
			t.Errorf("%s: accepted", try.what)
		case !errors.As(err, &status) ||
			status.Code != http.StatusForbidden && status.Code != http.StatusUnprocessableEntity:
			t.Errorf("%s: %v, want a refusal", try.what, err)
		case !strings.Contains(status.Message, try.says):
			t.Errorf("%s is refused for another reason: %v, want %q", try.what, err, try.says)
		default:
			t.Logf("%s: %v", try.what, err)
			refused++
		}
	}
	// What it may: the refusals are not for want of every right.
	ok(t, api.Do(t.Context(), http.MethodPost, meshAPI+"podblocks?dryRun=All",
		block("10-244-77-0-24", "10.244.77.0/24", "edge-a1"), nil))
	ok(t, api.Do(t.Context(), http.MethodPatch, meshAPI+"meshnodes/edge-a1/status?dryRun=All", status, nil))
	figure(t, "%s: %d forbidden writes refused, the own block and MeshNode's status accepted", t.Name(), refused)
}

// agentToken is the token kubelet gave the agent's pod on a node.
func agentToken(t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	var list corev1.PodList
	ok(t, c.API().Get(t.Context(),
		"/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/component%3Dagent", &list))
	for _, p := range list.Items {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			out, err := c.On(t.Context(), node, "sh", "-c",
				"cat /var/lib/kubelet/pods/"+string(p.UID)+"/volumes/kubernetes.io~projected/*/token")
			ok(t, err)
			return strings.TrimSpace(out)
		}
	}
	t.Fatalf("no agent's pod on %s", node)
	return ""
}
