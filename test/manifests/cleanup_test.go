package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKubectl knows two nodes with agents, and notes what is changed.
const fakeKubectl = `#!/bin/sh
case "$*" in
*"get pods"*"args[0]"*) printf 'edge-1 cleanup 0\nedge-2 cleanup 0\n' ;;
*"get pods"*"{.spec.nodeName}{\"\\n\"}"*) printf 'edge-2\nedge-1\n' ;;
*"get daemonset edgemesh-agent edgemesh"*|*"desiredNumberScheduled"*) echo 2 ;;
*patch*|*scale*|*delete*) echo "$*" >>"$CHANGED" ;;
esac
`

// cleanupNodes runs the script without a terminal, and returns what it says and what it changed.
func cleanupNodes(t *testing.T, args ...string) (code int, said, changed string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(fakeKubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("../../manifests/cleanup-nodes.sh", args...)
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CHANGED="+filepath.Join(dir, "changed"))
	out, _ := c.CombinedOutput()
	b, _ := os.ReadFile(filepath.Join(dir, "changed"))
	return c.ProcessState.ExitCode(), string(out), string(b)
}

// Nothing is cleaned that nobody agreed to; what would be is named.
func TestCleanupAgreed(t *testing.T) {
	for _, c := range []struct {
		args    string
		code    int
		says    string
		changes bool
	}{
		{"", 2, "repeat with --yes", false},
		{"--dry-run", 0, "from 2 nodes; their pods lose their network:\n  edge-1 edge-2", false},
		{"--dry-run --yes --purge", 0, "remove their keys", false},
		{"--yes", 0, "clean: 2 of 2 nodes", true},
		{"--sure", 2, "--dry-run ends there", false},
	} {
		code, said, changed := cleanupNodes(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(said, c.says) || strings.Contains(changed, "patch daemonset") != c.changes {
			t.Errorf("%q: exit code %d, changed %q:\n%s", c.args, code, changed, said)
		}
	}
}
