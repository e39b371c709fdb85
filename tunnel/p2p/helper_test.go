package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"go.uber.org/goleak"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

const echoProto = identity.StreamProtocol

func TestMain(m *testing.M) {
	if role := os.Getenv("P2P_TEST_ROLE"); role != "" {
		os.Exit(runRole(role))
	}
	// A circuit that comes while a node closes is waited for by libp2p for 10 s
	// (circuitv2/client, AcceptTimeout).
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client.(*Client).handleStreamV2"))
}

func newKey(t testing.TB) crypto.PrivKey {
	t.Helper()
	k, _ := keytest.New(t)
	return k
}

func idOf(t testing.TB, k crypto.PrivKey) peer.ID {
	t.Helper()
	id, err := peer.IDFromPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func addrs(t testing.TB, ss ...string) []ma.Multiaddr {
	t.Helper()
	var out []ma.Multiaddr
	for _, s := range ss {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// echo makes n answer every stream with what it gets.
func echo(n *Node) {
	n.SetStreamHandler(echoProto, func(_ peer.ID, s *paths.Stream) {
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	})
}

func loopbackNode(t testing.TB, key crypto.PrivKey, m members.Membership) *Node {
	t.Helper()
	return tunedNode(t, key, m, tuned{})
}

// circuitNode is a loopbackNode that reaches members through relays alone.
func circuitNode(t testing.TB, key crypto.PrivKey, m members.Membership) *Node {
	t.Helper()
	return tunedNode(t, key, m, tuned{circuits: true})
}

func tunedNode(t testing.TB, key crypto.PrivKey, m members.Membership, by tuned) *Node {
	t.Helper()
	clock := &hoppingClock{}
	by.now = clock.now
	n, err := New(Config{Key: key, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"),
		tuned: by, Membership: m, Sealed: true, Log: testLog(t, idOf(t, key).String()[46:])})
	if err != nil {
		t.Fatal(err)
	}
	clocks.Store(n, clock)
	t.Cleanup(func() {
		clocks.Delete(n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	echo(n)
	return n
}

// hoppingClock is a clock that can be put forward.
type hoppingClock struct{ ahead atomic.Int64 }

func (c *hoppingClock) now() ladder.Time { return sinceBoot() + time.Duration(c.ahead.Load()) }

// clocks of the nodes that loopbackNode made.
var clocks sync.Map

// hop puts n's clock forward, and has it look after its paths to p.
func hop(n *Node, p peer.ID, d time.Duration) {
	if c, ok := clocks.Load(n); ok {
		c.(*hoppingClock).ahead.Add(int64(d))
	}
	n.peers.Wake(p)
}

// pair makes a membership of two, and both nodes.
func pair(t testing.TB, relays ...peer.AddrInfo) (a, b *Node, m members.Membership) {
	t.Helper()
	return pairOf(t, loopbackNode, relays...)
}

// circuitPair is a pair whose nodes reach each other through relays alone.
func circuitPair(t testing.TB, relays ...peer.AddrInfo) (a, b *Node, m members.Membership) {
	t.Helper()
	return pairOf(t, circuitNode, relays...)
}

func pairOf(t testing.TB, node func(testing.TB, crypto.PrivKey, members.Membership) *Node, relays ...peer.AddrInfo) (a, b *Node, m members.Membership) {
	t.Helper()
	ka, kb := newKey(t), newKey(t)
	m = members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: relays,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	return node(t, ka, m), node(t, kb, m), m
}

// reservedPair is a pair whose nodes have their reservations.
func reservedPair(t testing.TB, relays ...peer.AddrInfo) (a, b *Node, m members.Membership) {
	t.Helper()
	a, b, m = pair(t, relays...)
	fair.Eventually(t, 10*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	return a, b, m
}

func testLog(t testing.TB, who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", who)
}

func reserved(n *Node, want int) func() error {
	return func() error {
		got := 0
		for _, r := range n.Status().Relays {
			if r.Reserved {
				got++
			}
		}
		if got < want {
			return fmt.Errorf("%d of %d relays: %+v", got, want, n.Status().Relays)
		}
		return nil
	}
}

// call sends a message over a new stream and reads it back.
func call(n *Node, to peer.ID) (paths.Path, error) {
	ctx, cancel := fair.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := n.OpenStream(ctx, to, echoProto)
	if err != nil {
		return paths.Path{}, err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, s.Reset)()
	if _, err := s.Write([]byte("hello")); err != nil {
		return s.Path(), err
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(s, buf); err != nil {
		return s.Path(), err
	}
	if string(buf) != "hello" {
		return s.Path(), fmt.Errorf("echo %q", buf)
	}
	return s.Path(), nil
}

func onPath(n *Node, to peer.ID, kind paths.Kind, transport string) func() error {
	return func() error {
		st, _ := n.PeerStatus(to)
		if st.Path.Kind != kind || (transport != "" && st.Path.Transport != transport) {
			return fmt.Errorf("path %+v, want %s %s; reason: %s", st.All, kind, transport, st.Reason)
		}
		return nil
	}
}
