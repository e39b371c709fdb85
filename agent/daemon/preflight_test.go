package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/cniconf"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
)

// Everything a new version, or a new configuration, can be found wrong for while the
// one before it still works.
func TestPreflight(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: iptables and the TUN need root")
	}
	const members = "podCIDRs: [10.244.0.0/16]\nnodes: [{name: %s, peerID: %s, podCIDRs: [10.244.1.0/24]}]\n"
	const kubeconfig = `{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
		users: [{name: u, user: {token: t}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`
	file := func(cfg *config.Config) { cfg.Membership.File = filepath.Join(cfg.StateDir, "cluster.yaml") }
	api := func(cfg *config.Config) {
		cfg.Membership.Kubernetes = &config.Kubernetes{Kubeconfig: filepath.Join(cfg.StateDir, "kubeconfig")}
	}
	for name, x := range map[string]struct {
		set  func(*config.Config)
		node string // in cluster.yaml
		says string // "" is fit
		fix  bool   // by the operator
	}{
		"a file":                                {file, "a", "", false},
		"an API":                                {api, "a", "", false},
		"another node":                          {file, "b", "key is that of b; set nodeName: b", true},
		"no such file":                          {func(c *config.Config) { c.Membership.File = "/nonexistent" }, "a", "/nonexistent", true},
		"no such access":                        {func(c *config.Config) { c.Membership.Kubernetes = &config.Kubernetes{Kubeconfig: "/nonexistent"} }, "a", "/nonexistent", true},
		"no plugin":                             {func(c *config.Config) { file(c); c.CNIBinDir = "/opt/cni/bin" }, "a", cniconf.ErrNoPlugin.Error(), false},
		"a plugin is there":                     {func(c *config.Config) { file(c); c.CNIBinDir = "/opt/cni/bin"; c.CNIMode = config.CNIKeep }, "a", "", false},
		"another pod network":                   {func(c *config.Config) { file(c); rival(t, c, "10-flannel.conflist") }, "a", "cniMode: flannel has the pods", true},
		"another pod network, which came later": {func(c *config.Config) { file(c); rival(t, c, "10-flannel.conflist", cniconf.ConflistName) }, "a", "", false},
		"another pod network, kept":             {func(c *config.Config) { file(c); rival(t, c, "10-flannel.conflist"); c.CNIMode = config.CNIKeep }, "a", "", false},
		"a join secret for all to read": {func(c *config.Config) {
			file(c)
			c.JoinSecretFile = filepath.Join(c.StateDir, "cluster.yaml")
			if err := os.Chmod(c.JoinSecretFile, 0o644); err != nil {
				t.Error(err)
			}
		}, "a", "joinSecretFile: ", true},
		"a key for all to read": {func(c *config.Config) {
			file(c)
			if err := os.Chmod(filepath.Join(c.StateDir, keyfile.Name), 0o644); err != nil {
				t.Error(err)
			}
		}, "a", "chmod 600", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			key, err := keyfile.LoadOrCreate(dir)
			if err != nil {
				t.Fatal(err)
			}
			id, err := peer.IDFromPrivateKey(key)
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"cluster.yaml": fmt.Sprintf(members, x.node, id), "kubeconfig": kubeconfig} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg := config.Config{NodeName: "a", StateDir: dir, CNIMode: config.CNIOwn}
			x.set(&cfg)
			err = preflight(t.Context(), cfg)
			if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
				t.Errorf("got %v, want an error with %q", err, x.says)
			}
			if errors.As(err, new(*ConfigError)) != x.fix {
				t.Errorf("the operator's to fix: %v; got %v", x.fix, err)
			}
		})
	}
}

// rival fills the runtime's directory with configurations of that network, ours by its name.
func rival(t *testing.T, c *config.Config, names ...string) {
	t.Helper()
	c.CNIConfDir = t.TempDir()
	for _, name := range names {
		kind := "flannel"
		if name == cniconf.ConflistName {
			kind = cniconf.PluginName
		}
		text := `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "` + kind + `"}]}`
		if err := os.WriteFile(filepath.Join(c.CNIConfDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
