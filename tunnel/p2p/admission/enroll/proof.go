package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/session"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	challengeLen = 32
	maxCerts     = 4
	// A node's certificate names it like that (Kubernetes, "Using Node Authorization").
	userPrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// ErrRefused means that the proof shows nothing.
var ErrRefused = errors.New("the proof is refused")

// bound is everything that a signature holds for.
type bound struct {
	controller, edge peer.ID
	session          [session.Len]byte
	challenge        [challengeLen]byte
}

// text is what is signed for a request.
func (b bound) text(request []byte) []byte {
	out := append([]byte(identity.EnrollProtocol), 0)
	for _, id := range []peer.ID{b.controller, b.edge} {
		out = binary.BigEndian.AppendUint16(out, uint16(len(id))) //nolint:gosec // 38 bytes
		out = append(out, id...)
	}
	out = append(out, b.session[:]...)
	out = append(out, b.challenge[:]...)
	sum := sha256.Sum256(request)
	return append(out, sum[:]...)
}

// sign makes the message that carries request, with cert's proof of who asks.
func (b bound) sign(request []byte, cert *tls.Certificate) (message, error) {
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return message{}, fmt.Errorf("the node certificate's key is a %T, which cannot sign", cert.PrivateKey)
	}
	digest, opts := b.text(request), crypto.SignerOpts(crypto.Hash(0))
	switch key.Public().(type) {
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		opts = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	default:
		opts = crypto.SHA256
	}
	if opts.HashFunc() != 0 {
		sum := sha256.Sum256(digest)
		digest = sum[:]
	}
	signature, err := key.Sign(rand.Reader, digest, opts)
	if err != nil {
		return message{}, fmt.Errorf("sign with the node certificate's key: %w", err)
	}
	return message{request, slices.Concat(cert.Certificate...), signature}, nil
}

// check returns the name of the node that m comes from: its certificate is of one of roots at that time, and its key has
// signed m for b. The error wraps ErrRefused.
func (b bound) check(m message, roots *x509.CertPool, now time.Time) (node string, err error) {
	certs, err := x509.ParseCertificates(m.chain)
	if err != nil || len(certs) == 0 || len(certs) > maxCerts {
		return "", fmt.Errorf("%w: %d certificates, %w", ErrRefused, len(certs), errors.Join(err, errMessage))
	}
	leaf := certs[0]
	var algorithm x509.SignatureAlgorithm
	switch leaf.PublicKey.(type) {
	case ed25519.PublicKey:
		algorithm = x509.PureEd25519
	case *rsa.PublicKey:
		algorithm = x509.SHA256WithRSAPSS
	case *ecdsa.PublicKey:
		algorithm = x509.ECDSAWithSHA256
	}
	if err := leaf.CheckSignature(algorithm, b.text(m.request), m.signature); err != nil {
		return "", fmt.Errorf("%w: its signature is not of the certificate's key for this connection and request: %w", ErrRefused, err)
	}
	others := x509.NewCertPool()
	for _, c := range certs[1:] {
		others.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return "", fmt.Errorf("%w: certificate of %q: %w", ErrRefused, leaf.Subject.CommonName, err)
	}
	node, is := strings.CutPrefix(leaf.Subject.CommonName, userPrefix)
	if !is || node == "" || !slices.Contains(leaf.Subject.Organization, nodesGroup) {
		return "", fmt.Errorf("%w: certificate of %q in %q is not a node's, %sNAME in %s", ErrRefused, leaf.Subject.CommonName, leaf.Subject.Organization, userPrefix, nodesGroup)
	}
	return node, nil
}
