package kubeapi_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/kubeapi"
)

// as is a user who sends requests to the API.
type as struct {
	name string
	url  string
	http *http.Client
	uid  string // of the Node with that name; requests say "x" for it
}

func login(t *testing.T, c *kubeapi.Cluster, name, kubeconfig string) as {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, kubeconfig))
	must(t, err)
	h, err := rest.HTTPClientFor(cfg)
	must(t, err)
	var node struct {
		Metadata api.Meta `json:"metadata"`
	}
	_ = c.Do(http.MethodGet, nodesPath+"/"+name, nil, &node) // some have none
	return as{name, c.URL, h, node.Metadata.UID}
}

// do returns the status code and what the server says.
func (a as) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	body = strings.ReplaceAll(body, `"uid":"x"`, `"uid":"`+cmp.Or(a.uid, "x")+`"`)
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

// ownerJSON is the patch that makes the Node the owner.
func ownerJSON(node string) string {
	return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":"x"}]}}`, node)
}

// ownedBy makes the Node of another name the owner in what meshNodeJSON or podBlockJSON
// made: what is refused then is not its owner.
func ownedBy(node, body string) string {
	return regexp.MustCompile(`("kind":"Node","name":)"[^"]*"`).ReplaceAllString(body, `${1}"`+node+`"`)
}

// request is one that the API server is to accept or refuse.
type request struct {
	what, method, path, body string
	code                     int
	says                     string // part of the message
}

// post, patch and remove are requests that are accepted, unless refused says otherwise.
func post(what, path, body string) request {
	return request{what: what, method: http.MethodPost, path: path, body: body, code: http.StatusCreated}
}

func patch(what, path, body string) request {
	return request{what: what, method: http.MethodPatch, path: path, body: body, code: http.StatusOK}
}

func remove(what, path string) request {
	return request{what: what, method: http.MethodDelete, path: path, code: http.StatusOK}
}

func (r request) refused(code int, says string) request {
	r.code, r.says = code, says
	return r
}

// wants sends the requests one after the other.
func (a as) wants(t *testing.T, requests ...request) {
	t.Helper()
	for _, r := range requests {
		code, says := a.do(t, r.method, r.path, r.body)
		if code != r.code || !strings.Contains(says, r.says) {
			t.Errorf("%s writes %s: %d %q, want %d with %q", a.name, r.what, code, says, r.code, r.says)
		}
	}
}

const (
	meshNodesPath = kubeapi.Group + "meshnodes"
	podBlocksPath = kubeapi.Group + "podblocks"
	networkPath   = kubeapi.Group + "podnetworks/cluster"
	nodesPath     = "/api/v1/nodes"
	rotation      = "network.edgemesh.io/rotate-from" // the annotation by which another key is allowed

	forbidden = http.StatusForbidden
	invalid   = http.StatusUnprocessableEntity
)

// meshNodeRequests are about MeshNodes; node's own has peer ID id in the end.
func meshNodeRequests(t *testing.T, node, id string) []request {
	own, other := meshNodesPath+"/"+node, meshNodesPath+"/other"
	consent := `{"annotations":{"` + rotation + `":"` + id + `"}}`
	ownerless := strings.Replace(meshNodeJSON(node, id, ""), `"ownerReferences"`, `"x"`, 1)
	oldKind := "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
	status := `{"status":{"agentVersion":"v9"}}`
	taken := `{"spec":{"peerID":"` + id + `"},
		"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"` + node + `","uid":"x"}]}}`
	return []request{
		post("a foreign MeshNode", meshNodesPath, ownedBy(node, meshNodeJSON("foreign", id, ""))).
			refused(forbidden, "may not write what is of node foreign"),
		post("a foreign MeshNode of a foreign Node", meshNodesPath, meshNodeJSON("foreign", id, "")).
			refused(forbidden, "may not write what is of node foreign"),
		post("a MeshNode that allows its own rotation", meshNodesPath, meshNodeJSON(node, id, ","+consent[1:len(consent)-1])).
			refused(forbidden, "only an administrator"),
		post("a MeshNode that cannot be deleted", meshNodesPath, meshNodeJSON(node, id, `,"finalizers":["x.example/y"]`)).
			refused(forbidden, "may not prevent the deletion of its objects"),
		post("a MeshNode without owner", meshNodesPath, ownerless).
			refused(forbidden, "owner must be"),
		post("a MeshNode with a wrong peer ID", meshNodesPath, meshNodeJSON(node, oldKind, "")).
			refused(invalid, "spec.peerID"),
		post("the own MeshNode", meshNodesPath, meshNodeJSON(node, id, "")),
		patch("another key", own, `{"spec":{"peerID":"`+newPeerID(t)+`"}}`).
			refused(forbidden, "rotate-from="+id),
		patch("its own consent to another key", own, `{"metadata":`+consent+`}`).
			refused(forbidden, "only an administrator"),
		patch("another owner", own, `{"metadata":{"ownerReferences":[]}}`).
			refused(forbidden, "owner must be"),
		patch("an owner that does not exist", own, strings.Replace(ownerJSON(node), `"x"`, `"gone"`, 1)).
			refused(forbidden, "with the UID that the token names"),
		patch("the same owner", own, ownerJSON(node)),
		patch("the own status", own+"/status", status),
		patch("a foreign status", other+"/status", status).
			refused(forbidden, "may not write what is of node other"),
		patch("a foreign peer ID", other, taken).
			refused(forbidden, "may not write what is of node other"),
		remove("to delete the own MeshNode", own).
			refused(forbidden, "cannot delete resource"),
		remove("to delete a foreign MeshNode", other).
			refused(forbidden, "cannot delete resource"),
	}
}

// blockRequests are about PodBlocks. node gets a block of each family, of that number, and
// gives the IPv4 one back.
func blockRequests(node string, number int) []request {
	name4, cidr4 := fmt.Sprintf("10-244-%d-0-24", number), fmt.Sprintf("10.244.%d.0/24", number)
	name6, cidr6 := ownBlock6(number), fmt.Sprintf("fd00:10:244:%d::/64", number)
	long6 := fmt.Sprintf("fd00:10:244:%d:0::/64", number)
	own := podBlocksPath + "/" + name4
	return []request{
		post("an own block", podBlocksPath, podBlockJSON(name4, cidr4, node)),
		post("an own IPv6 block", podBlocksPath, podBlockJSON(name6, cidr6, node)),
		post("the same block again", podBlocksPath, podBlockJSON(name4, cidr4, node)).
			refused(http.StatusConflict, ""),
		post("a block for another node", podBlocksPath, ownedBy(node, podBlockJSON("10-244-9-0-24", "10.244.9.0/24", "other"))).
			refused(forbidden, "may not write what is of node other"),
		post("a block that is not aligned", podBlocksPath, podBlockJSON("10-244-9-5-24", "10.244.9.5/24", node)).
			refused(invalid, "aligned"),
		post("an overlap under another name", podBlocksPath, podBlockJSON("mine", cidr4, node)).
			refused(invalid, "the name is the CIDR"),
		post("an overlap written another way", podBlocksPath,
			podBlockJSON(fmt.Sprintf("fd00-10-244-%d-0---64", number), long6, node)).
			refused(invalid, "canonical"),
		post("a larger block", podBlocksPath, podBlockJSON("10-244-8-0-23", "10.244.8.0/23", node)).
			refused(invalid, "block size"),
		post("a smaller block", podBlocksPath, podBlockJSON("10-244-8-0-25", "10.244.8.0/25", node)).
			refused(invalid, "block size"),
		post("a larger IPv6 block", podBlocksPath, podBlockJSON("fd00-10-244-8---63", "fd00:10:244:8::/63", node)).
			refused(invalid, "block size"),
		post("a block outside the network", podBlocksPath, podBlockJSON("10-245-1-0-24", "10.245.1.0/24", node)).
			refused(invalid, "outside the podCIDRs"),
		patch("to move a block", own, `{"spec":{"nodeName":"other"}}`).
			refused(invalid, "a claim cannot be changed"),
		patch("to change a block", own, `{"spec":{"cidr":"10.244.77.0/24"}}`).
			refused(invalid, "a claim cannot be changed"),
		remove("to give its block back", own),
	}
}

// ownBlock6 is the name of the IPv6 block of that number.
func ownBlock6(number int) string { return fmt.Sprintf("fd00-10-244-%d---64", number) }

func conditionJSON(kind, status string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test","message":"test"}]}}`, kind, status)
}

// nodeRequests are about Nodes and what is the cluster's.
func nodeRequests(node string) []request {
	return []request{
		patch("the own condition", nodesPath+"/"+node+"/status", conditionJSON("NetworkUnavailable", "False")),
		patch("a foreign condition", nodesPath+"/other/status", conditionJSON("NetworkUnavailable", "False")).
			refused(forbidden, ""),
		patch("a relay", kubeapi.Group+"podnetworks/cluster", `{"spec":{"relays":[]}}`).
			refused(forbidden, ""),
		remove("to delete a Node", nodesPath+"/other").
			refused(forbidden, ""),
	}
}

// serviceAccountRequests are what a kubelet may do, and an agent with a token may not.
func serviceAccountRequests(node string) []request {
	own := nodesPath + "/" + node
	return []request{
		patch("another condition of the own Node", own+"/status", conditionJSON("Ready", "True")).
			refused(forbidden, "no condition of Nodes but"),
		patch("the own Node's capacity", own+"/status", `{"status":{"capacity":{"cpu":"99"}}}`).
			refused(forbidden, "nothing in a Node's status but"),
		patch("the own Node's labels", own+"/status", `{"metadata":{"labels":{"x":"y"}}}`).
			refused(forbidden, "may not write the metadata of Nodes"),
		patch("the own Node's taints", own, `{"spec":{"taints":[]}}`).
			refused(forbidden, ""),
	}
}

// kubeletRequests are what a kubelet could do, if nobody minded.
func kubeletRequests(node string) []request {
	own := nodesPath + "/" + node
	const podCIDRs = `"spec":{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"]}`
	return []request{
		patch("its own podCIDRs", own, "{"+podCIDRs+"}").
			refused(forbidden, "may not choose its podCIDRs"),
		patch("the own Node's labels", own, `{"metadata":{"labels":{"x":"y"}}}`),
		remove("to delete its Node", own).
			refused(forbidden, ""),
		post("a Node with podCIDRs", nodesPath, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+node+`"},`+podCIDRs+"}").
			refused(forbidden, "may not choose its podCIDRs"),
	}
}

// Both identities of an agent may write what is of their own node, and nothing else.
func TestNodesWriteOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/16", "fd00:10:244::/48"}})
	token := filepath.Join(c.Dir, "token")
	must(t, c.CreateNode("a"), c.CreateNode("b"), c.CreateNode("other"), c.CreateMeshNode("other", newPeerID(t)),
		c.AgentToken("a", token, 3600), c.TokenKubeconfig("a-token.conf", token, c.URL))
	cert, err := c.NodeCertificate("b", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("b-cert.conf", cert, c.URL))

	// Another node may be given another key: it is that node that may write it.
	allow := map[string]any{rotation: meshNode(t, c, "other").Spec.PeerID}
	must(t, c.Patch(meshNodesPath+"/other", map[string]any{"metadata": map[string]any{"annotations": allow}}))

	id := newPeerID(t)
	a, b := login(t, c, "a", "a-token.conf"), login(t, c, "b", "b-cert.conf")
	for i, who := range []as{a, b} {
		who.wants(t, meshNodeRequests(t, who.name, id)...)
		blocks := blockRequests(who.name, i+1)
		if c.Loose() { // agents ignore these (internal/membership/kube TestResolve, TestSplitBlocks)
			blocks = slices.DeleteFunc(blocks, func(r request) bool {
				return strings.Contains(r.what, "not aligned") || strings.Contains(r.what, "another way") || strings.Contains(r.what, "outside")
			})
		}
		who.wants(t, blocks...)
		who.wants(t, nodeRequests(who.name)...)
		must(t, c.Delete(podBlocksPath+"/"+ownBlock6(i+1)))
	}
	a.wants(t, serviceAccountRequests(a.name)...)
	b.wants(t, kubeletRequests(b.name)...)
}

// A token that names no node, and a relay's, read MeshNodes and write none.
func TestTokensWithoutANode(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	network(t, c, nil)
	unbound, relay := filepath.Join(c.Dir, "unbound"), filepath.Join(c.Dir, "relay-token")
	out, err := c.Kubectl("create", "token", "edgemesh-agent", "-n", kubeapi.Namespace)
	must(t, err, os.WriteFile(unbound, []byte(strings.TrimSpace(out)), 0o600), c.RelayToken(relay),
		c.TokenKubeconfig("unbound.conf", unbound, c.URL), c.TokenKubeconfig("relay.conf", relay, c.URL))
	for _, who := range []as{login(t, c, "unbound", "unbound.conf"), login(t, c, "relay", "relay.conf")} {
		if code, _ := who.do(t, "GET", meshNodesPath, ""); code != http.StatusOK {
			t.Errorf("%s: list of meshnodes: %d", who.name, code)
		}
		who.wants(t, post("a MeshNode", meshNodesPath, meshNodeJSON("unbound", newPeerID(t), "")).refused(forbidden, ""))
	}
}

// Whoever is in the group system:nodes has the agents' role; without a node's name, or
// a token that names one, it is of no use.
func TestNodesGroupWithoutANode(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	network(t, c, nil)
	must(t, c.CreateNode("a"), c.CreateMeshNode("a", newPeerID(t)), c.GroupCertificate("imposter"),
		c.Kubeconfig("imposter.conf", "imposter", c.URL))
	who := login(t, c, "imposter", "imposter.conf")
	who.wants(t,
		post("a MeshNode", meshNodesPath, meshNodeJSON("imposter", newPeerID(t), "")).
			refused(forbidden, "names no node"),
		patch("a MeshNode's labels", meshNodesPath+"/a", `{"metadata":{"labels":{"x":"y"}}}`).
			refused(forbidden, "names no node"),
		patch("a MeshNode's key", meshNodesPath+"/a", `{"spec":{"peerID":"`+newPeerID(t)+`"}}`).
			refused(forbidden, "denied "), // two policies do, and either is told
		patch("a MeshNode's status", meshNodesPath+"/a/status", `{"status":{"agentVersion":"v9"}}`).
			refused(forbidden, "names no node"),
		post("a block", podBlocksPath, podBlockJSON("10-244-9-0-24", "10.244.9.0/24", "a")).
			refused(forbidden, "names no node"),
		patch("a Node's condition", nodesPath+"/a/status", conditionJSON("NetworkUnavailable", "False")).
			refused(forbidden, "may not write the status of node a"))
	if code, says := who.do(t, "GET", meshNodesPath, ""); code != http.StatusOK {
		t.Errorf("its role does not reach it, so that nothing was tried: %d %s", code, says)
	}
}

// A rotation is allowed once, by an administrator.
func TestRotation(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
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
	t.Parallel()
	c := emptyCluster(t)
	good := "/ip4/5.5.5.5/tcp/4001/p2p/" + newPeerID(t)
	for name, x := range map[string]struct {
		spec map[string]any
		says string
	}{
		"no range":          {map[string]any{"podCIDRs": []string{}}, "at least 1"},
		"host bits":         {map[string]any{"podCIDRs": []string{"10.244.1.0/16"}}, "canonical"},
		"not a CIDR":        {map[string]any{"podCIDRs": []string{"10.244.0.0"}}, "must be of type cidr"},
		"overlap":           {map[string]any{"podCIDRs": []string{"10.244.0.0/16", "10.0.0.0/8"}}, "overlap"},
		"twice":             {map[string]any{"podCIDRs": []string{"10.244.0.0/16", "10.244.0.0/16"}}, "overlap"},
		"too large":         {map[string]any{"podCIDRs": []string{"0.0.0.0/0"}}, "at least /8"},
		"less than a block": {map[string]any{"podCIDRs": []string{"10.244.0.0/25"}}, "smaller than one block"},
		"wan inside": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"wanCIDRs": []string{"10.0.0.0/8"},
		}, "inside itself"},
		"wan not canonical": {map[string]any{
			"podCIDRs": []string{"fd00::/48"},
			"wanCIDRs": []string{"fd01:0::/48"},
		}, "a CIDR in canonical form"},
		"LAN public": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"lan":      map[string]any{"trusted": []string{"8.8.8.0/24"}},
		}, "not inside a private range"},
		"LAN of a provider": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"lan":      map[string]any{"trusted": []string{"2001::/16"}},
		}, "nor a site's network"},
		"less than an IPv6 block": {map[string]any{"podCIDRs": []string{"fd00::/72"}}, "smaller than one block"},
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
		"host access": {map[string]any{
			"podCIDRs":   []string{"10.244.0.0/16"},
			"hostAccess": "some",
		}, "Unsupported value"},
		"host port": {map[string]any{
			"podCIDRs":  []string{"10.244.0.0/16"},
			"hostPorts": []string{"53"},
		}, "hostPorts[0]"},
		"pods denied": {map[string]any{
			"podCIDRs":     []string{"10.244.0.0/16"},
			"podDenyCIDRs": []string{"10.244.7.0/24"},
		}, "said by NetworkPolicy"},
		"relay without ID": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"relays":   []string{"/ip4/5.5.5.5/tcp/4001"},
		}, "relays[0]"},
		"relay by circuit": {map[string]any{
			"podCIDRs": []string{"10.244.0.0/16"},
			"relays":   []string{good + "/p2p-circuit"},
		}, "relays[0]"},
	} {
		err := c.CreateNetwork(x.spec)
		if err == nil && c.Loose() { // the agents refuse it
			var n api.PodNetwork
			must(t, c.Do(http.MethodGet, networkPath, nil, &n), c.Delete(networkPath))
			_, err = kube.ReadNetwork(&n)
		}
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want a refusal with %q", name, err, x.says)
		}
	}
	must(t, c.CreateNetwork(map[string]any{"podCIDRs": []string{"10.244.0.0/16", "fd00::/48"}, "relays": []string{good},
		"lan":      map[string]any{"trusted": []string{"192.168.0.0/16", "2001:db8:7::/48"}},
		"wanCIDRs": []string{"172.20.0.0/16", "fd01::/48", "100.64.0.0/10"}, "hostAccess": "nodes",
		"hostPorts": []string{"53/udp", "65535/tcp"}, "podDenyCIDRs": []string{"169.254.169.254/32", "10.0.0.0/8", "fc00::/7"}}))
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

// schemas are those of the API server's core group, as far as values are made of them.
type schemas map[string]property

type property struct {
	Type, Format                string
	Ref                         string `json:"$ref"`
	AllOf                       []property
	Items, AdditionalProperties *property
	Properties                  map[string]property
}

// value is one that fits p, with all fields that it may have; depth bounds it.
func (s schemas) value(p property, depth int) any {
	for _, r := range append(p.AllOf, p) {
		if name, ok := strings.CutPrefix(r.Ref, "#/components/schemas/"); ok && strings.HasSuffix(name, "resource.Quantity") {
			return "7"
		} else if ok {
			return s.value(s[name], depth)
		}
	}
	switch {
	case p.Format == "date-time":
		return "2026-01-02T03:04:05Z"
	case p.Type == "string":
		return "MyFeature"
	case p.Type == "integer" || p.Type == "number":
		return 7
	case p.Type == "boolean":
		return true
	case p.Type == "array" && p.Items != nil:
		return []any{s.value(*p.Items, depth)}
	case p.AdditionalProperties != nil:
		return map[string]any{"example.org/x": s.value(*p.AdditionalProperties, depth)}
	}
	out := map[string]any{}
	for name, field := range p.Properties {
		if depth > 0 {
			out[name] = s.value(field, depth-1)
		}
	}
	return out
}

// An agent's token writes no field of its Node's status but the condition, of all fields that this version of Kubernetes has,
// also those that the policy's author did not know.
func TestEveryFieldOfNodeStatus(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	token := filepath.Join(c.Dir, "fields")
	must(t, c.CreateNode("a"), c.AgentToken("a", token, 3600), c.TokenKubeconfig("fields.conf", token, c.URL))
	var doc struct{ Components struct{ Schemas schemas } }
	must(t, c.Do(http.MethodGet, "/openapi/v3/api/v1", nil, &doc))
	all := doc.Components.Schemas
	fields := all["io.k8s.api.core.v1.NodeStatus"].Properties
	if len(fields) < 11 {
		t.Fatalf("NodeStatus has the fields %v", fields)
	}
	agent, status := login(t, c, "a", "fields.conf"), nodesPath+"/a/status"
	stored := func() string {
		t.Helper()
		var n struct{ Status json.RawMessage }
		must(t, c.Do(http.MethodGet, nodesPath+"/a", nil, &n))
		return string(n.Status)
	}
	refused := 0
	for name, field := range fields {
		body, err := json.Marshal(map[string]any{"status": map[string]any{name: all.value(field, 3)}})
		must(t, err)
		was := stored()
		code, says := agent.do(t, http.MethodPatch, status, string(body))
		switch {
		case code == forbidden && strings.Contains(says, "agents may write no"):
			refused++
		case code == http.StatusOK && stored() == was: // of a feature that is off: the API server drops it
			t.Logf("%s is dropped by the API server", name)
		default:
			t.Errorf("%s: %d %s", body, code, says)
		}
	}
	if refused < 9 {
		t.Errorf("%d of %d fields are refused", refused, len(fields))
	}
	// What is there is not taken away either.
	must(t, c.Patch(status, map[string]any{"status": map[string]any{"capacity": map[string]string{"cpu": "4"}}}))
	agent.wants(t, patch("capacity away", status, `{"status":{"capacity":null}}`).refused(forbidden, "agents may write nothing"),
		patch("the condition", status, conditionJSON("NetworkUnavailable", "False")))
}
