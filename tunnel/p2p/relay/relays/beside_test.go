package relays

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// QUIC beside TCP stays for a while after it was needed.
func TestRest(t *testing.T) {
	const now = time.Hour
	const last = now + 2 + quicRest
	var r rest
	for _, c := range []struct {
		at, asked time.Duration
		inUse     bool
		want      time.Duration
	}{
		{now, 0, true, idleRest}, {now + 1, 0, true, idleRest}, {now + 2, now + 2, true, idleRest}, {last - 1, now + 2, true, 1},
		{last, now + 2, true, 0}, {last, last, true, idleRest}, {last + 5, last, false, idleRest - 5}, {last + idleRest, last, false, 0},
		{last + idleRest, last + 6, false, 6}, {last + idleRest + 6, last + 6, false, 0},
	} {
		if got := r.left(c.at, c.asked, c.inUse); got != c.want {
			t.Errorf("at %v, asked for at %v, in use %v: %v, want %v", c.at, c.asked, c.inUse, got, c.want)
		}
	}
}

// Between two attempts to punch the same path QUIC stays, so relays still see the UDP socket.
func TestRestOutlastsPauses(t *testing.T) {
	if quicRest <= ladder.LongestPause {
		t.Errorf("QUIC is closed after %v, attempts are up to %v apart", quicRest, ladder.LongestPause)
	}
}

// Each transport that the relay has is dialed, however many connections there are over the other one.
func TestIncomplete(t *testing.T) {
	const tcp, tcp6, quic = "/ip4/192.0.2.1/tcp/9", "/ip6/2001:db8::1/tcp/9", "/ip4/192.0.2.1/udp/9/quic-v1"
	for name, c := range map[string]struct {
		configured, conns []string
		want              bool
	}{
		"complete":        {[]string{tcp, quic}, []string{tcp, quic}, false},
		"TCP alone":       {[]string{tcp, quic}, []string{tcp}, true},
		"QUIC alone":      {[]string{tcp, quic}, []string{quic}, true},
		"TCP twice":       {[]string{tcp, tcp6, quic}, []string{tcp, tcp6}, true},
		"both, TCP twice": {[]string{tcp, tcp6, quic}, []string{tcp, tcp6, quic}, false},
		"no QUIC there":   {[]string{tcp, tcp6}, []string{tcp}, false},
		"no TCP there":    {[]string{quic}, []string{quic}, false},
	} {
		var info peer.AddrInfo
		for _, a := range c.configured {
			info.Addrs = append(info.Addrs, ma.StringCast(a))
		}
		var conns []network.Conn
		for _, a := range c.conns {
			conns = append(conns, &twoEnds{local: ma.StringCast("/ip4/192.0.2.2/tcp/1"), remote: ma.StringCast(a)})
		}
		s := &session{c: newClient(&common{ctx: t.Context(), Config: Config{Dialer: listens{}}}, info)}
		if got := s.incomplete(conns); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// listens is a Dialer that listens on port 1.
type listens struct{ Dialer }

func (listens) Proxied(network.ConnMultiaddrs) bool { return false }
func (listens) ListensOn(e endpoint.Endpoint) bool  { return e.Addr.Port() == 1 }

// twoEnds is a connection with streams.
type twoEnds struct {
	network.Conn
	local, remote ma.Multiaddr
	streams       []network.Stream
	closed        bool
}

func (c *twoEnds) LocalMultiaddr() ma.Multiaddr  { return c.local }
func (c *twoEnds) RemoteMultiaddr() ma.Multiaddr { return c.remote }
func (c *twoEnds) GetStreams() []network.Stream  { return c.streams }
func (c *twoEnds) IsClosed() bool                { return c.closed }
func (c *twoEnds) Close() error                  { c.closed = true; return nil }

type streamOf struct {
	network.Stream
	of protocol.ID
}

func (s streamOf) Protocol() protocol.ID { return s.of }

// QUIC is closed only beside TCP from a listening port, a while after the last traffic, and with nothing on it.
func TestThin(t *testing.T) {
	tcp := func(port int) *twoEnds {
		return &twoEnds{local: ma.StringCast(fmt.Sprintf("/ip4/192.0.2.2/tcp/%d", port)), remote: ma.StringCast("/ip4/192.0.2.1/tcp/9")}
	}
	quic := func(on ...protocol.ID) *twoEnds {
		c := &twoEnds{local: ma.StringCast("/ip4/192.0.2.2/udp/1/quic-v1"), remote: ma.StringCast("/ip4/192.0.2.1/udp/9/quic-v1")}
		for _, of := range on {
			c.streams = append(c.streams, streamOf{of: of})
		}
		return c
	}
	const circuit protocol.ID = "/libp2p/circuit/relay/0.2.0/stop"
	for name, c := range map[string]struct {
		conns   []*twoEnds
		members int
		after   time.Duration
		closes  bool
		begins  protocol.ID // on QUIC, when it is about to be closed
	}{
		"unused":                 {[]*twoEnds{tcp(1), quic()}, 100, idleRest, true, ""},
		"too early":              {[]*twoEnds{tcp(1), quic()}, 100, idleRest - 1, false, ""},
		"members are few":        {[]*twoEnds{tcp(1), quic()}, 3, idleRest, true, ""},
		"TCP from another port":  {[]*twoEnds{tcp(2), quic()}, 100, idleRest, false, ""},
		"alone":                  {[]*twoEnds{quic()}, 100, idleRest, false, ""},
		"a circuit runs over it": {[]*twoEnds{tcp(1), quic(circuit)}, 100, idleRest, false, ""},
		"the DHT's stream":       {[]*twoEnds{tcp(1), quic(identity.DHTPrefix + "/kad/1.0.0")}, 100, idleRest, true, ""},
		"a circuit begins":       {[]*twoEnds{tcp(1), quic()}, 100, idleRest, false, circuit},
	} {
		t.Run(name, func(t *testing.T) {
			relay := peer.AddrInfo{ID: newID(t), Addrs: []ma.Multiaddr{ma.StringCast("/ip4/192.0.2.1/udp/9/quic-v1")}}
			m := members.Membership{Relays: []peer.AddrInfo{relay}}
			for i := range c.members {
				m.Members = append(m.Members, members.Member{Name: fmt.Sprint(i), ID: peer.ID(fmt.Sprint(i))})
			}
			now := time.Hour
			var s *session
			spawn := func(f func()) bool {
				s.c.demand.ask(now, false)
				for _, x := range c.conns {
					if c.begins != "" && overUDP(x) {
						x.streams = append(x.streams, streamOf{of: c.begins})
					}
				}
				f()
				return true
			}
			s = &session{c: newClient(&common{ctx: t.Context(), host: &oneConn{}, Peers: circuits{}, Config: Config{Dialer: listens{}, Now: func() time.Duration { return now },
				Members: members.NewGater(members.NewView("self", m), members.Rules{}), Spawn: spawn}}, relay)}
			var conns []network.Conn
			for _, x := range c.conns {
				conns = append(conns, x)
			}
			s.held = conns
			s.thin(conns)
			if s.thin(conns); slices.ContainsFunc(c.conns, func(x *twoEnds) bool { return x.closed }) {
				t.Fatal("closed when it was seen first")
			}
			now += c.after
			s.thin(conns)
			for _, x := range c.conns {
				if want := c.closes && overUDP(x); x.closed != want {
					t.Errorf("%v closed: %v", x.remote, x.closed)
				}
			}
			if c.closes && !s.c.demand.hastened() {
				t.Error("what was asked for during the end is not dialed")
			}
			if held := len(conns) - map[bool]int{true: 1}[c.closes || c.begins != ""]; len(s.held) != held {
				t.Errorf("%d of %d connections still count for the reservation", len(s.held), len(conns))
			}
			if s.spare(conns) && s.rest.left(now, 0, false) <= 0 {
				t.Error("it is looked at all the time")
			}
		})
	}
}
