package relays

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// Where TCP is first, QUIC follows when the relay does not answer over TCP in time, or TCP fails that never got through.
func TestTCPFirst(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		works    bool
		accepted time.Duration // 0: never
		ended    time.Duration // 0: never
		err      error
		want     bool
		after    time.Duration
	}{
		"there":                     {false, 0, time.Millisecond, nil, false, time.Millisecond},
		"waits for its turn":        {false, time.Millisecond, 0, nil, false, time.Millisecond},
		"its turn does not come":    {false, time.Millisecond, time.Second, failed, false, time.Millisecond},
		"blocked":                   {false, 0, 0, nil, true, tcpHead},
		"blocked now":               {true, 0, 0, nil, true, tcpHead},
		"refused":                   {false, 0, time.Millisecond, failed, true, time.Millisecond},
		"refused: relay is stopped": {true, 0, time.Millisecond, failed, false, time.Millisecond},
		"refused after a long time": {true, 0, 2 * tcpHead, failed, true, tcpHead},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newTCPFirst(c.works, 1)
				if c.accepted > 0 {
					time.AfterFunc(c.accepted, f.accept)
				}
				if c.ended > 0 {
					time.AfterFunc(c.ended, func() { f.ended(c.err) })
				}
				start := time.Now()
				got := f.wait(t.Context())
				if took := time.Since(start); got != c.want || took != c.after {
					t.Errorf("%t after %v, want %t after %v", got, took, c.want, c.after)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestTCPFirstEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if newTCPFirst(false, 1).wait(ctx) {
		t.Error("dials after the end")
	}
}

// Both transports are dialed side by side every fourth time that TCP fails, and always where it never got through.
func TestLead(t *testing.T) {
	var l lead
	for i, want := range []bool{false, true, true, true, true} {
		if l.both() != want {
			t.Errorf("never there, round %d: %t", i, !want)
		}
		l.ended(false)
	}
	l.ended(true)
	for i, want := range []bool{false, false, false, true, false} {
		if l.both() != want {
			t.Errorf("there once, round %d: %t", i, !want)
		}
		l.ended(false)
	}
}

// QUIC that is put off is dialed when punching asks for it, and others may wait for it as well.
func TestAsk(t *testing.T) {
	const now = time.Hour
	var d demand
	if d.ask(now, false) || d.hastened() || d.hasten() {
		t.Error("nothing is put off")
	}
	if d.asked() != now {
		t.Error("what is there does not stay")
	}
	d.putOff(true)
	if d.hastened() || d.hasten() {
		t.Error("nobody has asked since then")
	}
	if !d.ask(now+1, false) || !d.hastened() || d.asked() != now+1 {
		t.Error("asked without success")
	}
	d.putOff(true)
	if !d.hasten() {
		t.Error("forgotten")
	}
	if d.hastened() || d.hasten() || d.putsOff() {
		t.Error("it was dialed")
	}
	if !d.ask(now+3, true) || d.hastened() {
		t.Error("it will be there soon")
	}
	if d.dialed(now + 9); d.hurries() || d.ask(now+8, true) {
		t.Error("the IP version that lacks was dialed without success")
	}
	if !d.ask(now+9, true) || !d.hasten() {
		t.Error("the IP version that lacks is not dialed again")
	}
	d.dialed(0)
	d.ask(2*now, false)
	if d.putOff(true); d.hastened() || d.asked() != 2*now {
		t.Error("what is kept is not dialed")
	}
	d.ask(2*now, false)
	if d.rested(); d.hastened() || !d.putsOff() {
		t.Error("what was asked for before the rest is dialed after it")
	}
	if !d.ask(3*now, false) || !d.hastened() {
		t.Error("what is asked for while QUIC ends is not dialed")
	}
}

// connsOf is a host with connections.
type connsOf struct {
	host.Host
	of netOfAll
}

type netOfAll struct {
	network.Network
	all map[peer.ID][]network.Conn
}

func (h connsOf) Network() network.Network              { return h.of }
func (n netOfAll) ConnsToPeer(p peer.ID) []network.Conn { return n.all[p] }

// All relays are asked to look at the UDP socket, those that lack an IP version over that, too, and nothing waits where one of them
// sees it over each IP version that may come.
func TestAllRelaysAreAsked(t *testing.T) {
	const v4, v6 = "/ip4/192.0.2.1/udp/9/quic-v1", "/ip6/2001:db8::1/udp/9/quic-v1"
	for name, x := range map[string]struct {
		sees, lacks string // by one relay; in which another one lacks QUIC
		put         bool   // QUIC is put off there
		path        bool   // its connections are a member's paths: nobody wants it as a relay
		asked, wait bool
	}{
		"one sees it":                     {v4, v4, true, false, true, false},
		"none sees it":                    {"", v4, true, false, true, true},
		"one sees it over IPv4 alone":     {v4, v6, true, false, true, true},
		"an IP version lacks":             {v4, v6, false, false, true, true},
		"nobody would dial it":            {v4, v6, false, true, false, false},
		"it does not, as far as is known": {v4, v4, false, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := connsOf{of: netOfAll{all: make(map[peer.ID][]network.Conn)}}
				shared := &common{ctx: t.Context(), host: h, changed: &wake.All{}, Config: Config{Dialer: listens{}, Now: func() time.Duration { return time.Hour }}}
				at := func(id peer.ID, addrs ...string) *client {
					info := peer.AddrInfo{ID: id}
					for _, a := range addrs {
						info.Addrs = append(info.Addrs, ma.StringCast(a))
					}
					return newClient(shared, info)
				}
				connect := func(c *client, a string) {
					conn := &twoEnds{local: ma.StringCast("/ip4/192.0.2.2/udp/1/quic-v1"), remote: ma.StringCast(a)}
					h.of.all[c.info.ID] = append(h.of.all[c.info.ID], conn)
					c.lines.see(conn, endpoint.Endpoint{UDP: true, Addr: netip.MustParseAddrPort("5.5.5.5:1")})
				}
				there, missing := at("there"), at("missing", v4)
				if x.sees != "" {
					connect(there, x.sees)
				}
				switch {
				case x.put:
					missing = at("missing", x.lacks)
					missing.demand.putOff(true)
				case x.lacks == v6:
					missing = at("missing", v4, v6)
					connect(missing, v4)
				default:
					connect(missing, v4)
				}
				missing.demand.setReservation(!x.path)
				s := Seen{common: shared, clients: func() []*client { return []*client{there, missing} }}
				start := time.Now()
				s.AwaitUDP(t.Context())
				if waited := time.Since(start); waited != map[bool]time.Duration{true: seenPatience}[x.wait] {
					t.Errorf("waited %v", waited)
				}
				if missing.demand.hastened() != x.asked || there.demand.hastened() || there.demand.asked() != time.Hour || (len(missing.wake) == 1) != x.asked {
					t.Error("the wrong one is dialed")
				}
			})
		})
	}
}

// An IP version that was dialed with success is dialed again when it is lost, and only one that was dialed without success has to wait.
func TestLostVersionIsDialedAgain(t *testing.T) {
	const v4, v6 = "/ip4/192.0.2.1/udp/9/quic-v1", "/ip6/2001:db8::1/udp/9/quic-v1"
	h := connsOf{of: netOfAll{all: make(map[peer.ID][]network.Conn)}}
	shared := &common{ctx: t.Context(), host: h, Config: Config{Dialer: listens{}, Now: func() time.Duration { return time.Hour }}}
	c := newClient(shared, peer.AddrInfo{ID: "relay", Addrs: []ma.Multiaddr{ma.StringCast(v4), ma.StringCast(v6)}})
	s := &session{c: c}
	conn := func(a string) network.Conn {
		return &twoEnds{local: ma.StringCast("/ip4/192.0.2.2/udp/1/quic-v1"), remote: ma.StringCast(a)}
	}
	first, second := conn(v4), conn(v6)
	dial := func(conns ...network.Conn) {
		t.Helper()
		if !c.demand.ask(time.Hour, true) || !c.demand.hasten() {
			t.Fatal("not dialed")
		}
		h.of.all["relay"] = conns
		s.dialed()
	}
	dial(first)
	if c.demand.ask(time.Hour+1, true) {
		t.Error("dialed without success, and again a moment later")
	}
	c.demand.dialed(0)
	dial(first, second)
	if !c.demand.ask(time.Hour+1, true) {
		t.Error("dialed with success, and not again")
	}
	c.demand.dialed(2 * time.Hour)
	s.lost([]network.Conn{first, second}, []network.Conn{first})
	if !c.demand.ask(time.Hour+1, true) {
		t.Error("not dialed again after the loss")
	}
	c.demand.ended()
	c.demand.dialed(2 * time.Hour)
	if s.lost([]network.Conn{first}, []network.Conn{first}); c.demand.ask(time.Hour+1, true) {
		t.Error("nothing was lost, and it is dialed")
	}
}

// An IP version that was dialed without success, for packets that were lost maybe, is dialed again soon, and then later and later.
func TestVainDialIsRepeated(t *testing.T) {
	const v4, v6 = "/ip4/192.0.2.1/udp/9/quic-v1", "/ip6/2001:db8::1/udp/9/quic-v1"
	now := time.Hour
	h := connsOf{of: netOfAll{all: map[peer.ID][]network.Conn{"relay": {
		&twoEnds{local: ma.StringCast("/ip4/192.0.2.2/udp/1/quic-v1"), remote: ma.StringCast(v4)}}}}}
	shared := &common{ctx: t.Context(), host: h, Config: Config{Dialer: listens{}, Now: func() time.Duration { return now }}}
	c := newClient(shared, peer.AddrInfo{ID: "relay", Addrs: []ma.Multiaddr{ma.StringCast(v4), ma.StringCast(v6)}})
	s := &session{c: c}
	var pauses []time.Duration
	for range 12 {
		began := now
		for !c.demand.ask(now, true) || !c.demand.hasten() {
			now += time.Second
		}
		pauses = append(pauses, now-began)
		s.dialed()
	}
	if pauses[0] != 0 || pauses[1] != firstVain || pauses[2] != 2*firstVain || pauses[11] != redialAtMost {
		t.Errorf("dialed after %v", pauses)
	}
	s.redialMissing()
	if !c.demand.ask(now, true) {
		t.Error("not dialed, though another uplink may be there")
	}
}

// A UDP socket that was not looked at for a while may have another port; that is no new place.
func TestUnseen(t *testing.T) {
	at := func(udp bool, a string) endpoint.Endpoint {
		return endpoint.Endpoint{UDP: udp, Addr: netip.MustParseAddrPort(a)}
	}
	tcp, udp, other, away := at(false, "5.5.5.5:1"), at(true, "5.5.5.5:1"), at(true, "5.5.5.5:2"), at(true, "5.5.5.6:1")
	for name, c := range map[string]struct {
		seen, last  []endpoint.Endpoint
		asked       bool
		news, moved bool
	}{
		"the same":               {[]endpoint.Endpoint{tcp}, []endpoint.Endpoint{tcp, udp}, false, false, false},
		"looked at":              {[]endpoint.Endpoint{tcp, udp}, []endpoint.Endpoint{tcp}, true, true, false},
		"another port":           {[]endpoint.Endpoint{tcp, other}, []endpoint.Endpoint{tcp, udp}, true, true, false},
		"another port, unasked":  {[]endpoint.Endpoint{tcp, other}, []endpoint.Endpoint{tcp, udp}, false, true, true},
		"another address":        {[]endpoint.Endpoint{tcp, away}, []endpoint.Endpoint{tcp, udp}, true, true, true},
		"another port, over TCP": {[]endpoint.Endpoint{at(false, "5.5.5.5:9")}, []endpoint.Endpoint{tcp}, true, true, true},
	} {
		if news, moved := unseen(c.seen, c.last, c.asked); news != c.news || moved != c.moved {
			t.Errorf("%s: %v, %v", name, news, moved)
		}
	}
}
