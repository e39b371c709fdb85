package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestHostsAreGuarded: package plainhost, whose Config wants a guard, is the only one that makes libp2p hosts.
func TestHostsAreGuarded(t *testing.T) {
	const only = "tunnel/p2p/carrier/plainhost"
	var makers []string
	for _, dir := range []string{"agent", "cni", "internal", "relay", "tunnel"} {
		if err := filepath.WalkDir("../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, call := range []string{"libp2p.New(", "libp2p.NewWithoutDefaults(", "basichost.NewHost(", "swarm.NewSwarm(", "blankhost.NewBlankHost("} {
				if at := strings.TrimPrefix(filepath.Dir(path), "../../"); strings.Contains(string(data), call) && !slices.Contains(makers, at) {
					makers = append(makers, at)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(makers) != 1 || makers[0] != only {
		t.Errorf("libp2p hosts are made in %v: make them by %s.New, with a guard", makers, only)
	}
}
