package cniconf

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/agent/config"
)

// fill mounts a small file system on dir, with what is in dir on it, and leaves no
// room there.
func fill(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its mounts with it
	kept := t.TempDir()
	for _, err := range []error{
		os.CopyFS(kept, os.DirFS(dir)),
		unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"),
		os.CopyFS(dir, os.DirFS(kept)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "hog"), make([]byte, 1<<17), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
}

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
			fill(t, full)
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
			if err := os.Remove(filepath.Join(full, "hog")); err != nil {
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
	fill(t, c.BinDir)
	if err := New(c).Write(subnet("10.244.1.0/24")); errors.Is(err, ErrFormer) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want the full disk alone", err)
	}
}
