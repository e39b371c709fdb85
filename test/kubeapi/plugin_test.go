package kubeapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kubectlplugin "edgemesh/agent/fleet"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// foreignKind gives the API a kind of another network plugin, as far as it shows
// here: neither Calico nor Cilium runs.
func foreignKind(t *testing.T, c *kubeapi.Cluster, group, version, plural, singular, kind string) (path string) {
	t.Helper()
	path = "/apis/" + group + "/" + version + "/" + plural
	t.Cleanup(func() {
		must(t, c.Delete(crds+"/"+plural+"."+group))
		fair.Eventually(t, patience, kind+" is gone", fair.True(func() bool { return c.Do(http.MethodGet, path, nil, nil) != nil }))
	})
	must(t, c.Do(http.MethodPost, crds, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group,
			"scope": "Cluster",
			"names": map[string]any{"plural": plural, "singular": singular, "kind": kind, "listKind": kind + "List"},
			"versions": []any{map[string]any{
				"name":    version,
				"served":  true,
				"storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type":                                 "object",
					"x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}, nil))
	fair.Eventually(t, patience, kind+" is served", fair.True(func() bool { return c.Do(http.MethodGet, path, nil, nil) == nil }))
	return path
}

// A node whose pods Calico or Cilium has is a member with the blocks that these gave
// it, for every agent and for the relays, with the rights of the manifests.
func TestBlocksOfOtherPlugins(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/16", "192.168.0.0/16"}})
	must(t, c.CreateNode("kept", "10.244.1.0/24"), c.CreateNode("own", "10.244.2.0/24"), c.CreateNode("bare"),
		c.Patch("/api/v1/nodes/kept", map[string]any{"metadata": map[string]any{"annotations": map[string]string{"projectcalico.org/IPv4Address": "10.0.0.5/24"}}}))
	kept, own, bare := tokenAgent(t, c, "kept", c.URL), certAgent(t, c, "own", c.URL), certAgent(t, c, "bare", c.URL)
	kept.cfg.Keep, bare.cfg.Keep = true, true
	kept.start()
	own.start()
	// There is neither Calico nor Cilium, as with Flannel.
	own.sees("kept=10.244.1.0/24 own=10.244.2.0/24")
	kept.sees("kept=10.244.1.0/24 own=10.244.2.0/24")
	if a := kept.source.Annotations(); a["projectcalico.org/IPv4Address"] == "" || len(a) != 1 {
		t.Errorf("annotations %v", a)
	}
	kept.stop()
	own.stop()

	affinities := foreignKind(t, c, "crd.projectcalico.org", "v1", "blockaffinities", "blockaffinity", "BlockAffinity")
	cilium := foreignKind(t, c, "cilium.io", "v2", "ciliumnodes", "ciliumnode", "CiliumNode")
	affinity := func(name, node, cidr string) {
		t.Helper()
		must(t, c.Do(http.MethodPost, affinities, map[string]any{
			"apiVersion": "crd.projectcalico.org/v1",
			"kind":       "BlockAffinity",
			"metadata":   map[string]any{"name": name},
			"spec":       map[string]any{"node": node, "cidr": cidr, "state": "confirmed", "deleted": "false"},
		}, nil))
	}
	affinity("kept-192-168-7-0-26", "kept", "192.168.7.0/26")
	affinity("own-192-168-9-0-26", "own", "192.168.9.0/26") // left over: the node's pods are ours by now
	must(t, c.Do(http.MethodPost, cilium, map[string]any{
		"apiVersion": "cilium.io/v2",
		"kind":       "CiliumNode",
		"metadata":   map[string]any{"name": "bare"},
		"spec":       map[string]any{"ipam": map[string]any{"podCIDRs": []string{"10.244.77.0/24"}}},
	}, nil))
	kept.start()
	own.start()
	bare.start()
	token := filepath.Join(c.Dir, "relay.token")
	must(t, c.RelayToken(token), c.TokenKubeconfig("relay.conf", token, c.URL))
	relay := newAgent(t, "", filepath.Join(c.Dir, "relay.conf"))
	relay.cfg.ReadOnly, relay.cfg.PeerID = true, ""
	relay.start()
	all := []*agent{kept, own, bare, relay}
	for _, a := range all {
		a.sees("bare=10.244.77.0/24 kept=192.168.7.0/26 own=10.244.2.0/24")
	}
	if b := podBlocks(t, c); len(b) > 0 {
		t.Errorf("a block was claimed that no plugin uses: %v", b)
	}
	fair.Eventually(t, patience, "the MeshNode says where its blocks are from", fair.True(func() bool {
		cond := api.FindCondition(meshNode(t, c, "bare").Status.Conditions, "BlockAllocated")
		return cond != nil && cond.Status == "True" && cond.Reason == "FromPlugin"
	}))
	// Calico gives a second block, and takes the first one back.
	affinity("kept-192-168-7-64-26", "kept", "192.168.7.64/26")
	for _, a := range all {
		a.sees("bare=10.244.77.0/24 kept=192.168.7.0/26 kept=192.168.7.64/26 own=10.244.2.0/24")
	}
	must(t, c.Delete(affinities+"/kept-192-168-7-0-26"))
	for _, a := range all {
		a.sees("bare=10.244.77.0/24 kept=192.168.7.64/26 own=10.244.2.0/24")
	}
	// The node moves to our plugin.
	kept.stop()
	kept.cfg.Keep = false
	kept.start()
	for _, a := range all {
		a.sees("bare=10.244.77.0/24 kept=10.244.1.0/24 own=10.244.2.0/24")
	}
	for _, a := range all {
		for _, name := range []string{"kept", "own", "bare"} {
			if a.blip(name) {
				t.Errorf("%s left the membership of %s for a moment", name, a.cfg.NodeName)
			}
		}
	}
}

// A kubelet may make a mirror pod with the agents' labels and an image of its choice, and the API server takes it; the kubectl
// plugin takes neither its image nor the pod.
func TestHostileMirrorPod(t *testing.T) {
	c := emptyCluster(t)
	must(t, c.CreateMember("edge", newPeerID(t), "10.244.1.0/24"), c.CreateMember("other", newPeerID(t), "10.244.2.0/24"))
	for _, name := range []string{"edge", "other"} {
		must(t, c.Patch(meshNodesPath+"/"+name+"/status", map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}}}))
	}
	labels := `{"app.kubernetes.io/name":"edgemesh","app.kubernetes.io/component":"agent"}`
	var set struct{ Metadata struct{ UID string } }
	const sets = "/apis/apps/v1/namespaces/" + kubeapi.Namespace + "/daemonsets"
	must(t, c.Delete(sets+"/edgemesh-agent"), c.Do(http.MethodPost, sets, json.RawMessage(`{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"edgemesh-agent","labels":`+labels+`},
		"spec":{"selector":{"matchLabels":`+labels+`},"template":{"metadata":{"labels":`+labels+`},"spec":{"containers":[{"name":"agent","image":"registry.test/agent:1"}]}}}}`), &set))
	t.Cleanup(func() {
		if err := errors.Join(c.Delete(sets+"/edgemesh-agent"), c.Delete("/api/v1/namespaces/edgemesh-connectivity")); err != nil {
			t.Error(err)
		}
	})
	cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("edge-mirror.conf", cert, c.URL))
	mirror := func(owner string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a-mirror","labels":` + labels + `,"annotations":{"kubernetes.io/config.mirror":"x"},"ownerReferences":[` + owner + `]},
			"spec":{"nodeName":"edge","containers":[{"name":"agent","image":"evil.test/agent:1"}]}}`
	}
	kubelet := login(t, c, "edge", "edge-mirror.conf")
	kubelet.wants(t,
		post("a pod of the DaemonSet's", podsPath, mirror(`{"apiVersion":"apps/v1","kind":"DaemonSet","name":"edgemesh-agent","controller":true,"uid":"`+set.Metadata.UID+`"}`)).refused(forbidden, ""),
		post("a mirror pod", podsPath, mirror(`{"apiVersion":"v1","kind":"Node","name":"edge","controller":true,"uid":"x"}`)),
		patch("that it runs", podsPath+"/a-mirror/status", `{"status":{"phase":"Running"}}`))

	t.Setenv("KUBECTL", filepath.Join(c.Bin, "kubectl"))
	run := func(args ...string) string {
		var out strings.Builder
		kubectlplugin.Execute(t.Context(), append([]string{"--kubeconfig", filepath.Join(c.Dir, "admin.conf"), "-n", kubeapi.Namespace}, args...), strings.NewReader(""), &out, &out)
		return out.String()
	}
	if out := run("ping", "edge", "other"); !strings.Contains(out, "edge: its agent's pod is a static one") {
		t.Errorf("exec into the mirror pod: %s", out)
	}
	test := func(args ...string) string {
		t.Helper()
		out := run(append([]string{"connectivity-test", "--wait", "1s"}, args...)...)
		images, err := c.Kubectl("get", "pods", "-n", "edgemesh-connectivity", "-o", "jsonpath={.items[*].spec.containers[*].image}")
		if err != nil || images == "" {
			t.Errorf("%v; the test made no pods: %s", err, out)
		}
		return images
	}
	// There is no pod of the DaemonSet's yet.
	if out := run("connectivity-test", "--wait", "1s"); !strings.Contains(out, "no agent runs as a DaemonSet's pod") {
		t.Errorf("connectivity-test: %s", out)
	}
	must(t, c.Do(http.MethodPost, podsPath, json.RawMessage(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b-agent","labels":`+labels+`,"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet",
		"name":"edgemesh-agent","controller":true,"uid":"`+set.Metadata.UID+`"}]},"spec":{"nodeName":"other","containers":[{"name":"agent","image":"registry.test/agent:1"}]}}`), nil),
		c.Patch(podsPath+"/b-agent/status", map[string]any{"status": map[string]any{"phase": "Running"}}))
	if images := test(); strings.Contains(images, "evil") || !strings.Contains(images, "registry.test/agent:1") {
		t.Errorf("images of the test's pods: %s", images)
	}
}
