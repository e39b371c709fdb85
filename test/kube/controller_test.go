package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The controller runs as the manifest has it, in the pod network and without rights on its node; it deletes what a node
// claims beyond its two blocks, and its log names the node.
func TestController(t *testing.T) {
	c, _ := installed(t)
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/edgemesh-controller", "--timeout=120s")
	found, err := pods(t.Context(), c, "kube-system", "app.kubernetes.io/component=controller")
	ok(t, err)
	inside := func(p pod) bool { return strings.HasPrefix(p.ip, "10.244.") }
	if len(found) != 2 || !inside(found[0]) || !inside(found[1]) {
		t.Fatalf("ready pods of the controller: %v, want two, with addresses of the pod network", found)
	}
	holder := kubectl(t, "-n", "kube-system", "get", "lease", "edgemesh-controller", "-o", "jsonpath={.spec.holderIdentity}")
	if holder != found[0].name && holder != found[1].name {
		t.Fatalf("the Lease is held by %q, want one of %v", holder, found)
	}
	defer kubectl(t, "delete", "podblocks", "--all")
	for i := range 4 {
		kubectlIn(t, fmt.Sprintf(`{"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "PodBlock", "metadata": {"name": "10-244-20%d-0-24"},
			"spec": {"cidr": "10.244.20%d.0/24", "nodeName": "hoarder"}}`, i, i), "create", "-f", "-")
	}
	took := eventually(t, 10*time.Second, func(context.Context) error {
		if got := strings.Fields(kubectl(t, "get", "podblocks", "-o", "name")); len(got) != 2 {
			return fmt.Errorf("blocks %v, want 2", got)
		}
		return nil
	})
	figure(t, "two blocks in surplus deleted %s after the last one was made", seconds(took))
	if log := kubectl(t, "-n", "kube-system", "logs", holder); !strings.Contains(log, "node=hoarder") {
		t.Errorf("the log does not name the node:\n%s", log)
	}
}
