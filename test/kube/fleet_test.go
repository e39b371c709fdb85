package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/fleet"
)

// TestPlugin has kubectl find the plugin: it sums up all nodes, has their agents check them and one ping another, and pods on
// all nodes reach each other by IP, Service and name, after which nothing of them is left.
func TestPlugin(t *testing.T) {
	c, _ := installed(t)
	talkers(t)
	dir := t.TempDir()
	agent, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-agent"))
	ok(t, err)
	ok(t, os.Symlink(agent, filepath.Join(dir, fleet.Name)))
	plugin := func(ctx context.Context, args ...string) (string, error) {
		cmd := c.AdminCommand(ctx, "/bin/sh", append([]string{"-c", "PATH=" + dir + `:$PATH exec kubectl edgemesh "$@"`, "sh"}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := product.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		out, err := plugin(ctx, args...)
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	has := func(out string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(out, p) {
				t.Errorf("%q is missing in\n%s", p, out)
			}
		}
	}
	has(run("status", "--all"), "nodes     4: 4 ready, 4 reached", "edge-a1", "cloud")
	has(run("doctor"), "4 nodes: 4 checked, something is broken on 0")
	has(run("status", "edge-a1"), "edge-a1")
	has(run("ping", "edge-a1", "edge-b1", "--count", "1"), "1 sent, 1 received")
	has(run("connectivity-test"), "4 nodes: 48 requests answered, 0 failed")
	eventually(t, time.Minute, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "wait", "--for=delete", "namespace/edgemesh-connectivity", "--timeout=30s")
		return err
	})
}
