package kubeapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"edgemesh/test/kubeapi"
)

// as is somebody who sends requests to the API.
type as struct {
	name string
	url  string
	http *http.Client
}

func login(t *testing.T, c *kubeapi.Cluster, name, kubeconfig string) as {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, kubeconfig))
	must(t, err)
	h, err := rest.HTTPClientFor(cfg)
	must(t, err)
	return as{name, c.URL, h}
}

// do returns the status code and what the server says.
func (a as) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, a.url+path, bytes.NewReader([]byte(body)))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	switch {
	case method == http.MethodPatch && strings.HasPrefix(path, "/api/v1/nodes"):
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := a.http.Do(req)
	must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	var st struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(data, &st)
	return resp.StatusCode, st.Message
}

func meshNodeJSON(node, peerID, more string) string {
	return fmt.Sprintf(`{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"MeshNode","metadata":{"name":%q,
		"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":"x"}]%s},"spec":{"peerID":%q}}`, node, node, more, peerID)
}

func podBlockJSON(name, cidr, node string) string {
	return fmt.Sprintf(`{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"PodBlock","metadata":{"name":%q,
		"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":"x"}]},"spec":{"cidr":%q,"nodeName":%q}}`, name, node, cidr, node)
}

// ownedBy makes the Node of another name the owner in what meshNodeJSON or podBlockJSON
// made: what is refused then is not its owner.
func ownedBy(node, body string) string {
	return regexp.MustCompile(`("kind":"Node","name":)"[^"]*"`).ReplaceAllString(body, `${1}"`+node+`"`)
}

// Both identities of an agent may write what is of their own node, and nothing else.
func TestNodesWriteOnlyTheirOwn(t *testing.T) {
	c := emptyCluster(t)
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/16", "fd00:10:244::/48"}})
	token := filepath.Join(c.Dir, "token")
	must(t, c.CreateNode("a"), c.CreateNode("b"), c.CreateNode("other"), c.CreateMeshNode("other", newPeerID(t)),
		c.AgentToken("a", token, 3600), c.TokenKubeconfig("a-token.conf", token, c.URL))
	cert, err := c.NodeCertificate("b", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("b-cert.conf", cert, c.URL))
	unbound := filepath.Join(c.Dir, "unbound")
	out, err := c.Kubectl("create", "token", "edgemesh-agent", "-n", kubeapi.Namespace)
	must(t, err, os.WriteFile(unbound, []byte(strings.TrimSpace(out)), 0o600),
		c.TokenKubeconfig("unbound.conf", unbound, c.URL))
	relayToken := filepath.Join(c.Dir, "relay-token")
	must(t, c.RelayToken(relayToken), c.TokenKubeconfig("relay.conf", relayToken, c.URL))

	mesh, blocks := kubeapi.Group+"meshnodes", kubeapi.Group+"podblocks"
	id := newPeerID(t)
	// Another node may be given another key: it is that node that may write it.
	must(t, c.Patch(mesh+"/other", map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		"network.edgemesh.io/rotate-from": meshNode(t, c, "other").Spec.PeerID}}}))
	type try struct {
		what, method, path, body string
		code                     int
		says                     string // part of the message
	}
	for i, who := range []as{login(t, c, "a", "a-token.conf"), login(t, c, "b", "b-cert.conf")} {
		n, octet := who.name, fmt.Sprint(i+1)
		own := mesh + "/" + n
		condition := func(kind, status string) string {
			return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test","message":"test"}]}}`,
				kind, status)
		}
		tries := []try{
			{"a foreign MeshNode", "POST", mesh, ownedBy(n, meshNodeJSON("foreign", id, "")), 403, "may not write what is of node foreign"},
			{"a foreign MeshNode of a foreign Node", "POST", mesh, meshNodeJSON("foreign", id, ""), 403, "may not write what is of node foreign"},
			{"a MeshNode that allows its own rotation", "POST", mesh,
				meshNodeJSON(n, id, `,"annotations":{"network.edgemesh.io/rotate-from":"`+id+`"}`), 403, "only an administrator"},
			{"a MeshNode that cannot be deleted", "POST", mesh, meshNodeJSON(n, id, `,"finalizers":["x.example/y"]`), 403, "being deleted"},
			{"a MeshNode without owner", "POST", mesh, strings.Replace(meshNodeJSON(n, id, ""), `"ownerReferences"`, `"x"`, 1), 403, "owner must be"},
			{"a MeshNode with a wrong peer ID", "POST", mesh, meshNodeJSON(n, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", ""), 422, "spec.peerID"},
			{"the own MeshNode", "POST", mesh, meshNodeJSON(n, id, ""), 201, ""},
			{"another key", "PATCH", own, `{"spec":{"peerID":"` + newPeerID(t) + `"}}`, 403, "rotate-from=" + id},
			{"its own consent to another key", "PATCH", own, `{"metadata":{"annotations":{"network.edgemesh.io/rotate-from":"` + id + `"}}}`, 403, "only an administrator"},
			{"another owner", "PATCH", own, `{"metadata":{"ownerReferences":[]}}`, 403, "owner must be"},
			{"the own status", "PATCH", own + "/status", `{"status":{"agentVersion":"v9"}}`, 200, ""},
			{"a foreign status", "PATCH", mesh + "/other/status", `{"status":{"agentVersion":"v9"}}`, 403, "may not write what is of node other"},
			{"a foreign peer ID", "PATCH", mesh + "/other", `{"spec":{"peerID":"` + id + `"},"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"` + n + `","uid":"x"}]}}`,
				403, "may not write what is of node other"},
			{"to delete the own MeshNode", "DELETE", own, "", 403, "cannot delete resource"},
			{"to delete a foreign MeshNode", "DELETE", mesh + "/other", "", 403, "cannot delete resource"},

			{"an own block", "POST", blocks, podBlockJSON("10-244-"+octet+"-0-24", "10.244."+octet+".0/24", n), 201, ""},
			{"an own IPv6 block", "POST", blocks, podBlockJSON("fd00-10-244-"+octet+"---64", "fd00:10:244:"+octet+"::/64", n), 201, ""},
			{"the same block again", "POST", blocks, podBlockJSON("10-244-"+octet+"-0-24", "10.244."+octet+".0/24", n), 409, ""},
			{"a block for another node", "POST", blocks, ownedBy(n, podBlockJSON("10-244-9-0-24", "10.244.9.0/24", "other")), 403, "may not write what is of node other"},
			{"a block that is not aligned", "POST", blocks, podBlockJSON("10-244-9-5-24", "10.244.9.5/24", n), 422, "aligned"},
			{"an overlap under another name", "POST", blocks, podBlockJSON("mine", "10.244."+octet+".0/24", n), 422, "the name is the CIDR"},
			{"an overlap written another way", "POST", blocks, podBlockJSON("fd00-10-244-"+octet+"-0---64", "fd00:10:244:"+octet+":0::/64", n), 422, "canonical"},
			{"a larger block", "POST", blocks, podBlockJSON("10-244-8-0-23", "10.244.8.0/23", n), 422, "block size"},
			{"a smaller block", "POST", blocks, podBlockJSON("10-244-8-0-25", "10.244.8.0/25", n), 422, "block size"},
			{"a larger IPv6 block", "POST", blocks, podBlockJSON("fd00-10-244-8---63", "fd00:10:244:8::/63", n), 422, "block size"},
			{"a block outside the network", "POST", blocks, podBlockJSON("10-245-1-0-24", "10.245.1.0/24", n), 422, "outside the podCIDRs"},
			{"to move a block", "PATCH", blocks + "/10-244-" + octet + "-0-24", `{"spec":{"nodeName":"other"}}`, 422, "never changed"},
			{"to change a block", "PATCH", blocks + "/10-244-" + octet + "-0-24", `{"spec":{"cidr":"10.244.77.0/24"}}`, 422, "never changed"},
			{"to give its block back", "DELETE", blocks + "/10-244-" + octet + "-0-24", "", 200, ""},

			{"the own condition", "PATCH", "/api/v1/nodes/" + n + "/status", condition("NetworkUnavailable", "False"), 200, ""},
			{"a foreign condition", "PATCH", "/api/v1/nodes/other/status", condition("NetworkUnavailable", "False"), 403, ""},
			{"a relay", "PATCH", kubeapi.Group + "podnetworks/cluster", `{"spec":{"relays":[]}}`, 403, ""},
			{"to delete a Node", "DELETE", "/api/v1/nodes/other", "", 403, ""},
		}
		if i == 0 { // a kubelet may
			tries = append(tries,
				try{"another condition of the own Node", "PATCH", "/api/v1/nodes/" + n + "/status", condition("Ready", "True"), 403, "no condition of Nodes but"},
				try{"the own Node's capacity", "PATCH", "/api/v1/nodes/" + n + "/status", `{"status":{"capacity":{"cpu":"99"}}}`, 403, "nothing of a Node's status but"},
				try{"the own Node's labels", "PATCH", "/api/v1/nodes/" + n + "/status", `{"metadata":{"labels":{"x":"y"}}}`, 403, "no metadata"},
				try{"the own Node's taints", "PATCH", "/api/v1/nodes/" + n, `{"spec":{"taints":[]}}`, 403, ""})
		}
		if i == 1 { // a kubelet could, if nobody minded
			tries = append(tries,
				try{"its own podCIDRs", "PATCH", "/api/v1/nodes/" + n, `{"spec":{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"]}}`, 403, "does not choose"},
				try{"the own Node's labels", "PATCH", "/api/v1/nodes/" + n, `{"metadata":{"labels":{"x":"y"}}}`, 200, ""},
				try{"to delete its Node", "DELETE", "/api/v1/nodes/" + n, "", 403, ""},
				try{"a Node with podCIDRs", "POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + n + `"},"spec":{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"]}}`, 403, "does not choose"})
		}
		for _, x := range tries {
			code, says := who.do(t, x.method, x.path, x.body)
			if code != x.code || !strings.Contains(says, x.says) {
				t.Errorf("%s writes %s: %d %q, want %d with %q", n, x.what, code, says, x.code, x.says)
			}
		}
		must(t, c.Delete(blocks+"/fd00-10-244-"+octet+"---64"))
	}

	for _, who := range []as{login(t, c, "unbound", "unbound.conf"), login(t, c, "relay", "relay.conf")} {
		if code, _ := who.do(t, "GET", mesh, ""); code != 200 {
			t.Errorf("%s: list of meshnodes: %d", who.name, code)
		}
		if code, says := who.do(t, "POST", mesh, meshNodeJSON("unbound", id, "")); code != 403 {
			t.Errorf("%s: created a MeshNode: %d %s", who.name, code, says)
		}
	}
}

// Whoever is in the group system:nodes has the agents' role; without a node's name, or
// a token that names one, it is of no use.
func TestNodesGroupWithoutANode(t *testing.T) {
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a"), c.CreateMeshNode("a", newPeerID(t)), c.GroupCertificate("imposter"),
		c.Kubeconfig("imposter.conf", "imposter", c.URL))
	who := login(t, c, "imposter", "imposter.conf")
	mesh, blocks := kubeapi.Group+"meshnodes", kubeapi.Group+"podblocks"
	for _, x := range []struct{ method, path, body, says string }{
		{"POST", mesh, meshNodeJSON("imposter", newPeerID(t), ""), "names no node"},
		{"PATCH", mesh + "/a", `{"metadata":{"labels":{"x":"y"}}}`, "names no node"},
		{"PATCH", mesh + "/a", `{"spec":{"peerID":"` + newPeerID(t) + `"}}`, "denied request"}, // two policies do, and either is told
		{"PATCH", mesh + "/a/status", `{"status":{"agentVersion":"v9"}}`, "names no node"},
		{"POST", blocks, podBlockJSON("10-244-9-0-24", "10.244.9.0/24", "a"), "names no node"},
		{"PATCH", "/api/v1/nodes/a/status", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"x","message":"x"}]}}`,
			"may not write the status of node a"},
	} {
		if code, says := who.do(t, x.method, x.path, x.body); code != 403 || !strings.Contains(says, x.says) {
			t.Errorf("%s %s: %d %q, want 403 with %q", x.method, x.path, code, says, x.says)
		}
	}
	if code, says := who.do(t, "GET", mesh, ""); code != 200 {
		t.Errorf("its role does not reach it, so that nothing was tried: %d %s", code, says)
	}
}

// A rotation is allowed once, by somebody else.
func TestRotation(t *testing.T) {
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	old := a.cfg.PeerID
	a.stop()

	b := newAgent(t, "a", a.cfg.Kubeconfig) // the state directory was lost, and the key with it
	if err := b.tryStart(3 * time.Second); err == nil {
		t.Fatal("a node with another key came up")
	}
	if got := meshNode(t, c, "a").Spec.PeerID; got != string(old) {
		t.Fatalf("peer ID %s, want %s", got, old)
	}
	_, err := c.Kubectl("annotate", "meshnode", "a", "network.edgemesh.io/rotate-from="+string(old))
	must(t, err)
	b.start()
	if got := meshNode(t, c, "a").Spec.PeerID; got != string(b.cfg.PeerID) {
		t.Fatalf("peer ID %s, want %s", got, b.cfg.PeerID)
	}
	b.stop()
	if err := newAgent(t, "a", a.cfg.Kubeconfig).tryStart(3 * time.Second); err == nil {
		t.Fatal("consent to one rotation allowed two")
	}
}

// What the PodNetwork's schema refuses.
func TestNetworkSchema(t *testing.T) {
	c := emptyCluster(t)
	good := "/ip4/5.5.5.5/tcp/4001/p2p/" + newPeerID(t)
	for name, x := range map[string]struct {
		spec map[string]any
		says string
	}{
		"no range":          {map[string]any{"podCIDRs": []string{}}, "at least 1"},
		"host bits":         {map[string]any{"podCIDRs": []string{"10.244.1.0/16"}}, "canonical"},
		"not a CIDR":        {map[string]any{"podCIDRs": []string{"10.244.0.0"}}, "canonical"},
		"overlap":           {map[string]any{"podCIDRs": []string{"10.244.0.0/16", "10.0.0.0/8"}}, "overlap"},
		"twice":             {map[string]any{"podCIDRs": []string{"10.244.0.0/16", "10.244.0.0/16"}}, "overlap"},
		"too large":         {map[string]any{"podCIDRs": []string{"0.0.0.0/0"}}, "at least /8"},
		"less than a block": {map[string]any{"podCIDRs": []string{"10.244.0.0/25"}}, "smaller than one block"},
		"wan inside": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"wanCIDRs": []string{"10.0.0.0/8"},
		}, "inside itself"},
		"wan public": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"wanCIDRs": []string{"172.32.0.0/16"},
		}, "private range"},
		"link-local":        {map[string]any{"podCIDRs": []string{"169.254.0.0/16"}}, "cannot be routed to pods"},
		"around link-local": {map[string]any{"podCIDRs": []string{"169.0.0.0/8"}}, "cannot be routed to pods"},
		"loopback IPv6":     {map[string]any{"podCIDRs": []string{"::/16"}}, "cannot be routed to pods"},
		"encryption": {map[string]any{
			"podCIDRs":   []string{"10.244.0.0/16"},
			"encryption": "never",
		}, "Unsupported value"},
		"relay without ID": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"relays":   []string{"/ip4/5.5.5.5/tcp/4001"},
		}, "relays[0]"},
		"relay by circuit": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"relays":   []string{good + "/p2p-circuit"},
		}, "relays[0]"},
	} {
		if err := c.CreateNetwork(x.spec); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want a refusal with %q", name, err, x.says)
		}
	}
	must(t, c.CreateNetwork(map[string]any{"podCIDRs": []string{"10.244.0.0/16", "fd00::/48"}, "relays": []string{good},
		"wanCIDRs": []string{"172.20.0.0/16", "fd01::/48", "100.64.0.0/10"}}))
	if err := c.Patch(kubeapi.Group+"podnetworks/cluster",
		map[string]any{"spec": map[string]any{"blockSize": 25}}); err == nil ||
		!strings.Contains(err.Error(), "cannot be changed") {
		t.Errorf("blockSize changed: %v", err)
	}
	err := c.Do(http.MethodPost, kubeapi.Group+"podnetworks", map[string]any{
		"apiVersion": "network.edgemesh.io/v1alpha1",
		"kind":       "PodNetwork",
		"metadata":   map[string]any{"name": "second"},
		"spec":       map[string]any{"podCIDRs": []string{"10.244.0.0/16"}},
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "its name is cluster") {
		t.Errorf("a second PodNetwork: %v", err)
	}
}
