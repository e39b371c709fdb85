package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/who/identity"
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
