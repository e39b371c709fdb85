// Package imports holds the direction of dependencies between the folders.
package imports

import (
	"os/exec"
	"strings"
	"testing"
)

// forbidden lists, for packages at or below a path, what they must not depend on,
// directly or through others.
var forbidden = []struct {
	pkg  string
	deep bool // also the packages below pkg
	not  []string
	why  string
}{
	{"edgemesh/agent/mesh", false, []string{"edgemesh/", "github.com/libp2p/", "github.com/vishvananda/", "k8s.io/"}, "mesh decides purely and imports nothing of ours"},
	{"edgemesh/tunnel", false, []string{"edgemesh/tunnel/", "edgemesh/agent", "edgemesh/relay", "github.com/libp2p/", "github.com/vishvananda/"}, "the packet way is joined to devices and libp2p in agent"},
	{"edgemesh/tunnel/tun", true, []string{"edgemesh/tunnel/p2p", "edgemesh/agent", "edgemesh/relay", "github.com/libp2p/"}, "a device knows no network"},
	{"edgemesh/tunnel/p2p", true, []string{"edgemesh/tunnel/tun", "edgemesh/agent", "edgemesh/relay", "edgemesh/cni"}, "p2p knows no packets"},
	{"edgemesh/cni", true, []string{"edgemesh/agent", "edgemesh/tunnel", "edgemesh/relay", "github.com/libp2p/", "k8s.io/"}, "the plugin works without the agent"},
	{"edgemesh/relay", true, []string{"edgemesh/tunnel/tun", "edgemesh/agent/host", "edgemesh/agent/daemon", "edgemesh/cni"}, "the relay touches no kernel state"},
}

// tunnelCore is what tunnel, tun and p2p must not take from each other.
const tunnelCore = "edgemesh/tunnel"

func TestImportDirection(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", "edgemesh/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var ours []string
	for _, p := range strings.Fields(string(out)) {
		if strings.HasPrefix(p, "edgemesh/") {
			ours = append(ours, p)
		}
	}
	for _, rule := range forbidden {
		checked := 0
		for _, p := range ours {
			if p != rule.pkg && !(rule.deep && strings.HasPrefix(p, rule.pkg+"/")) {
				continue
			}
			checked++
			for _, d := range deps(t, p) {
				for _, no := range rule.not {
					if d == strings.TrimSuffix(no, "/") && !strings.HasSuffix(no, "/") || strings.HasPrefix(d, strings.TrimSuffix(no, "/")+"/") {
						if d != p && !strings.HasPrefix(d, rule.pkg+"/") {
							t.Errorf("%s depends on %s: %s", p, d, rule.why)
						}
					}
				}
				if d == tunnelCore && strings.HasPrefix(p, tunnelCore+"/") {
					t.Errorf("%s depends on %s: main joins them", p, d)
				}
			}
		}
		if checked == 0 {
			t.Errorf("no package at %s: this test looks at nothing there", rule.pkg)
		}
	}
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", pkg).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}
