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
	if hops, _ := carryRenewing(t, false); hops < 2 {
		t.Errorf("keys changed %d times at the relay", hops)
	}
	if hops, circuit := carryRenewing(t, true); hops < 2 || circuit < 2 {
		t.Errorf("keys changed %d times at the relay, %d times of the circuit", hops, circuit)
	}
}

// carryRenewing moves 32 MiB through a relay and back, and returns how often keys changed at the relay, and of the circuit's
// connection, which both ends count and the relay does not see.
func carryRenewing(t *testing.T, both bool) (hops, circuit int64) {
	t.Helper()
	var ends, relays atomic.Int64
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
	count := func() { ends.Add(1) }
	a, b := newRenewing(count), newNode(t)
	if both {
		b = newRenewing(count)
	}
	conf := testConfig()
	conf.keys.Most, conf.keys.Done = 1000, func() { relays.Add(1) }
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
	return relays.Load(), (ends.Load() - relays.Load()) / 2
}
