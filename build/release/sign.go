package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
)

// payloadType is that of the statements of in-toto.
const payloadType = "application/vnd.in-toto+json"

// resource is an artefact or a source by its digests (in-toto: ResourceDescriptor).
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// statement says from what the artefacts were made, and how (slsa.dev/spec/v1.0/provenance). It has no time and no
// invocation, so that building again gives the same.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder map[string]string `json:"builder"`
	} `json:"runDetails"`
}

func (o options) provenanceFile() string { return "edgemesh_" + o.number() + ".provenance.json" }

// provenance writes the statement about all files that are there.
func (o options) provenance() error {
	digests, err := o.digests()
	if err != nil {
		return err
	}
	lock, err := os.ReadFile(o.repo + "/build/images/packages.lock")
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": digests[name]}})
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = "https://edgemesh.invalid/make-release/v1"
	d.ExternalParameters = map[string]string{"command": "make release VERSION=" + o.stamp.Version + " URL=" + o.url}
	d.ResolvedDependencies = []resource{
		{URI: "git+edgemesh@" + o.stamp.Version, Digest: map[string]string{"gitCommit": o.stamp.Commit}},
		{URI: "pkg:golang/toolchain@" + runtime.Version()},
		{Name: "build/images/packages.lock", Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(lock))}},
	}
	s.Predicate.RunDetails.Builder = map[string]string{"id": "https://edgemesh.invalid/build/release@" + o.stamp.Version}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return o.put(o.provenanceFile(), append(text, '\n'))
}

// sign writes signatures of the checksums and of the provenance, and the public key, if there is a private one. They are
// not in SHA256SUMS, which is the same whoever signs.
func (o options) sign() error {
	key, err := o.signer()
	if err != nil || key == nil {
		return err
	}
	sums, err := os.ReadFile(o.out + "/" + sumsFile)
	if err != nil {
		return err
	}
	sig, err := signature(key, sums)
	if err != nil {
		return err
	}
	if err := o.put(sumsFile+".sig", []byte(sig+"\n")); err != nil {
		return err
	}
	payload, err := os.ReadFile(o.out + "/" + o.provenanceFile())
	if err != nil {
		return err
	}
	// DSSE, version 1 (github.com/secure-systems-lab/dsse, protocol.md).
	sig, err = signature(key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload))
	if err != nil {
		return err
	}
	envelope, err := json.Marshal(map[string]any{
		"payloadType": payloadType, "payload": base64.StdEncoding.EncodeToString(payload), "signatures": []any{map[string]string{"sig": sig}},
	})
	if err != nil {
		return err
	}
	if err := o.put("edgemesh_"+o.number()+".intoto.jsonl", append(envelope, '\n')); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := pem.Encode(&out, &pem.Block{Type: "PUBLIC KEY", Bytes: public}); err != nil {
		return err
	}
	sum := sha256.Sum256(public)
	fingerprint := hex.EncodeToString(sum[:])
	if page, err := os.ReadFile("SECURITY.md"); err == nil && !bytes.Contains(page, []byte(fingerprint)) {
		fmt.Fprintf(os.Stderr, "WARNING: SECURITY.md does not name the signing key, so nobody can check it: %s\n", fingerprint)
	}
	return o.put("edgemesh_"+o.number()+".pub", out.Bytes())
}

// signer is the key to sign with; nil without --key.
func (o options) signer() (crypto.Signer, error) {
	if o.key == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.key)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("--key: %s is not PEM: make one with `openssl genpkey -algorithm ed25519 -out FILE`", o.key)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("--key: %s: %w (an encrypted key has to be decrypted first)", o.key, err)
	}
	switch key := key.(type) {
	case ed25519.PrivateKey:
		return key, nil
	case *ecdsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("--key: %s is of another kind than Ed25519 and ECDSA", o.key)
}

// signature signs the data, with ECDSA its SHA-256, and needs no randomness (RFC 8032, RFC 6979): the same every time.
func signature(key crypto.Signer, data []byte) (string, error) {
	var sig []byte
	var err error
	if k, is := key.(*ecdsa.PrivateKey); is {
		sum := sha256.Sum256(data)
		sig, err = k.Sign(nil, sum[:], crypto.SHA256)
	} else {
		sig, err = key.Sign(nil, data, crypto.Hash(0))
	}
	return base64.StdEncoding.EncodeToString(sig), err
}
