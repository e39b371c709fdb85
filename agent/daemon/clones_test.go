package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"edgemesh/internal/keyfile"
	"edgemesh/tunnel/p2p/who/clones"
)

// TestForget: a machine that was taken for a copy by mistake has its former key still, and no fingerprint of another one's hardware.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, keyfile.Name)
	if _, err := keyfile.LoadOrCreate(dir); err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, clones.HardwareFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one finds none
		if err := Forget(dir); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if kept, err := os.ReadFile(key + formerKey); err != nil || !bytes.Equal(kept, was) {
		t.Errorf("the former key: %v", err)
	}
}
