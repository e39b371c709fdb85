package kubeapi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// Before Kubernetes 1.30 nothing guards the objects: the chart is refused until every node is trusted, and a node says so until then.
func TestUntrustedNodes(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	if !c.Old() || os.Getenv("EDGEMESH_K8S_CHART") != "" {
		t.Skip("policies guard this API server (EDGEMESH_K8S_VERSION=v1.28.15 runs it)")
	}
	helm, err := exec.Command(filepath.Join(c.Root, "build/tool.sh"), "helm").Output()
	must(t, err)
	install := func(args ...string) string {
		cmd := exec.Command(strings.TrimSpace(string(helm)), append([]string{"install", "edgemesh", filepath.Join(c.Root, "manifests/edgemesh"), "-n", "trial", "--create-namespace",
			"--skip-crds", "--dry-run=server", "--set", "podNetwork.podCIDRs={10.244.0.0/16}"}, args...)...)
		cmd.Env = kubeapi.Environ("KUBECONFIG="+filepath.Join(c.Dir, "admin.conf"), "HOME="+c.Dir)
		out, _ := cmd.CombinedOutput() // what it says is looked at
		return string(out)
	}
	const refusal = "set podNetwork.trustedNodes=true if you trust every node"
	if out := install(); !strings.Contains(out, refusal) {
		t.Errorf("the chart, without trusted nodes: %s", out)
	}
	if out := install("--set", "podNetwork.trustedNodes=true"); strings.Contains(out, refusal) {
		t.Errorf("the chart, with trusted nodes: %s", out)
	}

	network(t, c, map[string]any{"trustedNodes": false})
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	var states atomic.Int32
	a.also = func(mesh.State) { states.Add(1) }
	a.start()
	fair.Eventually(t, patience, "it says that nothing guards", fair.True(func() bool { return a.told("any node can write the others' peer IDs") }))
	before := states.Load()
	must(t, c.Patch(networkPath, map[string]any{"spec": map[string]any{"trustedNodes": true}}))
	fair.Eventually(t, patience, "it says that all is well", fair.True(func() bool { return states.Load() > before }))
	a.sees("a=10.244.1.0/24")
}
