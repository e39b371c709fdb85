// Package disktest fills disks, and makes them read-only. Only tests import it.
package disktest

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Hog is the file that fills the disk: without it there is room again.
const Hog = "hog"

// Fill mounts a small file system on dir, with what is in dir on it, and leaves no
// room there for anything but empty files. The test's thread sees it, and no other
// process.
func Fill(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	kept := t.TempDir()
	alone(t)
	for _, err := range []error{
		os.CopyFS(kept, os.DirFS(dir)),
		unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"),
		os.CopyFS(dir, os.DirFS(kept)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, Hog), make([]byte, 1<<17), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
}

// ReadOnly makes dir read-only, as a mount in a container is. The test's thread sees it, and no other process.
func ReadOnly(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	alone(t)
	for _, err := range []error{
		unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// alone gives the test's thread mounts of its own.
func alone(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its mounts with it
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
}
