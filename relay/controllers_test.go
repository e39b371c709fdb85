package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

// withController is a relay of one member that knows a controller, which holds a reservation.
func withController(t *testing.T) (v *server, member, controller node) {
	t.Helper()
	member, controller = newNode(t), newNode(t)
	s := state(member)
	s.Controllers = []mesh.PeerID{mesh.PeerID(controller.ID().String())}
	v = newTestServer(t, testConfig(), s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for _, n := range []node{controller, member} {
		if err := n.reserve(v, "tcp"); err != nil {
			t.Fatal(err)
		}
	}
	return v, member, controller
}

// newNodeAt is a node whose connections come from addr.
func newNodeAt(t *testing.T, addr string) node {
	t.Helper()
	key, _ := keytest.New(t)
	from := tcp.WithDialerForAddr(func(ma.Multiaddr) (tcp.ContextDialer, error) {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}, nil
	})
	return newNodeWithKey(t, key, libp2p.Transport(tcp.NewTCPTransport, from))
}

// A controller whose pod is on the relay's node comes from its pod's address and is served; members, other relays and nodes that are not yet
// members are refused there, and told why if the membership lists them. The address is given to nobody.
func TestControllerOnTheRelaysNode(t *testing.T) {
	const pod = "127.0.9.1"
	controller, member, other, waiting := newNodeAt(t, pod), newNodeAt(t, pod), newNodeAt(t, pod), newNodeAt(t, pod)
	s := state(member)
	s.PodCIDRs = append(s.PodCIDRs, netip.MustParsePrefix("127.0.9.0/24"))
	s.Controllers = []mesh.PeerID{mesh.PeerID(controller.ID().String())}
	s.Relays = []mesh.Relay{{PeerID: mesh.PeerID(other.ID().String()), Addrs: []string{"/ip4/5.5.5.5/tcp/4470"}}}
	v := newTestServer(t, testConfig(), s)
	if err := controller.reserve(v, "tcp"); err != nil {
		t.Fatalf("the controller, from a pod of the relay's node: %v", err)
	}
	for _, c := range []struct {
		name string
		node
		told error
	}{{"a member", member, conns.ErrInside}, {"another relay", other, conns.ErrInside}, {"a peer that the membership does not list", waiting, nil}} {
		var told atomic.Pointer[error]
		c.node.Network().Notify(&network.NotifyBundle{DisconnectedF: func(_ network.Network, conn network.Conn) {
			if why := conns.Told(conn); why != nil {
				told.Store(&why)
			}
		}})
		// The reason may get lost, as where the kernel resets a connection with data that nobody has read: whoever is refused tries again.
		try := func() error {
			if c.node.reserve(v, "tcp") == nil {
				return errors.New("a reservation from inside the pod network")
			}
			if why := told.Load(); c.told != nil && (why == nil || *why != c.told) { //nolint:errorlint // nothing wraps it
				return fmt.Errorf("not told %w", c.told)
			} else if c.told == nil && why != nil {
				return fmt.Errorf("told %w", *why)
			}
			return nil
		}
		fair.Eventually(t, deadline, c.name+" is refused", try)
	}
	if r := v.refused.Recent(); len(r) != 3 || slices.ContainsFunc(r, func(r refusals.Refusal) bool { return r.Reason != refusals.Inside }) {
		t.Errorf("refused: %v", r)
	}
	for _, a := range v.host.Peerstore().Addrs(controller.ID()) {
		if !v.gater.View().Outside(a) {
			t.Errorf("the relay keeps %s of the controller, which others would learn", a)
		}
	}
	asks := newNode(t) // from outside
	if st, err := asks.dialThrough(v, controller.ID()); err != nil {
		t.Errorf("an edge reaches the controller: %v", err)
	} else {
		st.Reset()
	}
	s.Controllers = nil
	if err := v.setMembership(s); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "the former controller is gone", fair.True(func() bool { return len(v.host.Network().ConnsToPeer(controller.ID())) == 0 }))
}

// A stranger reaches a controller on one circuit, and nothing else: no reservation, no member, no second circuit, and
// learns no protocol but the one that it proposed.
func TestStrangerAsksController(t *testing.T) {
	v, member, controller := withController(t)
	stranger := newNode(t)
	if err := stranger.reserve(v, "tcp"); err == nil {
		t.Error("a stranger got a reservation")
	}
	if _, err := stranger.dialThrough(v, member.ID()); err == nil {
		t.Error("a stranger reached a member")
	}
	s, err := stranger.dialThrough(v, controller.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if protos, _ := stranger.Peerstore().GetProtocols(v.host.ID()); len(protos) > 1 { // the one that it proposed
		t.Errorf("the stranger learned %v", protos)
	}
	if err := stranger.Network().ClosePeer(controller.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.dialThrough(v, controller.ID()); err == nil {
		t.Error("a second circuit on one connection")
	}
	// A member has as many as it wants.
	for range 2 {
		if _, err := member.dialThrough(v, controller.ID()); err != nil {
			t.Errorf("the member: %v", err)
		}
		if err := member.Network().ClosePeer(controller.ID()); err != nil {
			t.Fatal(err)
		}
	}
}

// What a stranger's circuit carries is bounded.
func TestStrangersCircuitIsSmall(t *testing.T) {
	v, member, controller := withController(t)
	send := func(from node) error {
		s, err := from.dialThrough(v, controller.ID())
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(s, bytes.NewReader(make([]byte, 2*gate.CircuitData))) }()
		_, err = io.CopyN(io.Discard, s, 2*gate.CircuitData)
		return err
	}
	if err := send(member); err != nil {
		t.Errorf("the control, a member's: %v", err)
	}
	if err := send(newNode(t)); err == nil {
		t.Errorf("a stranger's circuit carried %d bytes", 2*gate.CircuitData)
	}
}

// A stranger's connection ends by itself; a membership that changes meanwhile does not end it, and one that bans it does.
func TestStrangerLeaves(t *testing.T) {
	t.Parallel()
	v, member, controller := withController(t)
	s := state(member)
	s.Controllers = []mesh.PeerID{mesh.PeerID(controller.ID().String())}
	stranger, thief := newNode(t), newNode(t)
	for _, n := range []node{stranger, thief} {
		if err := n.Connect(n.ctx(), v.info("tcp")); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	s.Banned = []string{thief.ID().String()}
	if err := v.setMembership(s); err != nil {
		t.Fatal(err)
	}
	here := func(n node) bool { return len(v.host.Network().ConnsToPeer(n.ID())) > 0 }
	fair.Eventually(t, deadline, "the banned one is gone", fair.True(func() bool { return !here(thief) }))
	if !here(stranger) {
		t.Error("the other one is gone, too")
	}
	fair.Eventually(t, time.Minute, "a stranger's time is over", fair.True(func() bool { return !here(stranger) }))
	t.Logf("gone after %v", time.Since(start))
	if !here(member) || !here(controller) {
		t.Error("so are members")
	}
	// Without controllers nobody visits.
	s.Controllers = nil
	if err := v.setMembership(s); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "the former controller is gone", fair.True(func() bool { return !here(controller) }))
	other := newNode(t)
	_ = other.Connect(other.ctx(), v.info("tcp"))
	fair.Eventually(t, deadline, "a stranger is disconnected", fair.True(func() bool { return !here(other) }))
}

// A controller learns whether a member is connected, and nothing more; a stranger learns nothing.
func TestControllerAsksWhoIsHere(t *testing.T) {
	v, member, controller := withController(t)
	query := func(who node, of peer.ID) string {
		t.Helper()
		st, err := who.NewStream(who.ctx(), v.host.ID(), identity.SeenProtocol)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = st.Reset() }()
		_ = st.SetDeadline(time.Now().Add(deadline))
		if _, err := io.WriteString(st, of.String()+"\n"); err != nil {
			return err.Error()
		}
		line, err := bufio.NewReader(st).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(line, "\n")
	}
	if got := query(controller, member.ID()); got != identity.Here {
		t.Errorf("of a member that is here: %q", got)
	}
	if got := query(member, member.ID()); !strings.Contains(got, "/ip4/") {
		t.Errorf("a member asks: %q", got)
	}
	if err := member.Close(); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "the relay says that the member is not here", fair.True(func() bool { return query(controller, member.ID()) == identity.Away }))
	if got := query(controller, newNode(t).ID()); got == identity.Here || got == identity.Away {
		t.Errorf("of a stranger: %q", got)
	}
	stranger := newNode(t)
	if err := stranger.Connect(stranger.ctx(), v.info("tcp")); err != nil {
		t.Fatal(err)
	}
	if got := query(stranger, member.ID()); got == identity.Here || got == identity.Away {
		t.Errorf("a stranger asks: %q", got)
	}
}
