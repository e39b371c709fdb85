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
	if len(found) != 1 || !strings.HasPrefix(found[0].ip, "10.244.") {
		t.Fatalf("ready pods of the controller: %v, want one, with an address of the pod network", found)
	}
	if holder := kubectl(t, "-n", "kube-system", "get", "lease", "edgemesh-controller", "-o", "jsonpath={.spec.holderIdentity}"); holder != found[0].name {
		t.Errorf("the Lease is held by %q, want %s", holder, found[0].name)
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
	if log := kubectl(t, "-n", "kube-system", "logs", "deployment/edgemesh-controller"); !strings.Contains(log, "node=hoarder") {
		t.Errorf("the log does not name the node:\n%s", log)
	}
}
