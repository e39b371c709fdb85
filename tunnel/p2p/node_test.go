package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
)

func TestRelayedThenDirect(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	var mu sync.Mutex
	var events []Event
	a.SetNotify(func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	})
	eventually(t, 5*time.Second, "a's reservation", reserved(a, 1))
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if path.Kind != KindRelayed || path.Relay != relay.ID.String() {
		t.Errorf("first path %+v, want relayed by %s", path, relay.ID)
	}
	eventually(t, 10*time.Second, "a is direct", onPath(a, b.ID(), KindDirect, "tcp"))
	eventually(t, 10*time.Second, "b is direct", onPath(b, a.ID(), KindDirect, "tcp"))
	if path, err := call(b, a.ID()); err != nil || path.Transport != "tcp" {
		t.Errorf("call back over %+v: %v, want direct tcp", path, err)
	}
	eventually(t, 5*time.Second, "event", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			if e.Peer == b.ID() && e.Kind == PathChanged && e.Path.Kind == KindDirect {
				return nil
			}
		}
		return fmt.Errorf("events %+v", events)
	})
	eventually(t, 5*time.Second, "status with tcp, quic and a relayed path, a time, a round trip and no reason", func() error {
		st, ok := a.PeerStatus(b.ID())
		if !ok || len(st.All) < 3 || st.Wanted || st.Since.IsZero() || st.Reason != "" || st.Path.RTT == 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	rtt, path, err := a.Ping(t.Context(), b.ID())
	if err != nil || rtt <= 0 || path.Kind != KindDirect {
		t.Errorf("ping: %v over %+v: %v", rtt, path, err)
	}
}

// A stream stays on its path and ends in order, or with its path.
func TestStreamEnds(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, m := pair(t, relay)
	got := make(chan error, 1)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *Stream) {
		n, err := io.Copy(io.Discard, struct{ io.Reader }{s})
		if err == nil && n != 1<<20 {
			err = fmt.Errorf("%d bytes", n)
		}
		got <- err
		s.Reset()
	})
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	open := func() *Stream {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s, err := a.OpenStream(ctx, b.ID(), identity.DatagramProtocol)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if _, err := s.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("stream that was closed: %v", err)
	}
	s = open()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	s.Reset()
	if err := <-got; err == nil {
		t.Error("stream that was reset was read to its end")
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a stream that was reset can be written")
	}
	// Removing the member ends its streams and connections on both sides.
	s = open()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	without := m
	without.Members = m.Members[:1]
	a.SetMembership(without)
	if err := <-got; err == nil {
		t.Error("the removed member's stream was read to its end")
	}
	eventually(t, 2*time.Second, "disconnected", func() error {
		if n := len(a.h.Network().ConnsToPeer(b.ID())) + len(b.h.Network().ConnsToPeer(a.ID())); n > 0 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	t.Logf("cut off after %v", time.Since(start))
	if _, err := call(a, b.ID()); !errors.Is(err, ErrNotMember) {
		t.Errorf("call to a removed member: %v, want ErrNotMember", err)
	}
	if _, err := call(b, a.ID()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("call from a removed member: %v, want ErrUnreachable", err)
	}
	a.SetMembership(m)
	eventually(t, 5*time.Second, "member again", func() error { _, err := call(b, a.ID()); return err })
}

// A stranger gets no connection, directly or through the relay, although it
// knows all addresses.
func TestStrangerIsRefused(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, _, m := pair(t, relay)
	eventually(t, 5*time.Second, "reservation", reserved(a, 1))
	stranger, err := libp2p.New(libp2p.NoListenAddrs, libp2p.EnableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	direct := a.ListenAddrs()
	circuit := addrs(t, relay.Addrs[0].String()+"/p2p/"+relay.ID.String()+"/p2p-circuit")
	for _, as := range [][]string{{direct[0].String()}, {direct[1].String()}, {circuit[0].String()}} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
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
	eventually(t, 2*time.Second, "no connection left", func() error {
		if c := a.h.Network().ConnsToPeer(stranger.ID()); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	// A member that a does not know is a stranger to a.
	other := newKey(t)
	m.Members = append(m.Members, Member{"other", idOf(t, other)})
	o := loopbackNode(t, other, m)
	eventually(t, 5*time.Second, "reservation", reserved(o, 1))
	if _, err := call(o, a.ID()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("call from one a does not know: %v, want ErrUnreachable", err)
	}
}

func TestUnreachable(t *testing.T) {
	_, relay := loopbackRelay(t)
	key, gone := newKey(t), idOf(t, newKey(t))
	n := loopbackNode(t, key, Membership{Members: []Member{{"gone", gone}}, Relays: []peer.AddrInfo{relay}})
	eventually(t, 5*time.Second, "reservation", reserved(n, 1))
	_, err := call(n, gone)
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "NO_RESERVATION") {
		t.Errorf("error %v, want ErrUnreachable because of NO_RESERVATION", err)
	}
	st, _ := n.PeerStatus(gone)
	if st.Path.Kind != KindNone || !st.Wanted || !strings.Contains(st.Reason, "NO_RESERVATION") {
		t.Errorf("status %+v, want no path, wanted, with the reason", st)
	}
	if strings.Contains(st.Reason, "\n") || strings.Contains(err.Error(), "\n") {
		t.Errorf("reason %q, error %q, want one line each", st.Reason, err)
	}
	if _, err := call(n, idOf(t, newKey(t))); !errors.Is(err, ErrNotMember) {
		t.Errorf("error %v, want ErrNotMember", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := call(n, gone); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

// Relays can be exchanged at run time, and several are used at once.
func TestRelaysChange(t *testing.T) {
	_, one := loopbackRelay(t)
	_, two := loopbackRelay(t)
	a, b, m := pair(t, one)
	eventually(t, 5*time.Second, "one relay", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	m.Relays = []peer.AddrInfo{two, one}
	a.SetMembership(m)
	b.SetMembership(m)
	eventually(t, 5*time.Second, "both relays", func() error { return errors.Join(reserved(a, 2)(), reserved(b, 2)()) })
	m.Relays = []peer.AddrInfo{two}
	a.SetMembership(m)
	b.SetMembership(m)
	eventually(t, 2*time.Second, "dropped relay is disconnected", func() error {
		if c := a.h.Network().ConnsToPeer(one.ID); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	if path, err := call(a, b.ID()); err != nil || path.Relay != two.ID.String() {
		t.Errorf("path %+v: %v, want by the relay that is left", path, err)
	}
}

// A relay that is away does not keep peers from the one that is there.
func TestOneOfTwoRelaysIsAway(t *testing.T) {
	_, one := loopbackRelay(t)
	away := peer.AddrInfo{ID: idOf(t, newKey(t)), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/9", "/ip4/127.0.0.1/udp/9/quic-v1")}
	a, b, _ := pair(t, away, one)
	eventually(t, 10*time.Second, "the relay that is there", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
	eventually(t, 10*time.Second, "why the other is not", func() error {
		if r := a.Status().Relays[0]; r.Connected || !strings.Contains(r.Error, "tcp 127.0.0.1:9") || !strings.Contains(r.Error, "udp 127.0.0.1:9") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if r := a.Status().Relays[0]; strings.Contains(r.Error, "\n") {
		t.Errorf("reason %q, want one line", r.Error)
	}
}

// The causes are there from the first moment on.
func TestCheckRelaysSaysWhy(t *testing.T) {
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0") // takes QUIC's packets and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	port := silent.LocalAddr().(*net.UDPAddr).Port
	away := peer.AddrInfo{ID: idOf(t, newKey(t)), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/9", fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port))}
	_, one := loopbackRelay(t)
	n := loopbackNode(t, newKey(t), Membership{Relays: []peer.AddrInfo{away, one}})
	for _, r := range n.Status().Relays {
		if r.Error == "" && !r.Reserved {
			t.Errorf("no cause: %+v", r)
		}
	}
	eventually(t, 2*time.Second, "TCP's cause, while QUIC is still waited for", func() error {
		if r := n.Status().Relays[0]; !strings.Contains(r.Error, "refused") || strings.Contains(r.Error, "udp") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*relayDialTimeout)
	defer cancel()
	got := n.CheckRelays(ctx)
	if !got[1].Reserved || got[1].Error != "" {
		t.Errorf("the relay that is there: %+v", got[1])
	}
	if r := got[0]; r.Connected || !strings.Contains(r.Error, "tcp 127.0.0.1:9") || !strings.Contains(r.Error, fmt.Sprintf("udp 127.0.0.1:%d", port)) {
		t.Errorf("the relay that is away: %+v, want the causes of both transports", r)
	}
	cancel()
	if r := n.CheckRelays(ctx)[0]; r.Error == "" {
		t.Errorf("no cause without time: %+v", r)
	}
}

// A peer without a reservation at any relay is found by the DHT.
func TestFoundByDHT(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	eventually(t, 10*time.Second, "relay is in a's routing table", func() error {
		ai, err := a.dht.FindPeer(t.Context(), b.ID())
		if err != nil || len(ai.Addrs) == 0 {
			return fmt.Errorf("%v %w", ai, err)
		}
		return nil
	})
	eventually(t, 5*time.Second, "reached", func() error {
		a.peers.mu.Lock()
		x := a.peers.get(b.ID())
		a.peers.mu.Unlock()
		return x.reachByDHT(t.Context())
	})
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
}

// Both sides open streams at once, before there is any connection.
func TestBothAtOnce(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	var wg sync.WaitGroup
	for range 20 {
		for _, x := range []struct{ n, to *Node }{{a, b}, {b, a}} {
			wg.Go(func() {
				if _, err := call(x.n, x.to.ID()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, x := range []struct{ n, to *Node }{{a, b}, {b, a}} {
		eventually(t, 10*time.Second, "direct", onPath(x.n, x.to.ID(), KindDirect, "tcp"))
	}
}

// A peer that is there and does not speak a protocol, because its agent has only begun
// to start, is not dialed again for that: a round of dialing may take seconds.
func TestPeerThatHasYetToStart(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "direct", onPath(a, b.ID(), KindDirect, "tcp"))
	rounds := func() int {
		a.peers.mu.Lock()
		defer a.peers.mu.Unlock()
		return a.peers.get(b.ID()).rounds
	}
	before := rounds()
	const later = "/edgemesh/later/1"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := a.OpenStream(ctx, b.ID(), later)
	if none := (mss.ErrNotSupported[protocol.ID]{}); !errors.Is(err, ErrUnreachable) || !errors.As(err, &none) {
		t.Errorf("error %v, want that the protocol is not supported", err)
	}
	if now := rounds(); now != before {
		t.Errorf("%d rounds of dialing for it", now-before)
	}
	b.SetStreamHandler(later, func(_ peer.ID, s *Stream) { _, _ = io.Copy(io.Discard, s) })
	s, err := a.OpenStream(ctx, b.ID(), later)
	if err != nil {
		t.Fatalf("as soon as it speaks it: %v", err)
	}
	s.Reset()
}

// A peer nobody talks to is let go, and reached again when it is wanted.
func TestIdlePeerIsLetGo(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "direct", onPath(a, b.ID(), KindDirect, "tcp"))
	eventually(t, 10*time.Second, "let go", func() error {
		hop(a, b.ID(), time.Minute)
		if n := len(a.h.Network().ConnsToPeer(b.ID())); n > 0 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != KindNone || st.Wanted {
		t.Errorf("status %+v, want no path and not wanted", st)
	}
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
}

// Who has streams says when to let go: all paths go at once, as one event, and
// the peer is not reached again before it is wanted.
func TestLetGo(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *Stream) {
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{s})
		s.Reset()
	})
	var events eventLog
	a.SetNotify(events.add)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatalf("call over %+v: %v", path, err)
	}
	eventually(t, 10*time.Second, "three paths", func() error {
		if st, _ := a.PeerStatus(b.ID()); len(st.All) < 3 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := a.OpenStream(ctx, b.ID(), echoProto)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.OpenStream(ctx, b.ID(), identity.DatagramProtocol); err != nil { // on QUIC
		t.Fatal(err)
	}
	// The last use is long ago, at both ends: one that was used a moment ago
	// would have the paths it sees closed one by one replaced.
	age := func() {
		for n, to := range map[*Node]*Node{a: b, b: a} {
			hop(n, to.ID(), 10*time.Minute)
		}
	}
	a.LetGo(b.ID())
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind == KindNone {
		t.Error("let go although it was used a moment ago")
	}
	// A path with a stream on it stays.
	for range 4 {
		age()
		time.Sleep(ladder.ProbeBusy)
	}
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind == KindNone {
		t.Error("let go although a stream is open")
	}
	age()
	events.mu.Lock()
	before := len(events.got)
	events.mu.Unlock()
	a.LetGo(b.ID())
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != KindNone || st.Wanted || len(st.All) > 0 {
		t.Errorf("status %+v, want no path at once and not wanted", st)
	}
	if !s.Lost() {
		t.Error("a stream of a peer that was let go is not lost")
	}
	for _, n := range []*Node{a, b} {
		eventually(t, 5*time.Second, "disconnected", func() error {
			if c := n.h.Network().ConnsToPeer(map[*Node]*Node{a: b, b: a}[n].ID()); len(c) > 0 {
				return fmt.Errorf("%v", c)
			}
			return nil
		})
	}
	if _, err := call(a, b.ID()); err != nil {
		t.Errorf("call after that: %v", err)
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	var lost []string
	for _, e := range events.got[before:] {
		if strings.HasPrefix(e, PathLost.String()) {
			lost = append(lost, e)
		}
	}
	if len(lost) != 1 || lost[0] != "path lost: none " {
		t.Errorf("events %q, want one loss, to no path", lost)
	}
}

// A shunned member is cut off in both directions and comes back afterwards.
func TestShun(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
	if _, err := call(b, a.ID()); err != nil {
		t.Fatal(err)
	}
	a.Shun(b.ID(), time.Hour, "it sends garbage")
	if _, err := call(a, b.ID()); !errors.Is(err, ErrShunned) {
		t.Errorf("call to a shunned peer: %v, want ErrShunned", err)
	}
	if _, err := call(b, a.ID()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("call from a shunned peer: %v, want ErrUnreachable", err)
	}
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != KindNone || !strings.Contains(st.Reason, "it sends garbage") {
		t.Errorf("status %+v, want no path because of garbage", st)
	}
	a.Shun(b.ID(), time.Nanosecond, "")
	eventually(t, 10*time.Second, "back", func() error { _, err := call(b, a.ID()); return err })
}

// Connections that say nothing are turned away once there are too many; they do
// not keep the node from dialing.
func TestSilentConnectionsAreBounded(t *testing.T) {
	const bound, more = 1024, 50
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "reservations", func() error { return errors.Join(reserved(a, 1)(), reserved(b, 1)()) })
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
	eventually(t, 10*time.Second, "too many are closed", func() error {
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
	n := loopbackNode(t, newKey(t), Membership{})
	for _, a := range n.ListenAddrs() {
		if _, err := New(Config{Key: newKey(t), Listen: addrs(t, a.String())}); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("second node on %s: %v, want EADDRINUSE", a, err)
		}
	}
}

// Nothing of the cluster's ranges is announced, dialed or accepted.
func TestNoTunnelInTunnel(t *testing.T) {
	cluster := netip.MustParsePrefix("127.0.0.0/8")
	_, relay := loopbackRelay(t)
	ka, kb := newKey(t), newKey(t)
	m := Membership{Members: []Member{{"a", idOf(t, ka)}, {"b", idOf(t, kb)}}, Relays: []peer.AddrInfo{relay}}
	a := loopbackNode(t, ka, m)
	eventually(t, 5*time.Second, "reservation", reserved(a, 1))
	m.ClusterCIDRs = []netip.Prefix{cluster}
	a.SetMembership(m)
	eventually(t, 2*time.Second, "connections inside the range end", func() error {
		if c := a.h.Network().Conns(); len(c) > 0 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	if a.dialable(endpoint{addr: netip.MustParseAddrPort("127.0.0.1:4001")}) {
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
		if e, ok := parseEndpoint(a); ok && !e.udp {
			return fmt.Sprint(e.addr.Port())
		}
	}
	t.Fatal("no TCP address")
	return ""
}
