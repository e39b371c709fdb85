package signed

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/durable"
	"edgemesh/internal/secretfile"
)

// ErrKey means that a file has no signing key.
var ErrKey = errors.New("not a signing key")

// NewKey makes a key and the file at path for it; one that exists is an error that wraps fs.ErrExist.
func NewKey(path string) (crypto.PrivKey, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, durable.Create(path, []byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o600)
}

// LoadKey reads the key in the file at path. The error names path and what to do; it wraps ErrKey, or those of secretfile.
func LoadKey(path string) (crypto.PrivKey, error) {
	data, err := secretfile.Read(path, 4096)
	if err != nil {
		return nil, err
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data)))
	var key crypto.PrivKey
	if err == nil {
		key, err = crypto.UnmarshalPrivateKey(raw)
	}
	if err == nil && key.Type() != crypto.Ed25519 {
		err = errors.New("not Ed25519")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%w); make one by: edgemesh-agent membership key FILE", path, ErrKey, err)
	}
	return key, nil
}

// ForCluster is the key that key has for a cluster of that name, so that nothing signed for one cluster counts in another; "" is key
// itself. The error wraps ErrKey.
func ForCluster(key crypto.PrivKey, name string) (crypto.PrivKey, error) {
	if name == "" {
		return key, nil
	}
	raw, err := key.Raw() // RFC 8032's seed is its first half
	if err == nil {
		raw, err = hkdf.Key(sha256.New, raw[:ed25519.SeedSize], nil, domain+"/"+name, ed25519.SeedSize)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(raw))
}

// ParseSigner reads the public form of a key, 12D3KooW….
func ParseSigner(text string) (peer.ID, error) {
	id, err := peer.Decode(text)
	if err == nil {
		_, err = id.ExtractPublicKey()
	}
	if err != nil {
		return "", fmt.Errorf("%q is not a key (12D3KooW…), as `edgemesh-agent membership key FILE` prints it", text)
	}
	return id, nil
}
