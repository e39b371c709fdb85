package relays

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/who/members"
)

// circuits are what peers' circuits carry, as a test says.
type circuits map[peer.ID]Traffic

func (c circuits) Traffic() map[peer.ID]Traffic         { return c }
func (c circuits) HeardThrough(relay peer.ID) time.Time { return c[relay].Heard }
func (circuits) Conns() []network.Conn                  { return nil }
func (circuits) Has(network.Conn) bool                  { return false }
func (circuits) Improve(time.Time)                      {}
func (circuits) InUse() bool                            { return false }

// A relay is pinged when busy circuits through it fall silent, and when this host has slept; not while it is idle.
func TestWhenRelaysArePinged(t *testing.T) {
	id := newID(t)
	carried := circuits{}
	clock := time.Duration(0)
	s := New(Config{Now: func() time.Duration { return clock }, Heard: func(network.ConnMultiaddrs) time.Time { return time.Time{} },
		Members: members.NewGater(members.NewView("self", members.Membership{}), members.Rules{})})
	s.ctx, s.Peers, s.host = t.Context(), carried, &oneConn{}
	c := newClient(&s.common, peer.AddrInfo{ID: id})
	s.clients = []*client{c}
	ping, _ := c.lines.add(nil)
	w := newWatch(s)
	now := time.Unix(1e9, 0)
	look := func(what string, wantPing bool) {
		t.Helper()
		now, clock = now.Add(watchTick), clock+watchTick
		w.look(now)
		pinged := false
		select {
		case <-ping:
			pinged = true
		default:
		}
		if pinged != wantPing {
			t.Errorf("%s: pinged %t, want %t", what, pinged, wantPing)
		}
	}
	look("no circuits", false)
	carried[id] = Traffic{Bytes: 1000, Heard: now}
	look("data flow", false)
	carried[id] = Traffic{Bytes: 1500, Heard: now.Add(-quietFor), Sent: now.Add(-quietFor - time.Second/50)}
	look("an exchange is over: nothing is unanswered", false)
	heard := now
	now = now.Add(time.Minute)
	carried[id] = Traffic{Bytes: 2000, Heard: heard, Sent: now}
	for range quietFor / watchTick {
		look("data were sent a moment ago, the first in a minute", false)
	}
	look("data are unanswered", true)
	for range busyFor/watchTick + 1 {
		now, clock = now.Add(watchTick), clock+watchTick
		w.look(now)
	}
	for len(ping) > 0 {
		<-ping
	}
	look("no data for long: idle circuits", false)
	delete(carried, id)
	look("circuits are gone", false)
	clock += 2 * overslept
	look("this host has slept", true)
	look("and is awake", false)
}

// What is wanted of a relay: circuits through one that is given up continue for a while.
func TestDemand(t *testing.T) {
	var d demand
	if d.connection() || d.reservation() {
		t.Error("a new relay is wanted")
	}
	if !d.setReservation(true) || d.setReservation(true) || !d.connection() || !d.reservation() {
		t.Error("a reservation is wanted, and that is new once")
	}
	if !d.setReservation(false) || !d.connection() || d.reservation() {
		t.Error("without a reservation it stays connected")
	}
	if left := time.Until(d.due(time.Time{})); left < visitFor/2 || left > visitFor {
		t.Errorf("it stays for %v, want %v", left, visitFor)
	}
}
