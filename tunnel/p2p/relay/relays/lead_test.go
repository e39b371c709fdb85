package relays

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

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
	if d.ask(now) || d.hastened() || d.hasten(now) {
		t.Error("nothing is put off")
	}
	if d.asked() != now {
		t.Error("what is there does not stay")
	}
	d.putOff(true)
	if d.hastened() || d.hasten(now) {
		t.Error("nobody has asked since then")
	}
	if !d.ask(now+1) || !d.hastened() || d.asked() != now+1 {
		t.Error("asked without success")
	}
	d.putOff(true)
	if !d.hasten(now + 2) {
		t.Error("forgotten")
	}
	if d.hastened() || d.hasten(now+2) || d.putsOff() {
		t.Error("it was dialed")
	}
	if !d.ask(now + 3) {
		t.Error("it will be there soon")
	}
	if d.hastened() || d.ask(now+2+seenPatience) {
		t.Error("it failed")
	}
	d.ask(2 * now)
	if d.putOff(true); d.hastened() || d.asked() != 2*now {
		t.Error("what is kept is not dialed")
	}
	d.ask(2 * now)
	if d.rested(); d.hastened() || !d.putsOff() {
		t.Error("what was asked for before the rest is dialed after it")
	}
	if !d.ask(3*now) || !d.hastened() {
		t.Error("what is asked for while QUIC ends is not dialed")
	}
}

// All relays are asked to look at the UDP socket, and nothing waits where one of them sees it.
func TestAllRelaysAreAsked(t *testing.T) {
	for name, sees := range map[string]bool{"one sees it": true, "none sees it": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := &common{ctx: t.Context(), changed: &wake.All{}, Config: Config{Now: func() time.Duration { return time.Hour }}}
				there, missing := newClient(shared, peer.AddrInfo{}), newClient(shared, peer.AddrInfo{})
				if missing.demand.putOff(true); sees {
					there.lines.see(tcpConn{}, endpoint.Endpoint{UDP: true, Addr: netip.MustParseAddrPort("5.5.5.5:1")})
				}
				s := Seen{common: shared, clients: func() []*client { return []*client{there, missing} }}
				start := time.Now()
				s.AwaitUDP(t.Context())
				if waited := time.Since(start); waited != map[bool]time.Duration{false: seenPatience}[sees] {
					t.Errorf("waited %v", waited)
				}
				if !missing.demand.hastened() || there.demand.hastened() || there.demand.asked() != time.Hour || len(missing.wake) != 1 {
					t.Error("the wrong one is dialed")
				}
			})
		})
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
