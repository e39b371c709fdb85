package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

const (
	// SecretLen is the length of a traffic secret, bytes.
	SecretLen = sha256.Size
	// nonceLen is that of all three ciphers.
	nonceLen = 12
	// eraBits of the counter are packets under one key.
	eraBits = 22
)

// key is what seals the packets of one era.
type key struct {
	era    uint64
	secret []byte
	aead   cipher.AEAD
	iv     [nonceLen]byte
}

// newKey makes the key of an era from its secret, RFC 8446 section 7.3. The error
// wraps ErrCipher.
func newKey(suite uint16, era uint64, secret []byte) (*key, error) {
	k := &key{era: era, secret: secret}
	size := 32
	if suite == tls.TLS_AES_128_GCM_SHA256 {
		size = 16
	}
	raw := expand(secret, "key", size)
	copy(k.iv[:], expand(secret, "iv", nonceLen))
	var err error
	switch suite {
	case tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384:
		var block cipher.Block
		if block, err = aes.NewCipher(raw); err == nil {
			k.aead, err = cipher.NewGCM(block)
		}
	case tls.TLS_CHACHA20_POLY1305_SHA256:
		k.aead, err = chacha20poly1305.New(raw)
	default:
		return nil, fmt.Errorf("%s: %w", tls.CipherSuiteName(suite), ErrCipher)
	}
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return k, nil
}

// next makes the key of the following era, RFC 8446 section 7.2; there is no way back.
func (k *key) next(suite uint16) (*key, error) {
	return newKey(suite, k.era+1, expand(k.secret, "traffic upd", SecretLen))
}

// nonce of a packet, RFC 8446 section 5.3.
func (k *key) nonce(counter uint64) (n [nonceLen]byte) {
	n = k.iv
	binary.BigEndian.PutUint64(n[4:], binary.BigEndian.Uint64(n[4:])^counter)
	return n
}

// expand is HKDF-Expand-Label of RFC 8446 section 7.1, with an empty context.
func expand(secret []byte, label string, n int) []byte {
	label = "tls13 " + label
	info := make([]byte, 0, 4+len(label))
	info = binary.BigEndian.AppendUint16(info, uint16(n))
	info = append(info, byte(len(label)))
	info = append(info, label...)
	info = append(info, 0)
	out, err := hkdf.Expand(sha256.New, secret, string(info), n)
	if err != nil {
		panic(err) // only for lengths above 255 hashes
	}
	return out
}
