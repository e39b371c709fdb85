package kubeapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// meshNode reads a MeshNode as administrator.
func meshNode(t *testing.T, c *kubeapi.Cluster, name string) api.MeshNode {
	t.Helper()
	var m api.MeshNode
	must(t, c.Do(http.MethodGet, kubeapi.Group+"meshnodes/"+name, nil, &m))
	return m
}

// From an empty API to two members, one by each identity, and what is to be seen.
func TestJoin(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	relay := "/ip4/5.5.5.5/tcp/4001/p2p/" + newPeerID(t)
	network(t, c, map[string]any{"relays": []string{relay}, "encryption": "always"})
	must(t, c.CreateNode("cloud", "10.244.7.0/24"), c.CreateNode("edge"))

	cloud := tokenAgent(t, c, "cloud", c.URL)
	cloud.start()
	edge := certAgent(t, c, "edge", c.URL)
	edge.start()
	both := "cloud=10.244.7.0/24 edge=10.244.0.0/24"
	cloud.sees(both)
	edge.sees(both)
	if s := cloud.state; len(s.Relays) != 1 || s.Encryption != "always" {
		t.Errorf("state %+v: relays or encryption of the PodNetwork are missing", s)
	}

	fair.Eventually(t, patience, "the MeshNode is Ready", fair.True(func() bool {
		cond := api.FindCondition(meshNode(t, c, "edge").Status.Conditions, "Ready")
		return cond != nil && cond.Status == "True"
	}))
	m := meshNode(t, c, "edge")
	var n struct {
		Metadata api.Meta `json:"metadata"`
		Status   struct {
			Conditions []api.Condition `json:"conditions"`
		} `json:"status"`
	}
	must(t, c.Do(http.MethodGet, "/api/v1/nodes/edge", nil, &n))
	if len(m.Meta.OwnerReferences) != 1 || m.Meta.OwnerReferences[0].UID != n.Metadata.UID {
		t.Errorf("owner %+v, want Node %s", m.Meta.OwnerReferences, n.Metadata.UID)
	}
	if m.Meta.Annotations[api.ProofAnnotation] != "" {
		t.Error("a dry run left its annotation behind")
	}
	fair.Eventually(t, patience, "the Node's condition is False", fair.True(func() bool {
		must(t, c.Do(http.MethodGet, "/api/v1/nodes/edge", nil, &n))
		cond := api.FindCondition(n.Status.Conditions, "NetworkUnavailable")
		return cond != nil && cond.Status == "False" && cond.Reason == "EdgeMeshIsUp"
	}))
	fair.Eventually(t, patience, "the other Node's condition is False", fair.True(func() bool {
		must(t, c.Do(http.MethodGet, "/api/v1/nodes/cloud", nil, &n))
		cond := api.FindCondition(n.Status.Conditions, "NetworkUnavailable")
		return cond != nil && cond.Status == "False"
	}))

	out, err := c.Kubectl("get", "meshnodes", "-o", "wide")
	must(t, err)
	t.Log("\n" + out)
	if strings.ContainsAny(out, `["`) {
		t.Error("kubectl get meshnodes prints JSON")
	}
	for _, want := range []string{
		"edge", "10.244.0.0/24", "10.244.7.0/24", string(edge.cfg.PeerID), "v0.0.0-test", "True", "Claimed",
		"FromNode", "Serving",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl get meshnodes -o wide lacks %q", want)
		}
	}

	// Nothing is written when nothing changed: versions stay over a restart.
	version := meshNode(t, c, "edge").Meta.ResourceVersion
	edge.stop()
	edge.start()
	cloud.sees(both)
	must(t, c.CreateMember("third", newPeerID(t), "10.244.9.0/24"))
	edge.sees(both + " third=10.244.9.0/24")
	if v := meshNode(t, c, "edge").Meta.ResourceVersion; v != version {
		t.Errorf("MeshNode was written from %s to %s without need", version, v)
	}
	must(t, c.Delete("/api/v1/nodes/third"))
	edge.sees(both)
	cloud.sees(both)
}

// The MeshNode has the node's mesh addresses, as the agent says them, also after a restart that has not said any yet.
func TestMeshAddresses(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("cloud", "10.244.7.0/24"))
	cloud := tokenAgent(t, c, "cloud", c.URL)
	cloud.start()
	has := func(want ...string) {
		t.Helper()
		fair.Eventually(t, patience, fmt.Sprintf("the MeshNode has the addresses %v", want), fair.True(func() bool {
			return slices.Equal(meshNode(t, c, "cloud").Status.Addresses, want)
		}))
	}
	cloud.source.SetPlace(api.Place{Addresses: []string{"10.244.7.1", "fd00::7:1"}, NAT: "stable"})
	has("10.244.7.1", "fd00::7:1")
	cloud.source.SetRelay([]string{"/ip4/5.5.1.1/tcp/4470"}) // another word about the same status
	has("10.244.7.1", "fd00::7:1")
	cloud.source.SetPlace(api.Place{Addresses: []string{}})
	has()
	if c := api.FindCondition(meshNode(t, c, "cloud").Status.Conditions, api.NATType); c == nil || c.Reason != "Stable" {
		t.Errorf("the NAT: %+v", c)
	}
}

// A node that is a relay is used as one where the PodNetwork admits that.
func TestMemberIsRelay(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("cloud", "10.244.7.0/24"), c.CreateNode("edge", "10.244.8.0/24"))
	cloud, edge := tokenAgent(t, c, "cloud", c.URL), tokenAgent(t, c, "edge", c.URL)
	cloud.start()
	edge.start()
	edge.sees("cloud=10.244.7.0/24 edge=10.244.8.0/24")
	cloud.source.SetRelay([]string{"/ip4/5.5.1.1/tcp/4470", "/ip4/5.5.1.1/udp/4470/quic-v1"})
	fair.Eventually(t, patience, "the MeshNode has the addresses", fair.True(func() bool {
		return len(meshNode(t, c, "cloud").Status.RelayAddresses) == 2
	}))
	if n := len(edge.relays()); n != 0 {
		t.Errorf("%d relays without leave", n)
	}
	must(t, c.Patch(kubeapi.Group+"podnetworks/cluster", map[string]any{"spec": map[string]any{"memberRelays": true}}))
	fair.Eventually(t, patience, "the other node uses it", fair.True(func() bool {
		r := edge.relays()
		return len(r) == 1 && r[0].PeerID == cloud.cfg.PeerID && len(r[0].Addrs) == 2
	}))
	var many []string // as of a host with several uplinks, IPv6 and both transports
	for port := range 20 {
		many = append(many, fmt.Sprintf("/ip4/5.5.1.1/tcp/%d", port+1))
	}
	cloud.source.SetRelay(many)
	fair.Eventually(t, patience, "the MeshNode has as many as it takes", fair.True(func() bool {
		return slices.Equal(meshNode(t, c, "cloud").Status.RelayAddresses, many[:api.MaxRelayAddresses])
	}))
	cloud.source.SetRelay(nil)
	fair.Eventually(t, patience, "it is no longer a relay", fair.True(func() bool { return len(edge.relays()) == 0 }))
	err := c.Patch(kubeapi.Group+"meshnodes/cloud/status",
		map[string]any{"status": map[string]any{"relayAddresses": []string{"/ip4/5.5.1.1"}}})
	if err == nil || !strings.Contains(err.Error(), "relayAddresses[0]") {
		t.Errorf("an address without a port: %v", err)
	}
}
