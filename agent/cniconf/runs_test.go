package cniconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/internal/config"
)

// TestPluginThatCannotRun: where the runtime could not execute the plugin, as on a file system without exec, no conflist is put in place: the
// node would be Ready, and each of its pods fail.
func TestPluginThatCannotRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: mounting needs root")
	}
	c := testConfig(t)
	if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", c.BinDir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("SKIP: cannot mount here: %v", err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(c.BinDir, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	i := New(c)
	var key *config.KeyError
	if err := i.Write(subnet("10.244.1.0/24")); !errors.As(err, &key) || key.Key != "cniBinDir" || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("on a file system without exec: %v", err)
	}
	conflist := filepath.Join(c.ConfDir, ConflistName)
	if _, err := os.Stat(conflist); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the conflist is in place: %v", err)
	}
	unmount()
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Errorf("once the plugin runs: %v", err)
	}
	if _, err := os.Stat(conflist); err != nil {
		t.Error(err)
	}
	other := testConfig(t)
	if err := os.WriteFile(other.Plugin, []byte("of another machine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := New(other).Write(subnet("10.244.1.0/24")); !errors.As(err, &key) || !strings.Contains(err.Error(), "architecture") {
		t.Errorf("a plugin that is no program: %v", err)
	}
}
