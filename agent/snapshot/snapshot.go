// Package snapshot stores the last good membership on disk, so that a node which
// reboots offline knows its blocks and its peers.
package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"edgemesh/agent/config/strict"
	"edgemesh/agent/mesh"
	"edgemesh/internal/durable"
)

const (
	// File is the name of the snapshot inside a state directory.
	File = "membership.json"
	// Version of the envelope; a reader refuses others.
	Version = 1
	// maxSize bounds the file, in bytes; the largest membership is smaller.
	maxSize = 32 << 20
)

// envelope is the file: the membership's JSON and the SHA-256 of exactly those
// bytes, in hex.
type envelope struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	State   json.RawMessage `json:"state"`
}

// Save makes s the snapshot in dir. When it returns nil, s has been read back and
// survives a power cut; on an error the previous snapshot is still there. It does not
// write if the snapshot already is s, because flash wears out.
func Save(dir string, s mesh.State) error {
	path := filepath.Join(dir, File)
	data, err := encode(s)
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// Load returns the snapshot in dir. The error wraps fs.ErrNotExist if there is none,
// and ErrTorn if it cannot be trusted.
func Load(dir string) (mesh.State, error) {
	path := filepath.Join(dir, File)
	data, err := strict.ReadFile(path, maxSize)
	if err != nil {
		return mesh.State{}, fmt.Errorf("load snapshot: %w", err)
	}
	s, err := decode(data)
	if err != nil {
		return mesh.State{}, fmt.Errorf("load snapshot %s: %w: %w", path, ErrTorn, err)
	}
	return s, nil
}

func encode(s mesh.State) ([]byte, error) {
	state, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(state)
	data, err := json.Marshal(envelope{Version, hex.EncodeToString(sum[:]), state})
	return append(data, '\n'), err
}

func decode(data []byte) (mesh.State, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return mesh.State{}, err
	}
	if e.Version != Version {
		return mesh.State{}, fmt.Errorf("version %d, want %d", e.Version, Version)
	}
	if sum := sha256.Sum256(e.State); hex.EncodeToString(sum[:]) != e.SHA256 {
		return mesh.State{}, errors.New("checksum does not match")
	}
	var s mesh.State
	if err := json.Unmarshal(e.State, &s); err != nil {
		return mesh.State{}, err
	}
	return s, s.Validate()
}

// ErrTorn means that the snapshot is not what Save wrote: it was cut short by a power
// failure, edited, or written by another program.
var ErrTorn = errors.New("snapshot is torn or not ours")
