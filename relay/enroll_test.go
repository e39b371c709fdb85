package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/admission/enroll"
	"edgemesh/tunnel/p2p/admission/join"
)

// nodeCertificate is one that signs itself, and the pool of its CA.
func nodeCertificate(t *testing.T, node string) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

// A relay that knows no members, but a join secret, leads to a controller: for an edge that proves the secret as the
// controller does, and for nobody else.
func TestEdgeAsksThroughAJoinSecretRelay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	secrets := secretFile(t, path, "right")
	r := runRelayWith(t, dir, "joinSecretFile: "+path+"\n")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cert, pool := nodeCertificate(t, "edge-1")
	ckey, controller := keytest.New(t)
	requests := controllerAt(t, r, ckey, pool, join.NewProver(secrets, log))

	for name, x := range map[string]struct {
		greet enroll.Greet
		says  string // the error; "" for none
	}{
		"the secret":      {greet: join.NewProver(secrets, log).Admit},
		"another secret":  {greet: join.NewProver(secretFile(t, filepath.Join(dir, "wrong"), "wrong"), log).Admit, says: "does not accept the join secret"},
		"no secret known": {says: "no controller could be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			key, self := keytest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the relay answers nobody who proves nothing
			if x.greet != nil {
				ctx, cancel = fair.WithTimeout(t.Context(), deadline)
			}
			defer cancel()
			a, err := enroll.Do(ctx, key, cert, enroll.Via{Relays: []peer.AddrInfo{r.info}, Controllers: []peer.ID{controller}, Greet: x.greet},
				enroll.Request{Method: http.MethodPost})
			if x.says != "" {
				if err == nil || !strings.Contains(err.Error(), x.says) || len(requests) > 0 {
					t.Errorf("%+v, %v, %d requests; want %q", a, err, len(requests), x.says)
				}
				return
			}
			if err != nil || a.Code != http.StatusCreated {
				t.Fatalf("%+v, %v", a, err)
			}
			if e := <-requests; e != (enroll.Edge{Node: "edge-1", Peer: self}) {
				t.Errorf("request of %+v", e)
			}
		})
	}
}

// controllerAt has a controller with that key stay at the relay, and returns the requests of edges with a certificate in pool.
func controllerAt(t *testing.T, r *running, key crypto.PrivKey, pool *x509.CertPool, prover *join.Prover) chan enroll.Edge {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	requests := make(chan enroll.Edge, 4)
	server := enroll.NewServer(func(context.Context) (*x509.CertPool, error) { return pool, nil },
		func(_ context.Context, e enroll.Edge, _ enroll.Request) enroll.Answer {
			requests <- e
			return enroll.Answer{Code: http.StatusCreated}
		}, func(error) {}, log)
	c, err := enroll.NewController(key, server, prover.Admit, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	held, done := make(chan int, 64), make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, func() []peer.AddrInfo { return []peer.AddrInfo{r.info} }, func(at []peer.ID) {
			select {
			case held <- len(at):
			default:
			}
		})
	}()
	t.Cleanup(func() { end(); <-done; c.Close() })
	fair.Eventually(t, deadline, "the relay takes the controller in", fair.True(func() bool { return <-held == 1 }))
	return requests
}

// Through a relay that pins the controller's key an edge without a statement reaches it, and nobody else.
func TestEdgeAsksThroughARelayThatPinsTheControllersKey(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	r := s.relay(t.TempDir())
	cert, pool := nodeCertificate(t, "edge-1")
	requests := controllerAt(t, r, s.key, pool, join.NewProver(nil, slog.New(slog.DiscardHandler)))
	key, self := keytest.New(t)
	ctx, cancel := fair.WithTimeout(t.Context(), deadline)
	defer cancel()
	a, err := enroll.Do(ctx, key, cert, enroll.Via{Relays: []peer.AddrInfo{r.info}, Controllers: []peer.ID{s.self}}, enroll.Request{Method: http.MethodPost})
	if err != nil || a.Code != http.StatusCreated {
		t.Fatalf("%+v, %v", a, err)
	}
	if e := <-requests; e != (enroll.Edge{Node: "edge-1", Peer: self}) {
		t.Errorf("request of %+v", e)
	}
	if err := r.reserve(newNode(t)); err == nil {
		t.Error("a stranger has a reservation")
	}
}
