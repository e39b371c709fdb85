package relayservice

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/who/identity"
)

// limited is a relay with small limits, and members of it.
func limited(t *testing.T, l Limits, n int) (s *Service, relay peer.AddrInfo, members []host.Host) {
	t.Helper()
	h := newHost(t, identity.RelayMuxer(), identity.Limits{}, "/ip4/127.0.0.1/tcp/0")
	s, err := Start(Config{Host: h, Limits: l, IsMember: func(peer.ID) bool { return true }, IsKnown: func(peer.ID) bool { return true },
		Relays: func() []peer.AddrInfo { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	relay = peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}
	for range n {
		m := newHost(t, identity.Muxer(), identity.Limits{})
		m.SetStreamHandler(proto.ProtoIDv2Stop, func(s network.Stream) {
			var got pbv2.StopMessage
			_ = util.NewDelimitedReader(s, openingSize).ReadMsg(&got)
			_ = util.NewDelimitedWriter(s).WriteMsg(&pbv2.StopMessage{Type: pbv2.StopMessage_STATUS.Enum(), Status: pbv2.Status_OK.Enum()})
		})
		if err := m.Connect(t.Context(), relay); err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	return s, relay, members
}

// reserves reports whether the relay says yes; no other answer than "full" is expected.
func reserves(t *testing.T, m host.Host, relay peer.AddrInfo) bool {
	t.Helper()
	_, err := client.Reserve(t.Context(), m, relay)
	if no := (client.ReservationError{}); errors.As(err, &no) && no.Status == pbv2.Status_RESERVATION_REFUSED {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// The limits hold for all shards together, a renewal is always allowed, and whoever leaves makes room.
func TestShardsReserve(t *testing.T) {
	for name, l := range map[string]Limits{
		"in all":      {MaxReservations: 3, MaxReservationsPerIP: 9},
		"per address": {MaxReservations: 9, MaxReservationsPerIP: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, relay, members := limited(t, l, 4)
			for i, m := range members {
				if got := reserves(t, m, relay); got != (i < 3) {
					t.Errorf("member %d: %t", i, got)
				}
			}
			if !reserves(t, members[0], relay) || s.Reservations() != 3 {
				t.Errorf("not renewed; %d reservations", s.Reservations())
			}
			if err := members[0].Network().ClosePeer(relay.ID); err != nil {
				t.Fatal(err)
			}
			fair.Eventually(t, testTime, "the last has a place", fair.True(func() bool { return reserves(t, members[3], relay) }))
			if s.Reservations() != 3 || s.Reserved(members[0].ID()) || !s.Reserved(members[3].ID()) {
				t.Errorf("%d reservations", s.Reservations())
			}
		})
	}
}

// connect opens a circuit.
func connect(t *testing.T, from host.Host, relay peer.AddrInfo, to peer.ID) (network.Stream, pbv2.Status) {
	t.Helper()
	st, err := from.NewStream(t.Context(), relay.ID, proto.ProtoIDv2Hop)
	if err != nil {
		t.Fatal(err)
	}
	msg := &pbv2.HopMessage{Type: pbv2.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(peer.AddrInfo{ID: to})}
	if err := util.NewDelimitedWriter(st).WriteMsg(msg); err != nil {
		t.Fatal(err)
	}
	if err := util.NewDelimitedReader(st, openingSize).ReadMsg(msg); err != nil {
		t.Fatal(err)
	}
	return st, msg.GetStatus()
}

// A member's circuits count at either end, whichever shards they are in, until they end.
func TestShardsConnect(t *testing.T) {
	const most = 3
	s, relay, members := limited(t, Limits{MaxReservations: 9, MaxReservationsPerIP: 9, MaxCircuits: 99, MaxCircuitsPerPeer: most, BufferSize: 4096}, 6)
	for _, m := range members[1:] {
		if !reserves(t, m, relay) {
			t.Fatal("refused")
		}
	}
	want := func(from, to int, want pbv2.Status) network.Stream {
		t.Helper()
		st, got := connect(t, members[from], relay, members[to].ID())
		if got != want {
			t.Errorf("%d to %d: %v, want %v", from, to, got, want)
		}
		return st
	}
	want(1, 0, pbv2.Status_NO_RESERVATION)
	first := want(0, 1, pbv2.Status_OK)
	want(0, 2, pbv2.Status_OK)
	want(0, 3, pbv2.Status_OK)
	want(0, 4, pbv2.Status_RESOURCE_LIMIT_EXCEEDED)
	want(1, 2, pbv2.Status_OK)
	want(5, 1, pbv2.Status_OK)
	want(1, 4, pbv2.Status_RESOURCE_LIMIT_EXCEEDED)
	_ = first.Reset()
	fair.Eventually(t, testTime, "there is room again", func() error {
		if st, got := connect(t, members[0], relay, members[4].ID()); got != pbv2.Status_OK {
			_ = st.Reset()
			return errors.New(got.String())
		}
		return nil
	})
	if n := s.Circuits(); n != 5 {
		t.Errorf("%d circuits", n)
	}
}

// What is no request is refused, and holds no place.
func TestShardsRubbish(t *testing.T) {
	s, relay, members := limited(t, Limits{MaxReservations: 9, MaxReservationsPerIP: 9}, 1)
	for name, said := range map[string]string{"no message": "\x03abc", "too long": "\xff\x7f", "no type known": "\x02\x08\x63", "endless": strings.Repeat("\xff", 12)} {
		st, err := members[0].NewStream(t.Context(), relay.ID, proto.ProtoIDv2Hop)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		var msg pbv2.HopMessage
		if err := util.NewDelimitedReader(st, openingSize).ReadMsg(&msg); err == nil && msg.GetStatus() != pbv2.Status_MALFORMED_MESSAGE {
			t.Errorf("%s: %v", name, msg.GetStatus())
		}
		_ = st.Reset()
	}
	if n := len(s.relay.roll.from); n != 0 {
		t.Errorf("%d are on the roll", n)
	}
}

// Reservations count once for a peer, and once for the address where it is now; circuits at both ends.
func TestRoll(t *testing.T) {
	r := newRoll(Limits{MaxReservations: 3, MaxReservationsPerIP: 2, MaxCircuitsPerPeer: 1})
	at := func(n int) ma.Multiaddr { return ma.StringCast(fmt.Sprintf("/ip4/5.5.5.%d/tcp/1", n)) }
	for _, c := range []struct {
		who  peer.ID
		from int
		want bool
	}{{"a", 1, true}, {"b", 1, true}, {"c", 1, false}, {"c", 2, true}, {"d", 3, false}, {"b", 1, true}, {"c", 1, false}, {"b", 2, true}, {"c", 1, true}} {
		if got := r.enter(c.who, at(c.from), false); got != c.want {
			t.Errorf("%s from %d: %t", c.who, c.from, got)
		}
	}
	if r.leave("d") || !r.leave("a") || r.leave("a") {
		t.Error("who held a reservation is not known")
	}
	r.leave("b")
	r.leave("c")
	if r.enter("e", ma.StringCast("/dns4/example.org/tcp/1"), false) || len(r.from)+len(r.at) != 0 {
		t.Errorf("%v, %v are left", r.from, r.at)
	}
	var here netip.Prefix
	if !r.connect("a", "b", here) || r.connect("c", "b", here) || r.connect("a", "c", here) || !r.connect("c", "d", here) {
		t.Error("circuits are not counted at both ends")
	}
	r.disconnect("a", "b", here)
	r.disconnect("c", "d", here)
	if len(r.circuits)+len(r.opened)+r.open != 0 {
		t.Errorf("%v are left", r.circuits)
	}
}

// The same of reservations, for whose keys nobody vouches; an IPv6 /56 is one address. Members that are listed get all there are.
func TestManyKeysReserve(t *testing.T) {
	for name, from := range map[string]func(int) string{
		"one address":    func(int) string { return "/ip4/203.0.113.1/tcp/1" },
		"five addresses": func(i int) string { return fmt.Sprintf("/ip4/203.0.113.%d/tcp/1", i%5) },
		"a /56":          func(i int) string { return fmt.Sprintf("/ip6/2001:db8:0:%x::%x/tcp/1", i%256, i) },
	} {
		for _, free := range []bool{true, false} {
			l := Limits{MaxReservations: 400, MaxReservationsPerIP: 400}
			r := newRoll(l)
			for i := range 3 * l.MaxReservations {
				r.enter(peer.ID(fmt.Sprint("key", i)), ma.StringCast(from(i)), free)
			}
			taken := len(r.from)
			if free && (taken < l.MaxReservations*3/4 || taken >= l.MaxReservations) || !free && taken < l.MaxReservations {
				t.Errorf("%s, free %t: %d reservations of %d", name, free, taken, l.MaxReservations)
			}
			for i := range 4 {
				if got := r.enter(peer.ID(fmt.Sprint("honest", i)), ma.StringCast(fmt.Sprintf("/ip4/198.51.100.%d/tcp/1", i)), free); got != free {
					t.Errorf("%s, free %t: an honest member's reservation: %t", name, free, got)
				}
			}
		}
	}
}

// With a join secret keys are free: however many of them one address has, or a few addresses have, they leave circuits to others. An
// address that is alone gets three quarters.
func TestManyKeysOfOneAddress(t *testing.T) {
	for _, addresses := range []int{1, 5} {
		l := Limits{MaxReservations: 100, MaxReservationsPerIP: 100, MaxCircuits: 800, MaxCircuitsPerPeer: 100}
		r := newRoll(l)
		at := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", i)) }
		taken := 0
		for range 3 {
			for i := range 25 * 100 {
				if r.connect(peer.ID(fmt.Sprint("from", i%25)), peer.ID(fmt.Sprint("to", i%100)), at(i%addresses)) {
					taken++
				}
			}
		}
		if taken < l.MaxCircuits*3/4 || taken >= l.MaxCircuits {
			t.Errorf("%d addresses hold %d circuits of %d", addresses, taken, l.MaxCircuits)
		}
		for i := range 4 {
			if !r.connect(peer.ID(fmt.Sprint("honest", i)), "to-honest", at(200+i)) {
				t.Errorf("%d addresses hold %d circuits, and an honest member gets none", addresses, taken)
			}
		}
	}
}
