package p2p

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/members"
)

func TestRelayedThenDirect(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	var mu sync.Mutex
	var events []peers.Event
	a.SetNotify(func(e peers.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	})
	if _, err := call(a, b.ID()); err != nil { // relayed, unless punching was faster than the stream
		t.Fatal(err)
	}
	fair.Eventually(t, 5*time.Second, "a path by the relay", relayedBy(a, b.ID(), relay.ID))
	fair.Eventually(t, 10*time.Second, "a is direct", onPath(a, b.ID(), paths.KindDirect, "tcp"))
	fair.Eventually(t, 10*time.Second, "b is direct", onPath(b, a.ID(), paths.KindDirect, "tcp"))
	if path, err := call(b, a.ID()); err != nil || path.Transport != "tcp" {
		t.Errorf("call back over %+v: %v, want direct tcp", path, err)
	}
	fair.Eventually(t, 5*time.Second, "event", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			if e.Peer == b.ID() && e.Kind == peers.PathChanged && e.Path.Kind == paths.KindDirect {
				return nil
			}
		}
		return fmt.Errorf("events %+v", events)
	})
	fair.Eventually(t, 5*time.Second, "status with tcp, quic and a relayed path, a time, a round trip and no reason", func() error {
		st, ok := a.PeerStatus(b.ID())
		if !ok || len(st.All) < 3 || st.Wanted || st.Since.IsZero() || st.Reason != "" || st.Path.RTT == 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if _, ok := a.OverTCP(b.ID()); !ok {
		t.Error("no path over TCP")
	}
	if d, ok := a.OverTCP(relay.ID); ok || d != 0 { // no peer
		t.Errorf("%v over TCP to a stranger", d)
	}
	rtt, path, err := a.Ping(t.Context(), b.ID())
	if err != nil || rtt <= 0 || path.Kind != paths.KindDirect {
		t.Errorf("ping: %v over %+v: %v", rtt, path, err)
	}
}

func TestUnreachable(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	key, gone := newKey(t), idOf(t, newKey(t))
	n := loopbackNode(t, key, members.Membership{Members: []members.Member{{Name: "gone", ID: gone}}, Relays: []peer.AddrInfo{relay}})
	fair.Eventually(t, 5*time.Second, "reservation", reserved(n, 1))
	_, err := call(n, gone)
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "NO_RESERVATION") {
		t.Errorf("error %v, want ErrUnreachable because of NO_RESERVATION", err)
	}
	st, _ := n.PeerStatus(gone)
	if st.Path.Kind != paths.KindNone || !st.Wanted || !strings.HasPrefix(st.Reason, "offline: no relay has it since ") || st.Offline.IsZero() {
		t.Errorf("status %+v, want no path, wanted, with the reason", st)
	}
	if strings.Contains(st.Reason, "\n") || strings.Contains(err.Error(), "\n") {
		t.Errorf("reason %q, error %q, want one line each", st.Reason, err)
	}
	if _, err := call(n, idOf(t, newKey(t))); !errors.Is(err, members.ErrNotMember) {
		t.Errorf("error %v, want members.ErrNotMember", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := call(n, gone); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

func TestPortInUse(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for _, taken := range []string{
		fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", tcp.Addr().(*net.TCPAddr).Port),
		fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", udp.LocalAddr().(*net.UDPAddr).Port),
	} {
		_, err := New(Config{Key: newKey(t), Listen: addrs(t, "/ip4/127.0.0.1/tcp/0", taken)})
		if !errors.Is(err, ErrListen) || !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), taken) {
			t.Errorf("error %v, want ErrListen and EADDRINUSE for %s", err, taken)
		}
	}
	if _, err := New(Config{Key: newKey(t), Listen: addrs(t, "/ip4/127.0.0.1/udp/0")}); !errors.Is(err, ErrListen) {
		t.Errorf("error %v, want ErrListen", err)
	}
	// Another node's port, although both share ports with their own dials.
	n := loopbackNode(t, newKey(t), members.Membership{})
	for _, a := range n.ListenAddrs() {
		if _, err := New(Config{Key: newKey(t), Listen: addrs(t, a.String())}); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("second node on %s: %v, want EADDRINUSE", a, err)
		}
	}
}

// What a node announces is its own, though no interface has it: at that port, over that transport.
func TestAnnouncedIsOwn(t *testing.T) {
	n, err := New(Config{Key: newKey(t), Listen: addrs(t, "/ip4/127.0.0.1/tcp/0"), Announced: addrs(t, "/ip4/5.5.5.5/tcp/4470", "/dns4/edge.example.org/tcp/4470")})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for text, want := range map[string]bool{"/ip4/5.5.5.5/tcp/4470": true, "/ip4/5.5.5.5/tcp/4471": false, "/ip4/5.5.5.5/udp/4470/quic-v1": false} {
		if e, _ := endpoint.Parse(ma.StringCast(text)); n.owns(e) != want {
			t.Errorf("%s is owned: %v", text, !want)
		}
	}
}

// A QUIC connection that a peer has dialed at one of this node's addresses ends with that address, whichever the kernel would choose.
func TestAddressOfAcceptedConnection(t *testing.T) {
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}}
	a := loopbackNode(t, ka, m)
	b, err := New(Config{Key: kb, Listen: addrs(t, "/ip4/0.0.0.0/udp/0/quic-v1"), Membership: m, Log: testLog(t, "b")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	at, _ := endpoint.Parse(b.ListenAddrs()[0])
	if err := a.dialer.Dial(t.Context(), ma.StringCast(fmt.Sprintf("/ip4/127.0.0.2/udp/%d/quic-v1", at.Addr.Port())), b.ID()); err != nil {
		t.Fatal(err)
	}
	conns := func() int { return len(b.h.Network().ConnsToPeer(a.ID())) }
	fair.Eventually(t, 10*time.Second, "the connection", func() error {
		known := 0
		b.sources.Range(func(_, src any) bool { known++; return src == netip.MustParseAddr("127.0.0.2") })
		if conns() != 1 || known != 1 {
			return fmt.Errorf("%d connections, %d with a known address", conns(), known)
		}
		return nil
	})
	b.addressGone(netip.MustParseAddr("127.0.0.1"))
	time.Sleep(50 * time.Millisecond) // sleep: it stays meanwhile
	if conns() != 1 {
		t.Error("given up for another address")
	}
	b.addressGone(netip.MustParseAddr("127.0.0.2"))
	fair.Eventually(t, 5*time.Second, "its end", fair.True(func() bool { return conns() == 0 }))
}
