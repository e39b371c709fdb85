package kubeapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"edgemesh/test/fair"
)

// cloudcoreRights are those of KubeEdge's chart, v1.20.0, that reach our objects.
const cloudcoreRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cloudcore-test}
rules:
  - {apiGroups: [""], resources: [nodes, nodes/status], verbs: [get, list, watch, create, update, patch]}
  - {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cloudcore-test}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cloudcore-test}
subjects: [{kind: ServiceAccount, name: cloudcore, namespace: kubeedge}]
`

// definition is a CustomResourceDefinition of a group.
func definition(group string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.%[1]s"},
		"spec":{"group":"%[1]s","scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, group)
}

// KubeEdge's cloudcore registers the Node that an edge sends it, and writes what any process of an edge asks its MetaServer
// for. No edge gets another's block that way, nor any of its choice, and none changes what a MeshNode is. What the cluster
// assigns to the edge's Node stays.
func TestCloudcoreAssignsNothing(t *testing.T) {
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	t.Parallel()
	c := guarded(t, kubeEdgeCluster(t))
	_, err := c.KubectlStdin(cloudcoreRights, "apply", "-f", "-")
	t.Cleanup(func() {
		for _, kind := range []string{"clusterrolebindings", "clusterroles"} {
			must(t, c.Delete("/apis/rbac.authorization.k8s.io/v1/"+kind+"/cloudcore-test"))
		}
	})
	must(t, err, c.ServiceAccountCertificate("kubeedge", "cloudcore"), c.Kubeconfig("cloudcore.conf", "cloudcore", c.URL))
	network(t, c, nil)
	must(t, c.CreateMember("victim", newPeerID(t), "10.244.8.0/24"), c.CreateNode("bare"))
	edge := func(spec string) string {
		return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"edge","labels":{"node-role.kubernetes.io/edge":""}},"spec":` + spec + `}`
	}
	group := fmt.Sprintf("example-%d.org", time.Now().UnixNano()) // the API server may take minutes to delete it
	const choice = "may not choose its podCIDRs"
	who := login(t, c, "cloudcore", "cloudcore.conf")
	who.wants(t,
		post("an edge's Node with another's block", nodesPath, edge(`{"podCIDRs":["10.244.8.0/24"]}`)).refused(forbidden, choice),
		post("an edge's Node with a free block", nodesPath, edge(`{"podCIDR":"10.244.9.0/24"}`)).refused(forbidden, choice),
		patch("another's block for a Node without any", nodesPath+"/bare", `{"spec":{"podCIDR":"10.244.8.0/24","podCIDRs":["10.244.8.0/24"]}}`).
			refused(forbidden, choice),
		post("an edge's Node", nodesPath, edge(`{}`)),
		patch("its status", nodesPath+"/edge/status", conditionJSON("Ready", "True")),
		remove("our definition", crds+"/meshnodes.network.edgemesh.io").refused(forbidden, "an edge may not write"),
		patch("our definition", crds+"/podblocks.network.edgemesh.io", `{"metadata":{"labels":{"x":"y"}}}`).refused(forbidden, "an edge may not write"),
		post("another definition of ours", crds, definition("network.edgemesh.io")).refused(forbidden, "an edge may not write"),
		post("its own definition", crds, definition(group)),
		remove("its own definition", crds+"/things."+group))

	// The cluster assigns, and what it has assigned lets cloudcore write everything else.
	must(t, c.StartControllers("node-ipam-controller"))
	defer c.StopControllers()
	blocks := func() []string {
		var n struct {
			Spec struct {
				PodCIDRs []string `json:"podCIDRs"`
			} `json:"spec"`
		}
		must(t, c.Do(http.MethodGet, nodesPath+"/edge", nil, &n))
		return n.Spec.PodCIDRs
	}
	fair.Eventually(t, patience, "the edge has a block", fair.True(func() bool { return len(blocks()) == 1 }))
	assigned := blocks()
	who.wants(t, patch("its labels", nodesPath+"/edge", `{"metadata":{"labels":{"role":"shop"}}}`))
	if got := blocks(); !slices.Equal(got, assigned) || got[0] == "10.244.8.0/24" {
		t.Errorf("the edge has %v, had %v", got, assigned)
	}
	if _, err := c.Kubectl("get", "meshnode", "victim"); err != nil {
		t.Error(err)
	}
	if out, err := c.Kubectl("auth", "can-i", "create", "meshnodes.network.edgemesh.io", "--as", "system:serviceaccount:kubeedge:cloudcore"); err == nil {
		t.Errorf("cloudcore may create MeshNodes: %s", out)
	}
}
