package targets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/endpoint"
)

func at(udp bool, s string) endpoint.Endpoint {
	return endpoint.Endpoint{UDP: udp, Addr: netip.MustParseAddrPort(s)}
}

// guard is one on 192.168.1.0/24, with a clock that is set by hand.
func guard() (*Guard, *time.Duration) {
	now := new(time.Duration)
	lan := netip.MustParsePrefix("192.168.1.0/24")
	return New(Config{Near: lan.Contains, Witness: func(context.Context, peer.ID) [][]endpoint.Endpoint { return nil }, Now: func() time.Duration { return *now }, Public: endpoint.IsPublic,
		Name: func(p peer.ID) string { return string(p) }, Log: slog.New(slog.DiscardHandler)}), now
}

func TestRules(t *testing.T) {
	g, _ := guard()
	g.Seen("p", [][]endpoint.Endpoint{{at(true, "9.9.9.9:443")}, {at(false, "9.9.9.9:4001")}})
	g.SetProved(func(p peer.ID) []netip.Addr {
		if p == "p" {
			return []netip.Addr{netip.MustParseAddr("10.1.2.3")}
		}
		return nil
	})
	for _, c := range []struct {
		p    peer.ID
		e    endpoint.Endpoint
		want error
	}{
		{"p", at(true, "9.9.9.9:443"), nil}, // exactly there a relay sees it
		{"p", at(false, "9.9.9.9:443"), ErrPort},
		{"q", at(true, "9.9.9.9:443"), ErrPort},
		{"p", at(false, "8.8.8.8:53"), ErrPort},
		{"p", at(false, "8.8.8.8:5300"), nil},
		{"p", at(false, "192.168.1.7:4001"), nil},
		{"p", at(false, "192.168.1.7:22"), ErrPort},
		{"p", at(false, "192.168.2.7:4001"), ErrPrivate},
		{"p", at(false, "10.1.2.3:4001"), nil}, // a LAN probe came back from there
		{"q", at(false, "10.1.2.3:4001"), ErrPrivate},
		{"p", at(true, "100.64.1.1:4001"), ErrPrivate},
		{"p", at(true, "[fd00::1]:4001"), ErrPrivate},
		{"p", at(true, "[2a00::1]:4001"), nil},
	} {
		if err := g.Check(c.p, c.e); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s of %s: %v, want %v", c.e, c.p, err, c.want)
		}
		if _, err := g.Take(c.p, c.e, 1000); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("take %s of %s: %v, want %v", c.e, c.p, err, c.want)
		}
	}
	if r := g.Refused(); r["target_port"] != 4 || r["target_private"] != 4 || r["target_budget"] != 0 {
		t.Errorf("counted %v", r)
	}
}

// What is known to be the peer's is free, whoever knows it; nothing else is.
func TestOwnAddressesAreFree(t *testing.T) {
	g, now := guard()
	mine := at(true, "9.9.9.9:4001")
	tries := func() (n int) {
		for range 100 {
			if most, err := g.Take("p", mine, Budget); err == nil && most == 0 {
				n++
			}
		}
		return n
	}
	if n := tries(); n != 0 {
		t.Errorf("%d free dials of an unknown address", n)
	}
	g.Seen("p", [][]endpoint.Endpoint{{mine}})
	if n := tries(); n != 100 || !g.Owns("p", mine.Addr.Addr()) || g.Owns("q", mine.Addr.Addr()) {
		t.Errorf("%d free dials where a relay sees the peer", n)
	}
	*now += seenFor
	if n := tries(); n != 0 {
		t.Errorf("%d free dials of an address that a relay saw long ago", n)
	}
	g.Met("p", mine.Addr.Addr())
	if n := tries(); n != 100 {
		t.Errorf("%d free dials where the peer has shown its key", n)
	}
	g.Retain(func(peer.ID) bool { return false })
	if g.Owns("p", mine.Addr.Addr()) {
		t.Error("a former member's address is remembered")
	}
}

// Whatever a peer names, whenever: in no minute more packets go to strangers than allowed, and other peers are not
// affected.
func TestBudget(t *testing.T) {
	g, now := guard()
	rnd := rand.New(rand.NewPCG(1, 2))
	type sent struct {
		at time.Duration
		n  int
	}
	var all []sent
	for i := range 5000 {
		*now += time.Duration(rnd.IntN(int(time.Second)))
		e := at(rnd.IntN(2) == 0, fmt.Sprintf("9.%d.%d.%d:%d", i%200, i%100, i%50, 2000+i))
		if rnd.IntN(3) == 0 {
			e = at(e.UDP, fmt.Sprintf("192.168.1.%d:%d", i%250+1, 2000+i))
		}
		budget := Budget
		if rnd.IntN(2) == 0 {
			budget = LastBudget
		}
		most, err := g.Take("p", e, budget)
		if err != nil {
			continue
		}
		if most == 0 || most > farTime {
			t.Fatalf("%s may be dialed for %v", e, most)
		}
		all = append(all, sent{*now, packets(e.UDP, most == nearTime)})
	}
	for i := range all {
		sum := 0
		for _, s := range all[i:] {
			if s.at-all[i].at < time.Minute {
				sum += s.n
			}
		}
		if sum > Budget {
			t.Fatalf("%d packets in a minute", sum)
		}
	}
	if len(all) < 50 {
		t.Errorf("only %d dials in %v", len(all), *now)
	}
	for range 10 {
		_, _ = g.Take("p", at(true, "9.9.9.9:4001"), Budget)
	}
	if _, err := g.Take("q", at(true, "9.9.9.9:4001"), Budget); err != nil {
		t.Errorf("another peer: %v", err)
	}
	if _, err := g.Spend("p", at(false, "10.9.9.9:443")); !errors.Is(err, ErrBudget) {
		t.Errorf("the address of the peer's relay: %v", err)
	}
	if _, err := g.Spend("r", at(false, "10.9.9.9:443")); err != nil {
		t.Errorf("the address of another relay: %v", err)
	}
}

// What is remembered of a peer is bounded.
func TestMemory(t *testing.T) {
	g, _ := guard()
	var eps []endpoint.Endpoint
	for i := range 1000 {
		e := at(true, fmt.Sprintf("9.9.%d.%d:4001", i/200, i%200))
		eps = append(eps, e)
		g.Met("p", e.Addr.Addr())
	}
	g.Seen("p", slices.Repeat([][]endpoint.Endpoint{eps}, 100))
	if k := g.peers["p"]; len(k.seen) > maxRelays || len(k.seen[0]) > maxAddrs || len(k.met) > maxAddrs || !g.Owns("p", eps[999].Addr.Addr()) {
		t.Errorf("%d seen, %d met", len(k.seen), len(k.met))
	}
}

// Ports are guessed only where the peer says that it is and relays see it now, most of those that see it.
func TestAim(t *testing.T) {
	v4, moved, v6 := at(true, "9.9.9.9:4001"), at(true, "8.8.8.8:4001"), at(true, "[2a00::1]:4001")
	tcp := endpoint.Endpoint{Addr: v4.Addr}
	for _, c := range []struct {
		name string
		seen [][]endpoint.Endpoint
		want error
	}{
		{"no relay answers", nil, ErrUnseen},
		{"no relay sees it", [][]endpoint.Endpoint{{}, {}}, ErrUnseen},
		{"one relay", [][]endpoint.Endpoint{{tcp, v4}}, nil},
		{"another port", [][]endpoint.Endpoint{{at(true, "9.9.9.9:4002")}}, ErrUnseen},
		{"TCP alone", [][]endpoint.Endpoint{{tcp}}, ErrUnseen},
		{"one of two", [][]endpoint.Endpoint{{v4}, {moved}}, ErrDisputed},
		{"two of three", [][]endpoint.Endpoint{{v4}, {tcp}, {moved}}, nil},
		{"one liar among three", [][]endpoint.Endpoint{{v4}, {moved}, {moved}}, ErrDisputed},
		{"the other sees it over IPv6", [][]endpoint.Endpoint{{v4}, {v6}}, nil},
		{"a relay that says everything", [][]endpoint.Endpoint{{v4, moved}, {moved}}, ErrDisputed},
	} {
		g, now := guard()
		g.Seen("p", c.seen)
		err := g.Aim(t.Context(), "p", v4)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if r := g.Refused(); (r["target_unseen"] == 1) != errors.Is(c.want, ErrUnseen) || (r["target_disputed"] == 1) != errors.Is(c.want, ErrDisputed) {
			t.Errorf("%s: counted %v", c.name, r)
		}
		if *now += aimFor; g.Aim(t.Context(), "p", v4) == nil || g.Aim(t.Context(), "q", v4) == nil {
			t.Errorf("%s: guessed at an old address, or at another peer's", c.name)
		}
	}
}

// Relays that saw the peer over TCP alone are asked once more.
func TestAimAsksAgain(t *testing.T) {
	e, tcp := at(true, "9.9.9.9:4001"), at(false, "9.9.9.9:4001")
	g, _ := guard()
	g.Seen("p", [][]endpoint.Endpoint{{tcp}})
	asked := 0
	g.cfg.Witness = func(context.Context, peer.ID) [][]endpoint.Endpoint {
		asked++
		return [][]endpoint.Endpoint{{tcp, e}}
	}
	for range 2 {
		if err := g.Aim(t.Context(), "p", e); err != nil || asked != 1 || g.Refused()["target_unseen"] != 0 {
			t.Errorf("%v, asked %d times, counted %v", err, asked, g.Refused())
		}
	}
}

// What is spent is told for the peer that most was spent for, and is over after a minute.
func TestSpent(t *testing.T) {
	now := time.Hour
	g := New(Config{Near: func(netip.Addr) bool { return false }, Public: func(netip.Addr) bool { return true }, Now: func() time.Duration { return now },
		Name: func(peer.ID) string { return "" }, Log: slog.New(slog.DiscardHandler)})
	e := endpoint.Endpoint{UDP: true, Addr: netip.MustParseAddrPort("9.9.9.9:4001")}
	for _, p := range []peer.ID{"p", "p", "q"} {
		if _, err := g.Take(p, e, Budget); err != nil {
			t.Fatal(err)
		}
	}
	if got, one := g.Spent(), packets(true, false); got != 2*one {
		t.Errorf("%d packets, want %d", got, 2*one)
	}
	if now += time.Minute; g.Spent() != 0 {
		t.Errorf("after a minute: %d", g.Spent())
	}
}
