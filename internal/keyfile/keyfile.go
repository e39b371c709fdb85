// Package keyfile has who an agent or a relay is: an Ed25519 key in a file.
package keyfile

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/crypto/pb"

	"edgemesh/internal/durable"
)

// Name is the name of the key inside a state directory.
const Name = "identity.key"

// maxSize bounds what is read from a key file, in bytes; a key takes 68.
const maxSize = 4096

var (
	// ErrPermissions means that users other than the owner may use the key file.
	ErrPermissions = errors.New("permissions are too open, 0600 required")
	// ErrCorrupt means that the key file is torn or is not an Ed25519 key.
	ErrCorrupt = errors.New("not a valid key")
)

// LoadOrCreate returns the key in dir/identity.key and makes the directory (0700) and a random key (0600) where there is
// none. Two processes that start at the same time end up with the same key. The errors are those of Load, and errors of
// the file system; an existing file is never replaced.
func LoadOrCreate(dir string) (crypto.PrivKey, error) {
	path := filepath.Join(dir, Name)
	key, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	if err := create(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create identity key %s: %w", path, err)
	}
	return Load(path)
}

// Load reads the key at path. It returns an error that wraps fs.ErrNotExist when there is none, ErrPermissions when other
// users may read it, and ErrCorrupt when it is not a complete Ed25519 key.
func Load(path string) (crypto.PrivKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open identity key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat identity key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("identity key %s: %w: not a regular file", path, ErrCorrupt)
	}
	if perm := info.Mode().Perm(); perm != 0o600 && perm != 0o400 {
		return nil, fmt.Errorf("identity key %s: %w: mode is %#o; run: chmod 600 %s", path, ErrPermissions, perm, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return nil, fmt.Errorf("read identity key %s: %w", path, err)
	}
	key, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("identity key %s: %w: %w; restore it from a backup, or remove it "+
			"to get a new identity (the membership must then list the new peer ID)", path, ErrCorrupt, err)
	}
	return key, nil
}

// decode parses libp2p's protobuf form of a private key (peer-ids spec, "Keys"), which holds an Ed25519 seed and its public
// key: in a torn or edited file the two do not match.
func decode(b []byte) (crypto.PrivKey, error) {
	if len(b) == 0 {
		return nil, errors.New("file is empty")
	}
	key, err := crypto.UnmarshalPrivateKey(b)
	if err != nil {
		return nil, err
	}
	if key.Type() != pb.KeyType_Ed25519 {
		return nil, fmt.Errorf("key type is %s, want Ed25519", key.Type())
	}
	raw, err := key.Raw()
	if err != nil {
		return nil, err
	}
	if len(raw) != ed25519.PrivateKeySize || !bytes.Equal(ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize]), raw) {
		return nil, errors.New("public half does not match the private one")
	}
	return key, nil
}

// create writes a new key to path, durably and only if there is none: the file appears complete or not at all, and
// survives a power cut once create has returned.
func create(path string) error {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return err
	}
	b, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return err
	}
	return durable.Create(path, b, 0o600)
}
