package kubeapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// A node cannot have the garbage collector delete its MeshNode, which would let it come back with another key; the
// collector is at work: an administrator can.
func TestPeerIDOutlivesTheCollector(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	must(t, c.StartControllers("garbage-collector-controller"))
	defer c.StopControllers()
	network(t, c, nil)
	token := filepath.Join(c.Dir, "owner-token")
	must(t, c.CreateNode("a"), c.CreateNode("b"),
		c.AgentToken("a", token, 3600), c.TokenKubeconfig("a-owner.conf", token, c.URL))
	cert, err := c.NodeCertificate("b", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("b-owner.conf", cert, c.URL))
	for _, who := range []as{login(t, c, "a", "a-owner.conf"), login(t, c, "b", "b-owner.conf")} {
		own, id := meshNodesPath+"/"+who.name, newPeerID(t)
		gone := strings.Replace(ownerJSON(who.name), `"x"`, `"5ca1ab1e-0000-4000-8000-000000000000"`, 1)
		who.wants(t,
			post("the own MeshNode", meshNodesPath, meshNodeJSON(who.name, id, "")),
			patch("an owner that does not exist", own, gone).
				refused(forbidden, "with the UID that the token names"),
			patch("another key", own, `{"spec":{"peerID":"`+newPeerID(t)+`"}}`).
				refused(forbidden, "rotate-from="+id))
		const block = "10-244-20-0-24"
		// An API server that was started lately may not know yet what the policy of blocks refers to.
		fair.Eventually(t, patience, who.name+" has a block", func() error {
			if code, says := who.do(t, http.MethodPost, podBlocksPath, podBlockJSON(block, "10.244.20.0/24", who.name)); code != http.StatusCreated {
				return fmt.Errorf("%d %s", code, says)
			}
			return nil
		})
		who.wants(t,
			patch("a block's owner that does not exist", podBlocksPath+"/"+block, gone).
				refused(forbidden, "with the UID that the token names"))
		must(t, c.Delete(podBlocksPath+"/"+block))

		// The control: what the node tried works for who may.
		var rubbish map[string]any
		must(t, json.Unmarshal([]byte(gone), &rubbish), c.Patch(own, rubbish))
		fair.Eventually(t, patience, "the collector deletes the MeshNode of "+who.name, fair.True(func() bool {
			return c.Do(http.MethodGet, own, nil, nil) != nil
		}))
	}
	// A token that names its Node's UID cannot create anything that the collector will delete, either.
	a := login(t, c, "a", "a-owner.conf")
	a.wants(t, post("a MeshNode of a Node that does not exist", meshNodesPath,
		strings.Replace(meshNodeJSON("a", newPeerID(t), ""), `"uid":"x"`, `"uid":"gone"`, 1)).
		refused(forbidden, "with the UID that the token names"))
}

// A banned node is out for agents that follow the API and for those that start without it, however often it comes back.
func TestBanned(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"),
		c.CreateMember("d", newPeerID(t), "10.244.4.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.4.0/24")
	ban := func(who ...string) error {
		return c.Patch(kubeapi.Group+"podnetworks/cluster", map[string]any{"spec": map[string]any{"banned": who}})
	}
	for _, wrong := range []string{"Shop_7", "12D3KooW", ""} {
		if err := ban("b", wrong); err == nil || !strings.Contains(err.Error(), "spec.banned[1]") {
			t.Errorf("%q: %v, want a refusal that names spec.banned[1]", wrong, err)
		}
	}
	must(t, ban("b", meshNode(t, c, "d").Spec.PeerID))
	a.sees("a=10.244.1.0/24")
	must(t, c.Delete("/api/v1/nodes/b"), c.Delete(meshNodesPath+"/b"))
	must(t, c.CreateMember("b", newPeerID(t), "10.244.2.0/24")) // with another key
	must(t, c.CreateMember("e", newPeerID(t), "10.244.5.0/24"))
	a.sees("a=10.244.1.0/24 e=10.244.5.0/24")

	// From the snapshot, without the API.
	a.stop()
	kubeconfig, server := a.cfg.Kubeconfig, a.cfg.Server
	a.cfg.Kubeconfig, a.cfg.Server = "", "http://127.0.0.1:1"
	a.start()
	a.sees("a=10.244.1.0/24 e=10.244.5.0/24")
	a.stop()
	a.cfg.Kubeconfig, a.cfg.Server = kubeconfig, server
	a.start()

	must(t, ban())
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.4.0/24 e=10.244.5.0/24")
}

// Only nodes with the label that administrators give are admitted; neither of a node's identities can give it, nor can
// whatever KubeEdge writes for an edge.
func TestAdmitLabel(t *testing.T) {
	const label = "node-restriction.kubernetes.io/mesh"
	t.Parallel()
	c := emptyCluster(t)
	ask := func(label string) error {
		return c.Patch(kubeapi.Group+"podnetworks/cluster", map[string]any{"spec": map[string]any{"admitLabel": label}})
	}
	give := func(node string, value any) error {
		return c.Patch(nodesPath+"/"+node, map[string]any{"metadata": map[string]any{"labels": map[string]any{label: value}}})
	}
	network(t, c, nil)
	for _, wrong := range []string{"mesh", "edgemesh.io/mesh=yes", "node-restriction.kubernetes.io/", label + "=a=b", ""} {
		if err := ask(wrong); err == nil || !strings.Contains(err.Error(), "spec.admitLabel") {
			t.Errorf("%q: %v, want a refusal that names spec.admitLabel", wrong, err)
		}
	}
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"),
		c.CreateMember("d", newPeerID(t), "10.244.4.0/24"), give("a", "yes"), give("b", "yes"))
	must(t, ask(label+"=yes"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24")

	cert, err := c.NodeCertificate("d", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("d-label.conf", cert, c.URL), c.ServiceAccountCertificate("kubeedge", "cloudcore"),
		c.Kubeconfig("cloudcore.conf", "cloudcore", c.URL))
	d, own := login(t, c, "d", "d-label.conf"), nodesPath+"/d"
	const labels = `{"metadata":{"labels":{"` + label + `":"yes"}}}`
	d.wants(t,
		patch("another label of the own Node", own, `{"metadata":{"labels":{"role":"edge"}}}`),
		patch("the label", own, labels).refused(forbidden, ""),
		patch("the label, with the status", own+"/status", labels).refused(forbidden, ""))
	_, err = c.Kubectl("create", "clusterrolebinding", "cloudcore-test", "--clusterrole=cluster-admin",
		"--serviceaccount=kubeedge:cloudcore")
	must(t, err)
	t.Cleanup(func() { must(t, c.Delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cloudcore-test")) })
	const node = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"` + label + `":"yes"}}}`
	cloudcore := login(t, c, "cloudcore", "cloudcore.conf")
	cloudcore.wants(t,
		patch("another label, by cloudcore", own, `{"metadata":{"labels":{"role":"shop"}}}`))
	if !c.Old() {
		cloudcore.wants(t,
			patch("the label, by cloudcore", own, labels).refused(forbidden, "may not give itself labels"),
			post("a Node with the label, by cloudcore", nodesPath, node).refused(forbidden, "may not give itself labels"))
	}
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24")

	must(t, give("d", "yes"), give("b", "no"))
	a.sees("a=10.244.1.0/24 d=10.244.4.0/24")
	must(t, ask(label))
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.4.0/24")
	must(t, give("b", nil))
	a.sees("a=10.244.1.0/24 d=10.244.4.0/24")

	// From the snapshot, without the API.
	a.stop()
	a.cfg.Kubeconfig, a.cfg.Server = "", "http://127.0.0.1:1"
	a.start()
	a.sees("a=10.244.1.0/24 d=10.244.4.0/24")
}

// A node that lacks the label says what an administrator has to do, and joins once that is done.
func TestAdmitLabelIsAwaited(t *testing.T) {
	const label = "node-restriction.kubernetes.io/mesh"
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, map[string]any{"admitLabel": label})
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	said, want := a.listens(), "kubectl label node a "+label+"="
	a.waits("it says "+want, func() bool { return strings.Contains(said.String(), want) })
	_, err := c.Kubectl("label", "node", "a", label+"=")
	must(t, err)
	a.start()
	a.sees("a=10.244.1.0/24")
}
