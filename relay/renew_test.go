package main

import (
	"bytes"
	"crypto/rand"
	"io"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"

	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/who/identity"
)

// The keys between a member and a relay change under load, and so do those of a circuit through it: what it carries stays
// whole. First the other member is of a release that keeps its first keys.
func TestKeysChangeAtRelays(t *testing.T) {
	hop := carryRenewing(t, false)
	if hop < 2 {
		t.Errorf("keys changed %d times at the relay", hop)
	}
	if both := carryRenewing(t, true); both < hop+2 {
		t.Errorf("keys changed %d times, %d of them at the relay", both, hop)
	}
}

// carryRenewing moves 32 MiB through a relay and back, and returns how often the keys of the connections of one end changed.
func carryRenewing(t *testing.T, both bool) uint64 {
	t.Helper()
	var changes atomic.Uint64
	newRenewing := func(done func()) node {
		key, _ := keytest.New(t)
		return newNodeWithKey(t, key, libp2p.Security(libp2ptls.ID,
			func(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (*identity.TLS, error) {
				tls, err := identity.NewTLS(id, key, muxers)
				if err != nil {
					return nil, err
				}
				return tls.Renewing(identity.Renewal{Most: 1000, Done: done}), nil
			}))
	}
	a, b := newRenewing(func() { changes.Add(1) }), newNode(t)
	if both {
		b = newRenewing(nil)
	}
	conf := testConfig()
	conf.keys.Most = 1000
	v := newTestServer(t, conf, state(a, b))
	s := mustDial(t, v, a, b)
	sent := make([]byte, 32<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = s.Write(sent)
		_ = s.CloseWrite()
	}()
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes came back, or others: %v", len(got), len(sent), err)
	}
	if n := v.connected(); n != 2 {
		t.Errorf("%d peers are connected", n)
	}
	return changes.Load()
}
