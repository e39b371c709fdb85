package keyfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
)

func TestLoadOrCreateKeepsTheKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !first.Equals(second) {
		t.Error("the key changed between two starts")
	}
	info, err := os.Stat(filepath.Join(dir, Name))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %#o, want 0600", info.Mode().Perm())
	}
	if e, _ := os.ReadDir(dir); len(e) != 1 {
		t.Errorf("left %v behind, want the key only", e)
	}
}

func TestLoadOrCreateTogether(t *testing.T) {
	dir := t.TempDir()
	keys := make([]crypto.PrivKey, 16)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			k, err := LoadOrCreate(dir)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = k
		})
	}
	wg.Wait()
	for i, k := range keys {
		if k == nil || !k.Equals(keys[0]) {
			t.Fatalf("start %d got another key", i)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good")
	if _, err := LoadOrCreate(good); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(good, Name))
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), key...)
	flipped[10] ^= 1
	ec, _, err := crypto.GenerateKeyPair(crypto.Secp256k1, 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := crypto.MarshalPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		content []byte
		mode    fs.FileMode
		want    error
		says    string
	}{
		{"group may read", key, 0o640, ErrPermissions, "chmod 600"},
		{"all may read", key, 0o644, ErrPermissions, "chmod 600"},
		{"empty", nil, 0o600, ErrCorrupt, "empty"},
		{"torn", key[:40], 0o600, ErrCorrupt, "restore"},
		{"one bit", flipped, 0o600, ErrCorrupt, "does not match"},
		{"text", []byte("hello world\n"), 0o600, ErrCorrupt, "restore"},
		{"too long", append(append([]byte(nil), key...), make([]byte, 10_000)...), 0o600, ErrCorrupt, "restore"},
		{"another kind", other, 0o600, ErrCorrupt, "want Ed25519"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, Name)
			if err := os.WriteFile(path, c.content, c.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := LoadOrCreate(dir)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not name %s or say %q", err, path, c.says)
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(c.content) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestLoadWithoutKey(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), Name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}
