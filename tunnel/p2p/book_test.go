package p2p

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/book"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

// Two nodes that knew each other and restart find each other with no relay left, as
// a site does that lost its uplink and its power.
func TestFoundAgainWithoutRelay(t *testing.T) {
	relay, info := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{info},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	files := map[crypto.PrivKey]string{ka: filepath.Join(t.TempDir(), "a.json"), kb: filepath.Join(t.TempDir(), "b.json")}
	start := func(key crypto.PrivKey, listen []ma.Multiaddr) *Node {
		t.Helper()
		n, err := New(Config{Key: key, Listen: listen, Membership: m, AddressFile: files[key], Log: testLog(t, idOf(t, key).String()[46:])})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		echo(n)
		return n
	}
	any := addrs(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1")
	a, b := start(ka, any), start(kb, any)
	fair.Eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, 10*time.Second, "a is direct", onPath(a, b.ID(), paths.KindDirect, ""))
	fair.Eventually(t, 10*time.Second, "b is direct", onPath(b, a.ID(), paths.KindDirect, ""))
	listenA, listenB := a.ListenAddrs(), b.ListenAddrs()
	a.Close()
	b.Close()
	relay.Close()

	a, b = start(ka, listenA), start(kb, listenB)
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if path.Kind == paths.KindRelayed {
		t.Errorf("path %+v with no relay", path)
	}
	if _, err := call(b, a.ID()); err != nil {
		t.Error(err)
	}

	// A removed member is forgotten.
	a.SetMembership(members.Membership{Members: m.Members[:1]})
	a.Close()
	again, err := book.Open(files[ka])
	if err != nil || again.Known(b.ID()) != nil {
		t.Errorf("the book still has %v, %v", again.Known(b.ID()), err)
	}
}
