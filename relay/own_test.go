package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"edgemesh/internal/keyfile"
)

const nobody = 65532

// owner is who has the file itself, not what it points to.
func owner(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// A relay that was root before keeps its key as another user, and back; nothing outside of its directory changes hands.
func TestOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	base := t.TempDir()
	state, outside := filepath.Join(base, "state"), filepath.Join(base, "outside")
	before, err := keyfile.LoadOrCreate(state)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(state, "membership.json"), "{}")
	writeFile(t, outside, "root's")
	if err := os.Symlink(outside, filepath.Join(state, "link")); err != nil {
		t.Fatal(err)
	}
	for _, user := range []uint32{nobody, nobody, 0, nobody} {
		if err := own(state, int(user)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", keyfile.Name, "membership.json", "link"} {
			if got := owner(t, filepath.Join(state, name)); got != user {
				t.Errorf("%q belongs to %d, want %d", name, got, user)
			}
		}
		if owner(t, outside) != 0 {
			t.Fatal("a file outside of the state directory changed hands")
		}
	}
	after, err := keyfile.LoadOrCreate(state)
	if err != nil || !after.Equals(before) {
		t.Errorf("the key is another one: %v", err)
	}
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// The control: that user can use its state directory, and another one cannot.
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	for parent := filepath.Dir(base); parent != "/tmp" && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	read := func(user uint32) error {
		c := exec.Command("cat", filepath.Join(state, keyfile.Name))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		return c.Run()
	}
	if err := read(nobody); err != nil {
		t.Errorf("its owner cannot read the key: %v", err)
	}
	if read(nobody+1) == nil {
		t.Error("another user reads the key")
	}
	fresh := filepath.Join(base, "fresh", "state")
	if err := own(fresh, nobody); err != nil || owner(t, fresh) != nobody {
		t.Errorf("a new directory: %v", err)
	}
	// A second name could be that of any file of root's.
	if err := os.Link(outside, filepath.Join(state, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := own(state, nobody); err == nil || !strings.Contains(err.Error(), "hard has a second name") || owner(t, outside) != 0 {
		t.Errorf("a hard link: %v", err)
	}
}
