package cniconf

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/internal/config"
	"edgemesh/internal/disktest"
)

// An agent that may not write the plugins' directory leaves the plugin to the init container: it starts with the one that
// is there, of whatever release, says so once, and says what to do if there is none.
func TestReadOnlyBinDir(t *testing.T) {
	c := testConfig(t)
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	own := New(c)
	if err := own.InstallPlugin(); err != nil {
		t.Fatal(err)
	}
	disktest.ReadOnly(t, c.BinDir)
	path := filepath.Join(c.BinDir, PluginName)
	if err := os.WriteFile(path, nil, 0o755); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the control: writing there gives %v", err)
	}
	write := func() error { return errors.Join(New(c).MakeDirs(), New(c).Write(subnet("10.244.1.0/24"))) }
	if err := write(); err != nil || New(c).Stale() {
		t.Fatalf("with the same plugin: %v", err)
	}
	log.Reset()
	if err := os.WriteFile(c.Plugin, []byte("#!/bin/sh\n# newer\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	i := New(c)
	for range 3 {
		if err := i.Write(subnet("10.244.1.0/24")); err != nil || !i.Stale() {
			t.Fatalf("with another release's plugin: %v", err)
		}
	}
	if n := strings.Count(log.String(), "another release's CNI plugin stays"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	if l := installed(t, c); types(l) != PluginName {
		t.Errorf("the conflist is %s", l.Bytes)
	}
}

func TestReadOnlyBinDirWithoutPlugin(t *testing.T) {
	c := testConfig(t)
	if err := os.Mkdir(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	disktest.ReadOnly(t, c.BinDir)
	for what, err := range map[string]error{"at the start": New(c).MakeDirs(), "later": New(c).Write(subnet("10.244.1.0/24"))} {
		var key *config.KeyError
		if !errors.As(err, &key) || key.Key != "cniBinDir" || !strings.Contains(err.Error(), "init container") || !strings.Contains(err.Error(), c.BinDir) {
			t.Errorf("%s: %v, want the key and what to do", what, err)
		}
	}
}

// RemovePlugin is what an init container does before a cleanup; then the cleanup has nothing to do there.
func TestRemovePlugin(t *testing.T) {
	c := testConfig(t)
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	if err := i.RemovePlugin(); err != nil {
		t.Fatal(err)
	}
	disktest.ReadOnly(t, c.BinDir)
	if err := i.Uninstall(); err != nil {
		t.Errorf("cleanup after it: %v", err)
	}
}
