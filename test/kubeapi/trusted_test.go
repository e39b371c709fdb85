package kubeapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// placed is where a pod of a Deployment of the manifests is: its node, or why it has none.
func placed(t *testing.T, c *kubeapi.Cluster, pod string) (node, why string) {
	t.Helper()
	var p struct {
		Spec   struct{ NodeName string }
		Status struct {
			Conditions []struct{ Type, Status, Reason string }
		}
	}
	must(t, c.Do(http.MethodGet, podsPath+"/"+pod, nil, &p))
	for _, x := range p.Status.Conditions {
		if x.Type == "PodScheduled" && x.Status == "False" {
			why = x.Reason
		}
	}
	return p.Spec.NodeName, why
}

const podsPath = "/api/v1/namespaces/" + kubeapi.Namespace + "/pods"

// template is the pod template of a Deployment in one of the manifests.
func template(t *testing.T, c *kubeapi.Cluster, file, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Root, "manifests", file))
	must(t, err)
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var d struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct{ Template map[string]any }
		}
		if err := yaml.Unmarshal([]byte(doc), &d); err == nil && d.Kind == "Deployment" && d.Metadata.Name == name {
			return d.Spec.Template
		}
	}
	t.Fatalf("%s has no Deployment %s", file, name)
	return nil
}

// schedulable makes a Node that pods may run on.
func schedulable(t *testing.T, c *kubeapi.Cluster, name string, labels map[string]string) {
	t.Helper()
	all := map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
	maps.Copy(all, labels)
	must(t, c.Do(http.MethodPost, nodesPath, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "labels": all}}, nil))
	room := map[string]string{"cpu": "4", "memory": "4Gi", "pods": "100"}
	must(t, c.Patch(nodesPath+"/"+name+"/status", map[string]any{"status": map[string]any{"capacity": room, "allocatable": room,
		"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": time.Now().UTC().Format(time.RFC3339),
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}}}))
	// Not ready until a node controller looks at it, and none runs.
	must(t, c.Patch(nodesPath+"/"+name, map[string]any{"spec": map[string]any{"taints": nil}}))
}

// No pod of controller or relay lands on an edge, whatever labels its kubelet gives it, not even when no other node is left; it
// lands where an administrator says so. By the real scheduler.
func TestTrustedNodesOnly(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	schedulable(t, c, "cloud", map[string]string{"node-role.kubernetes.io/control-plane": "", "network.edgemesh.io/relay": "true"})
	schedulable(t, c, "edge", map[string]string{"node-role.kubernetes.io/master": ""})
	cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("edge-trusted.conf", cert, c.URL))
	label := func(key string) string { return `{"metadata":{"labels":{"` + key + `":"true"}}}` }
	login(t, c, "edge", "edge-trusted.conf").wants(t,
		patch("a label of its own", nodesPath+"/edge", label("network.edgemesh.io/relay")),
		patch("that it is the control plane", nodesPath+"/edge", label("node-role.kubernetes.io/control-plane")).refused(forbidden, ""),
		patch("that it may be a controller", nodesPath+"/edge", label("node-restriction.kubernetes.io/edgemesh-controller")).refused(forbidden, ""),
		patch("that it may be a relay", nodesPath+"/edge", label("node-restriction.kubernetes.io/edgemesh-relay")).refused(forbidden, ""))

	must(t, c.StartScheduler())
	t.Cleanup(c.StopScheduler)
	files := map[string]string{"edgemesh-controller": "edgemesh.yaml", "edgemesh-relay": "edgemesh-relay.yaml"}
	run := func(pod, deployment string) {
		t.Helper()
		p := template(t, c, files[deployment], deployment)
		p["apiVersion"], p["kind"] = "v1", "Pod"
		p["metadata"].(map[string]any)["name"] = pod
		must(t, c.Do(http.MethodPost, podsPath, p, nil))
	}
	on := func(pod, node string) {
		t.Helper()
		var got, why string
		fair.Eventually(t, patience, pod+" is placed", fair.True(func() bool { got, why = placed(t, c, pod); return got != "" || why != "" && node == "" }))
		if got != node {
			t.Errorf("%s is on %q (%s), want %q", pod, got, why, node)
		}
	}
	run("controller-1", "edgemesh-controller")
	run("controller-2", "edgemesh-controller")
	on("controller-1", "cloud")
	on("controller-2", "cloud")
	must(t, c.Delete(nodesPath+"/cloud"))
	for _, deployment := range []string{"edgemesh-controller", "edgemesh-relay"} {
		run(deployment+"-3", deployment)
		on(deployment+"-3", "")
		schedulable(t, c, "chosen-for-"+deployment, map[string]string{"node-restriction.kubernetes.io/" + deployment: "", "network.edgemesh.io/relay": "true"})
		fair.Eventually(t, patience, "an administrator's node is taken", fair.True(func() bool { node, _ := placed(t, c, deployment+"-3"); return node == "chosen-for-"+deployment }))
	}
}

// Whoever has the controller's token cannot move a block between members: agents read the Node before they believe that. What
// the Node says, too, counts.
func TestForgedNodeRecords(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"), c.CreateMember("d", newPeerID(t), "10.244.3.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	log := a.listens()
	a.start()
	all := "a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.3.0/24"
	a.sees(all)
	s := startControllers(t, c, "one")
	log.from(t, "noderecords")
	s.kill("one") // it would repair the record
	states := a.seen()

	token := filepath.Join(c.Dir, "stolen-controller")
	must(t, c.ServiceAccountToken("edgemesh-controller", token), c.TokenKubeconfig("stolen.conf", token, c.URL))
	thief := login(t, c, "controller", "stolen.conf")
	thief.wants(t, patch("another's block into a record", recordsPath+"/b", `{"spec":{"podCIDRs":["10.244.3.0/24"]}}`),
		patch("a new block into a record", recordsPath+"/d", `{"spec":{"podCIDRs":["10.244.9.0/24"]}}`))
	fair.Eventually(t, patience, "the log names both nodes", fair.True(func() bool {
		text := log.String()
		return strings.Contains(text, "node=b record=[10.244.3.0/24] before=[10.244.2.0/24]") && strings.Contains(text, "node=d record=[10.244.9.0/24] before=[10.244.3.0/24]")
	}))
	if a.seen() != states || a.members() != all {
		t.Errorf("forged records count: %s", a.members())
	}

	must(t, c.Delete(nodesPath+"/b"), c.CreateNode("b", "10.244.12.0/24"))
	var now api.Node
	must(t, c.Do(http.MethodGet, nodesPath+"/b", nil, &now))
	spec, err := json.Marshal(now.RecordSpec())
	must(t, err)
	thief.wants(t, patch("the truth", recordsPath+"/b", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"b","uid":%q}]},"spec":%s}`, now.Meta.UID, spec)))
	a.sees("a=10.244.1.0/24 b=10.244.12.0/24 d=10.244.3.0/24")
}
