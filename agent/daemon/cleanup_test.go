package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/tunnel/p2p/who/clones"
)

// TestForgetsAll: of who a node was nothing stays in the state directory but the former key.
func TestForgetsAll(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{keyfile.Name, clones.HardwareFile, snapshot.ChangesFile, snapshot.File, kube.MemoryFile, addressFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Forget(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != keyfile.Name+formerKey {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestPurge: nothing of a killed agent stays in the state directory.
func TestPurge(t *testing.T) {
	cfg := config.Config{StateDir: t.TempDir(), RuntimeDir: t.TempDir()}
	for _, name := range []string{keyfile.Name, snapshot.File, source.StatementsFile, handoverFile, lockFile} {
		if err := os.WriteFile(filepath.Join(cfg.StateDir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := cleanFiles(cfg, true, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(cfg.StateDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
