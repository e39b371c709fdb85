package p2p

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// A session gets new keys again and again, and no datagram is lost by that.
func TestKeysAreRenewed(t *testing.T) {
	t.Parallel()
	_, relay := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay}}
	b := loopbackNode(t, kb, m)
	a, err := New(Config{Key: ka, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), Membership: m,
		Log: testLog(t, "a"), Sealed: true, tuned: tuned{renew: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	out, in := take(a), take(b)
	fair.Eventually(t, 10*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 20*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 1))
	n := uint32(0)
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		for range 5 {
			if err := out.put(b.ID(), binary.BigEndian.AppendUint32(nil, n)); err != nil {
				t.Fatalf("datagram %d: %v", n, err)
			}
			n++
		}
		time.Sleep(20 * time.Millisecond) // sleep: the rate of datagrams
	}
	fair.Eventually(t, 10*time.Second, "all arrive", func() error {
		if got, _, _ := in.snapshot(); len(got) != int(n) {
			return fmt.Errorf("%d of %d", len(got), n)
		}
		return nil
	})
	seen := make([]bool, n)
	got, _, _ := in.snapshot()
	for _, d := range got {
		seen[binary.BigEndian.Uint32(d)] = true
	}
	for i, ok := range seen {
		if !ok {
			t.Errorf("datagram %d is missing", i)
		}
	}
	if n := b.packets.Refused(packet.RefusedReplaced); n != 0 {
		t.Errorf("%d sessions were ended by the receiver", n)
	}
}

// The keys of a TCP path change under load, in both directions and whoever dialed it: streams keep their path, and every byte
// arrives once. TestKeysChangeAtRelays has circuits.
func TestKeysOfPathsChange(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay}}
	var changes atomic.Uint64
	var nodes [2]*Node
	for i, k := range []crypto.PrivKey{ka, kb} {
		n, err := New(Config{Key: k, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0"), Membership: m, Log: testLog(t, m.Members[i].Name),
			tuned: tuned{keys: identity.Renewal{Most: 50, Done: func() { changes.Add(1) }}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		echo(n)
		nodes[i] = n
	}
	a, b := nodes[0], nodes[1]
	fair.Eventually(t, 10*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	fair.Eventually(t, 20*time.Second, "the path", func() error {
		if _, err := call(a, b.ID()); err != nil {
			return err
		}
		return onPath(a, b.ID(), paths.KindDirect, "tcp")()
	})
	var lost atomic.Uint64
	a.SetNotify(func(e peers.Event) {
		if e.Kind != peers.PathChanged {
			lost.Add(1)
		}
	})
	errs := make(chan error, 2)
	for i, from := range nodes {
		go func() { errs <- echoed(t, from, nodes[1-i].ID(), 8<<20) }()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	if n := changes.Load(); n < 10 {
		t.Errorf("keys changed %d times", n)
	}
	if n := lost.Load(); n != 0 {
		t.Errorf("%d paths were lost", n)
	}
}

// echoed sends n bytes to an echo and compares what comes back.
func echoed(t *testing.T, from *Node, to peer.ID, n int) error {
	ctx, cancel := fair.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := from.OpenStream(ctx, to, echoProto)
	if err != nil {
		return err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, s.Reset)()
	sent, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(sent)
	go func() { _, _ = s.Write(sent) }()
	if _, err := io.ReadFull(s, got); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	if !bytes.Equal(sent, got) {
		return errors.New("other bytes came back")
	}
	return nil
}
