package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of another host's root, uninstall reads the configuration there, and with --purge leaves no file.
func TestUninstallRoot(t *testing.T) {
	root := t.TempDir()
	file := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file("etc/edgemesh/agent.yaml", `nodeName: a
membership: {file: /etc/edgemesh/cluster.yaml}
stateDir: /srv/state
runtimeDir: /run/elsewhere
cniConfDir: /etc/other/net.d
cniBinDir: /opt/other/bin
cniDataDir: /srv/cni
`)
	record := `{"form": "systemd", "files": {"/etc/edgemesh/agent.yaml": "x"}}`
	left := []string{"srv/state/identity.key", "run/elsewhere/subnet.json", "run/elsewhere/agent.sock", "etc/other/net.d/10-edgemesh.conflist",
		"opt/other/bin/edgemesh-cni", "srv/cni/10.244.1.2_default_web"}
	for _, purge := range []bool{false, true} {
		for _, name := range left {
			file(name, "x")
		}
		file("var/lib/edgemesh/install.json", record)
		args := []string{"uninstall", "--root", root}
		if purge {
			args = append(args, "--purge")
		}
		if code, out, errOut := command(t, args...); code != 0 {
			t.Fatalf("exit code %d: %s%s", code, out, errOut)
		}
		var there []string
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				there = append(there, strings.TrimPrefix(p, root+"/"))
			}
			return err
		})
		got := strings.Join(there, " ")
		want := "etc/edgemesh/agent.yaml srv/cni/10.244.1.2_default_web srv/state/agent.lock srv/state/identity.key" // changed since; who comes back
		if purge {
			want = ""
		}
		if got != want {
			t.Errorf("purge %v: left is %q, want %q", purge, got, want)
		}
	}
}
