package enroll

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
)

// authority is a platform's CA.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// subject is what a node's certificate says.
func subject(node string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
}

// issue returns a certificate for key, valid for an hour before and after now unless change says otherwise.
func (a authority) issue(t testing.TB, name pkix.Name, key crypto.Signer, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: name, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Kubelets' and edgecore's keys are ECDSA, other tools make the others.
func TestEveryKindOfKey(t *testing.T) {
	a := newAuthority(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: "c", Prover: "e"}
	for _, key := range []crypto.Signer{newKey(t), rsaKey, edKey} {
		m, err := sign(tr, []byte("{}"), a.issue(t, subject("edge-1"), key, nil))
		if err != nil {
			t.Fatal(err)
		}
		out, err := m.marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := readMessage(bytes.NewReader(out))
		if err != nil {
			t.Fatal(err)
		}
		if node, err := check(tr, got, a.pool(), time.Now()); node != "edge-1" || err != nil {
			t.Errorf("%T: %q, %v", key, node, err)
		}
	}
}

// What is signed for one controller, edge, session, challenge or request counts for no other.
func TestProofIsBound(t *testing.T) {
	a := newAuthority(t)
	right := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: "controller", Prover: "edge"}
	m, err := sign(right, []byte("{}"), a.issue(t, subject("edge-1"), newKey(t), nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		bound   func(*transcript.Transcript)
		message func(*message)
	}{
		"for another controller":          {bound: func(b *transcript.Transcript) { b.Verifier = "other" }},
		"by another edge":                 {bound: func(b *transcript.Transcript) { b.Prover = "other" }},
		"IDs divided otherwise":           {bound: func(b *transcript.Transcript) { b.Verifier, b.Prover = "controllere", "dge" }},
		"in another session":              {bound: func(b *transcript.Transcript) { b.Session[31] = 1 }},
		"replayed, for another challenge": {bound: func(b *transcript.Transcript) { b.Challenge[0] = 1 }},
		"with another request":            {message: func(m *message) { m.request = []byte(`{"method":"DELETE"}`) }},
		"with a changed signature":        {message: func(m *message) { m.signature = append(bytes.Clone(m.signature[:9]), 0) }},
		"without a signature":             {message: func(m *message) { m.signature = nil }},
		"with another's certificate": {message: func(m *message) {
			m.chain = a.issue(t, subject("edge-2"), newKey(t), nil).Certificate[0]
		}},
		"without a certificate":  {message: func(m *message) { m.chain = nil }},
		"with rubbish behind it": {message: func(m *message) { m.chain = append(bytes.Clone(m.chain), 1, 2, 3) }},
	} {
		t.Run(name, func(t *testing.T) {
			tr, m := right, m
			if x.bound != nil {
				x.bound(&tr)
			}
			if x.message != nil {
				x.message(&m)
			}
			if node, err := check(tr, m, a.pool(), time.Now()); !errors.Is(err, ErrRefused) || node != "" {
				t.Errorf("node %q, error %v", node, err)
			}
		})
	}
}

// Only a certificate of the platform's CA for a node, as a client and within its time, names a node.
func TestCertificates(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	tr := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: "c", Prover: "e"}
	for name, x := range map[string]struct {
		from   authority
		name   pkix.Name
		change func(*x509.Certificate)
		says   string // "" = accepted
	}{
		"good":               {from: a, name: subject("edge-1")},
		"another CA's":       {from: foreign, name: subject("edge-1"), says: "unknown authority"},
		"expired":            {from: a, name: subject("edge-1"), change: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, says: "expired"},
		"not yet valid":      {from: a, name: subject("edge-1"), change: func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, says: "not yet valid"},
		"a server's":         {from: a, name: subject("edge-1"), change: func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, says: "key usage"},
		"an administrator's": {from: a, name: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}, says: "is not a node's"},
		"of no group":        {from: a, name: pkix.Name{CommonName: "system:node:edge-1"}, says: "is not a node's"},
		"of the group only":  {from: a, name: pkix.Name{CommonName: "edge-1", Organization: []string{"system:nodes"}}, says: "is not a node's"},
		"without a name":     {from: a, name: subject(""), says: "is not a node's"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := sign(tr, []byte("{}"), x.from.issue(t, x.name, newKey(t), x.change))
			if err != nil {
				t.Fatal(err)
			}
			node, err := check(tr, m, a.pool(), time.Now())
			if x.says == "" {
				if node != "edge-1" || err != nil {
					t.Errorf("%q, %v", node, err)
				}
				return
			}
			if node != "" || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%q, %v; want an error that says %q", node, err, x.says)
			}
		})
	}
}

// Whatever a stranger sends, reading it ends, and proves nothing.
func FuzzMessage(f *testing.F) {
	a, key := newAuthority(f), newKey(f)
	tr := transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: "c", Prover: "e"}
	m, err := sign(transcript.Transcript{Protocol: identity.EnrollProtocol, Verifier: "other", Prover: "e"}, []byte(`{"method":"POST"}`), a.issue(f, subject("edge-1"), key, nil))
	if err != nil {
		f.Fatal(err)
	}
	seed, err := m.marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)-1])
	f.Add([]byte{0, 0, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		m, err := readMessage(r)
		if err != nil {
			return
		}
		out, err := m.marshal()
		if err != nil || !bytes.Equal(out, data[:len(data)-r.Len()]) {
			t.Errorf("read and written again: %x, %v; it was %x", out, err, data)
		}
		if node, err := check(tr, m, a.pool(), time.Now()); node != "" || !errors.Is(err, ErrRefused) {
			t.Errorf("node %q, %v", node, err)
		}
	})
}
