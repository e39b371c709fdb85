package p2p

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/members"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// Two nodes that knew each other and restart find each other with no relay left, as
// a site does that lost its uplink and its power.
func TestFoundAgainWithoutRelay(t *testing.T) {
	relay, info := loopbackRelay(t)
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
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "a is direct", onPath(a, b.ID(), KindDirect, ""))
	eventually(t, 10*time.Second, "b is direct", onPath(b, a.ID(), KindDirect, ""))
	listenA, listenB := a.ListenAddrs(), b.ListenAddrs()
	a.Close()
	b.Close()
	relay.Close()

	a, b = start(ka, listenA), start(kb, listenB)
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if path.Kind == KindRelayed {
		t.Errorf("path %+v with no relay", path)
	}
	if _, err := call(b, a.ID()); err != nil {
		t.Error(err)
	}

	// One that is no member any more is forgotten.
	a.SetMembership(members.Membership{Members: m.Members[:1]})
	a.Close()
	again, err := openBook(files[ka])
	if err != nil || len(again.m) != 0 {
		t.Errorf("the book still has %v, %v", again.m, err)
	}
}

// A damaged file costs what it held, not the start; what is well-formed is taken.
func TestBookDamaged(t *testing.T) {
	id := idOf(t, newKey(t))
	path := filepath.Join(t.TempDir(), "addresses.json")
	for text, want := range map[string]int{
		"": 0, "{": 0, "null": 0, `{"x": ["/ip4/192.168.1.2/tcp/4001"]}`: 0,
		`{"` + id.String() + `": ["/ip4/192.168.1.2/tcp/4001", "nonsense", "/ip4/192.168.1.2/tcp/0", "/ip4/192.168.1.2/udp/4001/quic-v1"]}`: 2,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := openBook(path)
		if wrong := text == "" || text == "{"; (err != nil) != wrong {
			t.Errorf("%q: error %v", text, err)
		}
		if got := b.known(id); len(got) != want {
			t.Errorf("%q: %v, want %d", text, got, want)
		}
		eps := []endpoint.Endpoint{{Addr: netip.MustParseAddrPort("192.168.1.3:4001")}}
		b.note(id, eps, func() bool { return true })
		if err := b.save(); err != nil {
			t.Fatal(err)
		}
		if b, err = openBook(path); err != nil || !slices.Equal(b.known(id), eps) {
			t.Errorf("after %q: %v, %v", text, b.known(id), err)
		}
		removed := idOf(t, newKey(t))
		if b.note(removed, eps, func() bool { return false }); b.known(removed) != nil {
			t.Error("one that is no member any more is remembered")
		}
	}
}
