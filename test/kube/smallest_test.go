package kube

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// The smallest KubeEdge: one node in the cloud has the API server, the controller and the relay, and first-steps.sh is all that is run. What
// the controller's pod sends to the relay on its own node comes with the pod's address.
func TestSmallestCloud(t *testing.T) {
	if flavour() != "kubeedge" {
		t.Skip("on a cluster of its own: make e2e-kubeedge")
	}
	c := bare(t)
	if suite.installed != nil || attached(t, c) {
		t.Skip("this cluster has the pod network already")
	}
	i := &installation{}
	suite.installed = i
	kubectl(t, "apply", "-f", "manifests/")
	ok(t, c.Import(t.Context(), "cloud", "edgemesh-relay"))
	helm, err := exec.Command(filepath.Join(root, "build/tool.sh"), "helm").Output()
	ok(t, err)
	i.apply = time.Now()
	install := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/first-steps.sh"), "--platform", "kubeedge", "--relay-node", "cloud",
		"--pod-cidr", "10.244.0.0/16", "--api-server", cluster.APIServer+":"+cluster.APIPort)
	install.Env = append(install.Env, "PATH="+filepath.Join(c.Dir, "admin")+":"+filepath.Dir(strings.TrimSpace(string(helm)))+":/usr/sbin:/usr/bin:/sbin:/bin")
	out, err := install.CombinedOutput()
	if err != nil {
		t.Fatalf("first-steps.sh: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "yes: edges that are not yet members reach it by each") {
		t.Errorf("first-steps.sh does not say that the controller is reached:\n%s", out)
	}
	reached := time.Since(i.apply)
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return edgesReady(ctx, c) })
	i.nodes = time.Since(i.apply)
	all := workload(t)
	i.workload = time.Since(i.apply)
	eventually(t, 30*time.Second, func(ctx context.Context) error { return allPairs(ctx, c, all) })
	i.reachable = time.Since(i.apply)
	figure(t, "the smallest KubeEdge: first-steps.sh ends after %s, all nodes Ready %s, all pods ready %s, all ordered pairs of %d pods %s",
		seconds(reached), seconds(i.nodes), seconds(i.workload), len(all), seconds(i.reachable))
}
