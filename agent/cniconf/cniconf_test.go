package cniconf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
)

func subnet(cidrs ...string) mesh.Subnet {
	s := mesh.Subnet{MTU: 1500, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	for _, c := range cidrs {
		s.PodCIDRs = append(s.PodCIDRs, netip.MustParsePrefix(c))
	}
	return s
}

// testConfig has a plugin of its own and directories that do not exist yet.
func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	plugin := filepath.Join(dir, "built")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Config{
		RuntimeDir: filepath.Join(dir, "run"), ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin"),
		Plugin: plugin, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestWrite(t *testing.T) {
	c := testConfig(t)
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24", "fd00:1::/64")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(c.RuntimeDir, conf.SubnetFile))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"podCIDRs":["10.244.1.0/24","fd00:1::/64"],"clusterCIDRs":["10.244.0.0/16"],"mtu":1500}` + "\n"; string(b) != want {
		t.Errorf("subnet.json is %s, want %s", b, want)
	}
	// As a runtime reads it.
	list, err := libcni.ConfListFromFile(filepath.Join(c.ConfDir, ConflistName))
	if err != nil {
		t.Fatal(err)
	}
	// This libcni knows cniVersions; older ones take cniVersion.
	if list.Name != "edgemesh" || list.CNIVersion != "1.1.0" || !bytes.Contains(list.Bytes, []byte(`"cniVersion": "1.0.0"`)) || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "edgemesh-cni" {
		t.Errorf("conflist is %s", list.Bytes)
	}
	var entry conf.NetConf
	if err := json.Unmarshal(list.Plugins[0].Bytes, &entry); err != nil || entry.RuntimeDir != c.RuntimeDir {
		t.Errorf("runtimeDir is %q (%v), want %q", entry.RuntimeDir, err, c.RuntimeDir)
	}

	paths := []string{filepath.Join(c.RuntimeDir, conf.SubnetFile), filepath.Join(c.BinDir, PluginName), filepath.Join(c.ConfDir, ConflistName)}
	var before []uint64
	for _, p := range paths {
		before = append(before, inode(t, p))
	}
	if err := i.Write(subnet("10.244.1.0/24", "fd00:1::/64")); err != nil {
		t.Fatal(err)
	}
	for n, p := range paths {
		if inode(t, p) != before[n] {
			t.Errorf("%s was rewritten without a change", p)
		}
	}
	if err := i.Write(subnet("10.244.2.0/24")); err != nil {
		t.Fatal(err)
	}
	if inode(t, paths[0]) == before[0] {
		t.Error("subnet.json was not replaced though the block changed")
	}
	if inode(t, paths[2]) != before[2] {
		t.Error("the conflist was rewritten though only the block changed")
	}
	for _, dir := range []string{c.RuntimeDir, c.BinDir, c.ConfDir} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%s has %v (%v), want one file", dir, entries, err)
		}
	}
}

func TestPortmap(t *testing.T) {
	c := testConfig(t)
	if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.BinDir, "portmap"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromFile(filepath.Join(c.ConfDir, ConflistName))
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 2 || list.Plugins[1].Network.Type != "portmap" || !list.Plugins[1].Network.Capabilities["portMappings"] {
		t.Errorf("conflist is %s, want portmap second", list.Bytes)
	}
}

// TestVersions: a chain is offered to runtimes at 1.1.0 if all of it knows that.
func TestVersions(t *testing.T) {
	c := testConfig(t)
	i := New(c)
	path := filepath.Join(c.BinDir, "portmap")
	if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for n, x := range []struct{ says, want string }{
		{`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`, "1.0.0"},
		{`{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`, "1.1.0"},
		{"nothing of use", "1.0.0"},
	} {
		script := fmt.Sprintf("#!/bin/sh\necho x >> %s.calls\necho '%s'\n", path, x.says)
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := i.Write(subnet("10.244.1.0/24")); err != nil {
				t.Fatal(err)
			}
		}
		list, err := libcni.ConfListFromFile(filepath.Join(c.ConfDir, ConflistName))
		if err != nil || list.CNIVersion != x.want {
			t.Errorf("portmap says %s: version %s, %v, want %s", x.says, list.CNIVersion, err, x.want)
		}
		if calls, err := os.ReadFile(path + ".calls"); err != nil || len(calls) != 2*(n+1) {
			t.Errorf("portmap was queried %d times, want once per file (%v)", len(calls)/2, err)
		}
	}
}

// TestNoConflistBefore holds the order: a runtime that sees the conflist finds
// plugin and subnet.
func TestNoConflistBefore(t *testing.T) {
	t.Run("plugin missing", func(t *testing.T) {
		c := testConfig(t)
		c.Plugin = filepath.Join(t.TempDir(), "none")
		if err := New(c).Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrNoPlugin) {
			t.Errorf("error is %v, want ErrNoPlugin", err)
		}
		if _, err := os.Stat(filepath.Join(c.ConfDir, ConflistName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the conflist is there without a plugin (%v)", err)
		}
	})
	t.Run("subnet not writable", func(t *testing.T) {
		c := testConfig(t)
		if err := os.WriteFile(c.RuntimeDir, nil, 0o644); err != nil { // a file where the directory should be
			t.Fatal(err)
		}
		if err := New(c).Write(subnet("10.244.1.0/24")); err == nil {
			t.Error("no error")
		}
		if _, err := os.Stat(c.ConfDir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the conflist is there without a subnet (%v)", err)
		}
	})
}

func TestOff(t *testing.T) {
	c := testConfig(t)
	conf, bin := c.ConfDir, c.BinDir
	c.ConfDir, c.BinDir, c.Plugin = "", "", "/nonexistent"
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{conf, bin} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made though it is switched off (%v)", dir, err)
		}
	}
}

func TestPluginReplacedWhileRunning(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("SKIPPED: no sleep binary to run")
	}
	binary, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(t)
	if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(c.BinDir, PluginName)
	if err := os.WriteFile(installed, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	running := exec.CommandContext(ctx, installed, "60")
	running.Args[0] = "sleep" // a multi-call binary goes by its name
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer running.Wait()
	defer stop()
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(c.Plugin)
	if have, err := os.ReadFile(installed); err != nil || !bytes.Equal(have, want) {
		t.Errorf("the plugin was not replaced: %v", err)
	}
}

func TestUninstall(t *testing.T) {
	c := testConfig(t)
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(c.ConfDir, "20-other.conflist")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := i.Uninstall(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{filepath.Join(c.RuntimeDir, conf.SubnetFile), filepath.Join(c.BinDir, PluginName), filepath.Join(c.ConfDir, ConflistName)} {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", p, err)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a foreign file: %v", err)
	}
}

// The pods come to be another plugin's: no new one comes to ours, and the last
// ones can still be deleted.
func TestWithdraw(t *testing.T) {
	c := testConfig(t)
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := i.Withdraw(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{filepath.Join(c.RuntimeDir, conf.SubnetFile), filepath.Join(c.ConfDir, ConflistName)} {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", p, err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.BinDir, PluginName)); err != nil {
		t.Errorf("the plugin: %v", err)
	}
}
