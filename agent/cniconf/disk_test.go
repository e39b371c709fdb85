package cniconf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/internal/config"
	"edgemesh/internal/disktest"
)

// A full disk must not end an agent whose pods can be made with the files that are
// there: after an upgrade or a change of the configuration it would not start again.
func TestFullDiskKeepsTheFormer(t *testing.T) {
	for _, dir := range []string{"bin", "net.d"} {
		t.Run(dir, func(t *testing.T) {
			c := testConfig(t)
			if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
				t.Fatal(err)
			}
			full := filepath.Join(filepath.Dir(c.Plugin), dir)
			disktest.Fill(t, full)
			if err := os.WriteFile(c.Plugin, []byte("#!/bin/sh\n# newer\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			c.CNI = config.CNI{KeepFor: "72h"}
			if err := New(c).Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrFormer) || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error is %v, want ErrFormer and why", err)
			}
			if l := installed(t, c); types(l) != PluginName {
				t.Errorf("the conflist is %s", l.Bytes)
			}
			if err := os.Remove(filepath.Join(full, disktest.Hog)); err != nil {
				t.Fatal(err)
			}
			if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
				t.Errorf("with room again: %v", err)
			}
		})
	}
}

// Without files that work there is nothing to continue with.
func TestFullDiskBeforeTheFirstPod(t *testing.T) {
	c := testConfig(t)
	if err := os.Mkdir(c.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	disktest.Fill(t, c.BinDir)
	if err := New(c).Write(subnet("10.244.1.0/24")); errors.Is(err, ErrFormer) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want the full disk alone", err)
	}
}
