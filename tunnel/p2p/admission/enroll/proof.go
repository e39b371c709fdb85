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
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/tunnel/p2p/admission/transcript"
)

const (
	maxCerts = 4
	// A node's certificate has this subject (Kubernetes, "Using Node Authorization").
	userPrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// ErrRefused means that the proof shows nothing.
var ErrRefused = errors.New("the proof is refused")

// text is what the certificate's key signs for a request.
func text(t transcript.Transcript, request []byte) []byte {
	sum := sha256.Sum256(request)
	return append(t.Bytes(), sum[:]...)
}

// sign makes the message that carries request and the proof by cert's key.
func sign(t transcript.Transcript, request []byte, cert *tls.Certificate) (message, error) {
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return message{}, fmt.Errorf("the node certificate's key is a %T, which cannot sign", cert.PrivateKey)
	}
	digest, opts := text(t, request), crypto.SignerOpts(crypto.Hash(0))
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

// check returns the name of the node that sent m: one of roots issued its certificate, which is valid at that time, and its
// key signed m for t. The error wraps ErrRefused.
func check(t transcript.Transcript, m message, roots *x509.CertPool, now time.Time) (node string, err error) {
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
	if err := leaf.CheckSignature(algorithm, text(t, m.request), m.signature); err != nil {
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
