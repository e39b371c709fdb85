package kubeapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// While no controller answers on Kubernetes 1.28 and 1.29, kubelets and administrators write what they have to, what is refused stays refused,
// members stay, a node that joins waits and says for what, and joins once a controller is back.
func TestWebhookIsDown(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	if !c.Old() {
		t.Skip("policies guard this API server (EDGEMESH_K8S_VERSION=v1.28.15 or EDGEMESH_K8S_CHART=v1.29.14 runs it)")
	}
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	cert, err := c.NodeCertificate("a", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("a-kubelet.conf", cert, c.URL))
	kubelet := login(t, c, "a", "a-kubelet.conf")

	c.StopGuard()
	node := nodesPath + "/a"
	kubelet.wants(t,
		patch("its heartbeat", node+"/status", conditionJSON("Ready", "True")),
		patch("its labels", node, `{"metadata":{"labels":{"x":"y"}}}`),
		patch("its podCIDRs", nodesPath+"/b", `{"spec":{"podCIDR":"10.244.0.0/16","podCIDRs":["10.244.0.0/16"]}}`).refused(forbidden, ""),
		patch("a label of administrators", node, `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`).refused(forbidden, ""),
		patch("its MeshNode", meshNodesPath+"/a", `{"metadata":{"annotations":{"`+api.ModeAnnotation+`":"keep"}}}`).refused(http.StatusInternalServerError, "failed calling webhook"))
	must(t, c.Patch(networkPath, map[string]any{"spec": map[string]any{"encryption": "always"}}),
		c.Delete(kubeapi.Group+"meshnodes/other"))
	b := tokenAgent(t, c, "b", c.URL)
	log := b.listens()
	b.waits("it names the webhook", func() bool {
		return b.told("it does not answer the API server") || strings.Contains(log.String(), "it does not answer the API server")
	})
	if a.blip("a") || a.members() != "a=10.244.1.0/24" {
		t.Errorf("a lost %q", a.members())
	}

	must(t, c.StartGuard())
	fair.Eventually(t, patience, "b joins", fair.True(func() bool { return b.tryStart(patience) == nil }))
	t.Cleanup(b.stop)
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24")
}
