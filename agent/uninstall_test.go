package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/agent/daemon"
	"edgemesh/internal/config"
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
	left := []string{"srv/state/identity.key", "run/elsewhere/subnet.json", "run/elsewhere/agent.sock", "run/elsewhere/watchdog.json", "etc/other/net.d/10-edgemesh.conflist",
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
		want := "etc/edgemesh/agent.yaml srv/cni/10.244.1.2_default_web srv/state/identity.key" // changed since; who comes back
		if purge {
			want = ""
		}
		if got != want {
			t.Errorf("purge %v: left is %q, want %q", purge, got, want)
		}
	}
}

// A root with nothing of an agent's but what install wrote: nothing is left, and nothing is said to be. While an agent runs
// there, all of it stays. An image's absolute links lead within it.
func TestUninstallRootWhereNoAgentRan(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unit := "/etc/systemd/system/edgemesh-agent.service"
	write(filepath.Join(root, unit), "x")
	write(filepath.Join(root, "/var/lib/edgemesh/install.json"), `{"form": "systemd", "files": {"`+unit+`": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}}`)
	write(filepath.Join(root, config.DefaultPath), "nodeName: a\nmembership: {file: /etc/edgemesh/cluster.yaml}\nruntimeDir: /var/run/edgemesh\n")
	write(filepath.Join(outside, "edgemesh/subnet.json"), "a local agent's")
	write(filepath.Join(root, outside, "edgemesh/subnet.json"), "the image's")
	if err := os.Symlink(outside, filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}

	lock, err := daemon.LockStateDir(filepath.Join(root, config.DefaultStateDir))
	if err != nil {
		t.Fatal(err)
	}
	code, out, errOut := command(t, "uninstall", "--root", root)
	if _, err := os.Stat(filepath.Join(root, unit)); code != 1 || err != nil || !strings.Contains(errOut, "is held by process") {
		t.Errorf("beside an agent: exit code %d, unit %v: %s%s", code, err, out, errOut)
	}
	lock.Release()

	code, out, errOut = command(t, "uninstall", "--root", root)
	if code != 0 || strings.Contains(out, "key") || !strings.Contains(out, "removed  "+config.DefaultStateDir) || !strings.Contains(out, "left to do") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
	for path, want := range map[string]bool{filepath.Join(root, unit): false, filepath.Join(root, config.DefaultStateDir): false,
		filepath.Join(root, outside, "edgemesh"): false, filepath.Join(outside, "edgemesh/subnet.json"): true} {
		if exists := exists(path); exists != want {
			t.Errorf("%s is there: %v", path, exists)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
