package p2p

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// A stranger gets no connection, directly or through the relay, although it
// knows all addresses.
func TestStrangerIsRefused(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, _, m := pair(t, relay)
	fair.Eventually(t, 5*time.Second, "reservation", reserved(a, 1))
	stranger, err := libp2p.New(libp2p.NoListenAddrs, libp2p.EnableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	direct := a.ListenAddrs()
	circuit := addrs(t, relay.Addrs[0].String()+"/p2p/"+relay.ID.String()+"/p2p-circuit")
	for _, as := range [][]string{{direct[0].String()}, {direct[1].String()}, {circuit[0].String()}} {
		ctx, cancel := fair.WithTimeout(t.Context(), 3*time.Second)
		err := stranger.Connect(network.WithAllowLimitedConn(ctx, "test"), peer.AddrInfo{ID: a.ID(), Addrs: addrs(t, as...)})
		if err == nil { // over TLS 1.3 a client is ready before the server has judged it
			_, err = stranger.NewStream(network.WithAllowLimitedConn(ctx, "test"), a.ID(), identity.StreamProtocol)
		}
		cancel()
		if err == nil {
			t.Errorf("a stranger opened a stream over %v", as)
		}
		_ = stranger.Network().ClosePeer(a.ID())
	}
	fair.Eventually(t, 2*time.Second, "no connection left", func() error {
		if c := a.h.Network().ConnsToPeer(stranger.ID()); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	if n := a.Refused()[refusals.Stranger]; n < 2 {
		t.Errorf("%d refusals are counted, want one for each transport", n)
	}
	if r := a.Refusals(); len(r) == 0 || r[0].Peer != stranger.ID() || !strings.Contains(r[0].From, "127.0.0.1") {
		t.Errorf("remembered: %+v, want the stranger with its address", r)
	}
	// A member that a does not know is a stranger to a.
	other := newKey(t)
	m.Members = append(m.Members, members.Member{Name: "other", ID: idOf(t, other)})
	o := loopbackNode(t, other, m)
	fair.Eventually(t, 5*time.Second, "reservation", reserved(o, 1))
	refuses(t, o, a.ID())
}

// refuses expects that a peer lets n in for nothing. That it refuses is known once its answer is waited for: the first stream on a path
// that has just come up is taken to be open.
func refuses(t *testing.T, n *Node, by peer.ID) {
	t.Helper()
	fair.Eventually(t, 5*time.Second, "ErrUnreachable", func() error {
		_, err := call(n, by)
		if err == nil {
			t.Error("a call was answered")
		}
		if !errors.Is(err, ErrUnreachable) {
			return fmt.Errorf("a call: %v", err)
		}
		return nil
	})
}

// At a member's address another key answers, which the membership does not know: that is distinguished from an address that
// two sites use, where another member answers.
func TestKeyDoesNotMatch(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, m := pair(t, relay)
	fresh, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), libp2p.DisableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	gone := idOf(t, newKey(t))
	m.Members = append(m.Members, members.Member{Name: "gone", ID: gone})
	a.SetMembership(m)
	for i, at := range fresh.Addrs() {
		if err := a.dialer.Dial(t.Context(), at, gone); err == nil {
			t.Fatalf("connected at %s", at)
		}
		if n := a.Refused()[refusals.Key]; n != uint64(i)+1 { //nolint:gosec // small
			t.Errorf("%d are counted after %s, want %d", n, at, i+1)
		}
	}
	r := a.Refusals()
	if len(r) == 0 || r[0].Peer != gone || !strings.Contains(r[0].From, fresh.ID().String()) {
		t.Errorf("remembered: %+v, want whose key was expected, and which one answered", r)
	}
	before := a.Refused()[refusals.Key]
	for _, at := range b.ListenAddrs() {
		if err := a.dialer.Dial(t.Context(), at, gone); err == nil {
			t.Fatalf("connected at %s", at)
		}
	}
	if n := a.Refused()[refusals.Key]; n != before {
		t.Error("another member at that address is counted as a key that does not match")
	}
}

// A quarantined member is cut off in both directions and comes back afterwards.
func TestQuarantine(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	if _, err := call(b, a.ID()); err != nil {
		t.Fatal(err)
	}
	a.Quarantine(b.ID(), time.Hour, "it sends garbage")
	if _, err := call(a, b.ID()); !errors.Is(err, members.ErrQuarantined) {
		t.Errorf("call to a quarantined peer: %v, want ErrQuarantined", err)
	}
	refuses(t, b, a.ID())
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != paths.KindNone || !strings.Contains(st.Reason, "it sends garbage") {
		t.Errorf("status %+v, want no path because of garbage", st)
	}
	a.Quarantine(b.ID(), time.Nanosecond, "")
	fair.Eventually(t, 10*time.Second, "back", func() error { _, err := call(b, a.ID()); return err })
}

// Connections that say nothing are turned away once there are too many; they do
// not keep the node from dialing.
func TestSilentConnectionsAreBounded(t *testing.T) {
	const bound, more = 1024, 50
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			c.Close()
		}
	}()
	for range bound + more {
		c, err := net.Dial("tcp4", "127.0.0.1:"+tcpPort(t, a))
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	fair.Eventually(t, 10*time.Second, "too many are closed", func() error {
		closed := 0
		for _, c := range silent {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond / 10))
			if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				closed++
			}
		}
		if closed < more {
			return fmt.Errorf("%d closed, want %d", closed, more)
		}
		return nil
	})
	if _, err := call(a, b.ID()); err != nil {
		t.Errorf("own dials beside them: %v", err)
	}
	if r := a.Refused(); r[refusals.Handshakes]+r[refusals.Address] < more {
		t.Errorf("refused by reason: %v", r)
	}
}

// Nothing of the cluster's ranges is announced, dialed or accepted.
func TestNoTunnelInTunnel(t *testing.T) {
	cluster := netip.MustParsePrefix("127.0.0.0/8")
	_, relay := relaytest.Loopback(t)
	ka, kb := newKey(t), newKey(t)
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, ka)}, {Name: "b", ID: idOf(t, kb)}}, Relays: []peer.AddrInfo{relay}}
	a := loopbackNode(t, ka, m)
	fair.Eventually(t, 5*time.Second, "reservation", reserved(a, 1))
	m.ClusterCIDRs = []netip.Prefix{cluster}
	a.SetMembership(m)
	fair.Eventually(t, 2*time.Second, "connections inside the range end", func() error {
		if c := a.h.Network().Conns(); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	if a.addrs.Dialable(endpoint.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:4001")}) {
		t.Error("an address in the cluster's range may be dialed")
	}
	c, err := net.Dial("tcp4", "127.0.0.1:"+tcpPort(t, a))
	if err == nil {
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if k, err := c.Read(make([]byte, 64)); err == nil {
			t.Errorf("accepted from inside the cluster's range and sent %d bytes", k)
		}
	}
}

func tcpPort(t *testing.T, n *Node) string {
	t.Helper()
	for _, a := range n.ListenAddrs() {
		if e, ok := endpoint.Parse(a); ok && !e.UDP {
			return fmt.Sprint(e.Addr.Port())
		}
	}
	t.Fatal("no TCP address")
	return ""
}
