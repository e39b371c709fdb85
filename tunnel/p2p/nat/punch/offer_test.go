package punch

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/sense"
)

func TestOffer(t *testing.T) {
	var b bytes.Buffer
	sent := offer{Addrs: []string{"/ip4/5.5.1.1/tcp/4001", "/ip4/5.5.1.1/udp/4001/quic-v1"}, NAT: "no NAT", Want: []string{"tcp"}}
	if err := writeOffer(&b, sent); err != nil {
		t.Fatal(err)
	}
	got, eps, err := readOffer(&b)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(sent) || len(eps) != 2 {
		t.Errorf("read %+v %v %v, want %+v", got, eps, err, sent)
	}
	// What cannot be dialed is left out.
	_, eps, err = readOffer(strings.NewReader(`{"addrs":["","/dns4/x/tcp/1","/ip4/5.5.1.1/tcp/0","/ip4/5.5.1.1/tcp/1","/ip4/5.5.1.1/tcp/1",` +
		`"/ip4/5.5.5.5/tcp/1/p2p-circuit","/ip4/1.2.3.4/udp/1"]}` + "\n"))
	if err != nil || len(eps) != 1 || eps[0].String() != "tcp 5.5.1.1:1" {
		t.Errorf("endpoints %v, %v; want tcp 5.5.1.1:1 only", eps, err)
	}
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf("/ip4/1.1.1.1/tcp/%d", i+1))
	}
	b.Reset()
	if err := writeOffer(&b, offer{Addrs: many}); err != nil {
		t.Fatal(err)
	}
	if _, eps, err = readOffer(&b); err != nil || len(eps) != maxOffer {
		t.Errorf("%d endpoints of 50, %v; want %d", len(eps), err, maxOffer)
	}
	for what, in := range map[string]string{
		"too long": strings.Repeat(" ", maxOfferBytes+1) + "{}\n", "no end": "{}", "no JSON": "hello\n", "empty": "\n", "array": "[]\n",
	} {
		if _, _, err := readOffer(strings.NewReader(in)); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func FuzzReadOffer(f *testing.F) {
	f.Add([]byte(`{"addrs":["/ip4/5.5.1.1/tcp/4001"],"nat":"x","want":["tcp"]}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, eps, err := readOffer(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(eps) > maxOffer || len(o.NAT) > 64 {
			t.Errorf("%d endpoints, NAT %q", len(eps), o.NAT)
		}
		for _, e := range eps {
			if got, ok := endpoint.Parse(e.Multiaddr()); !ok || got != e {
				t.Errorf("%v is not the endpoint of its own address", e)
			}
		}
	})
}

// A peer that offers hundreds of addresses has some of them tried, and its guesses
// count only for hosts that it offers.
func TestOffersAreBounded(t *testing.T) {
	var o offer
	for i := range 300 {
		o.Addrs = append(o.Addrs, fmt.Sprintf("/ip4/9.9.%d.%d/udp/4001/quic-v1", i/200, i%200))
		o.Guess = append(o.Guess, fmt.Sprintf("/ip4/9.9.0.%d/udp/%d/quic-v1", i%40, 5000+i), "/ip4/8.8.8.8/udp/53/quic-v1", "/ip4/9.9.0.1/tcp/80")
	}
	eps := endpoints(o.Addrs, maxOffer)
	if len(eps) != maxOffer {
		t.Errorf("%d of 300 addresses are tried, want %d", len(eps), maxOffer)
	}
	guessed := o.guessed(eps)
	if len(guessed) > sense.MaxPredictions {
		t.Errorf("%d guesses, want at most %d", len(guessed), sense.MaxPredictions)
	}
	for _, g := range guessed {
		if !g.UDP || !strings.HasPrefix(g.Addr.String(), "9.9.0.") {
			t.Errorf("packets would go to %v", g)
		}
	}
}

// Between two NATs that map per destination one port of each address is dialed over each transport, else all.
func TestFewerPortsWhereHopeless(t *testing.T) {
	eps := endpoints([]string{
		"/ip4/9.9.9.9/udp/1111/quic-v1", "/ip4/9.9.9.9/udp/2222/quic-v1", "/ip4/9.9.9.9/tcp/1111", "/ip4/9.9.9.9/tcp/3333",
		"/ip4/192.168.1.7/tcp/4001", "/ip6/2a00::1/udp/4001/quic-v1",
	}, maxOffer)
	for _, c := range []struct {
		mine, theirs ladder.NAT
		want         int
	}{
		{ladder.NATRandom, ladder.NATSequential, 4}, {ladder.NATRandom, ladder.NATRandom, 4},
		{ladder.NATRandom, ladder.NATStable, 6}, {ladder.NATUnknown, ladder.NATRandom, 6},
	} {
		if got := fewer(eps, c.mine, c.theirs); len(got) != c.want || got[0] != eps[0] {
			t.Errorf("%s and %s: %v", c.mine, c.theirs, got)
		}
	}
}

// A side without a NAT is not said to have one.
func TestWhyRelayedNamesNATs(t *testing.T) {
	if got, want := whyRelayed(ladder.NATNone, ladder.NATStable), "no NAT here; NAT there stable: one port for all destinations"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Where IPv6 is translated, status says at which end.
func TestWhyRelayedNamesNAT66(t *testing.T) {
	for _, x := range []struct {
		here, there bool
		want        string
	}{{false, false, ""}, {true, false, "here"}, {false, true, "there"}, {true, true, "here and there"}} {
		var seen []endpoint.Endpoint
		if x.here {
			seen = []endpoint.Endpoint{{UDP: true, Addr: netip.MustParseAddrPort("[2001:db8::1]:4001")}}
		}
		u := New(Config{Dialer: noted{}, Addrs: noted{}, Sense: noted{}, Mapped: func() []endpoint.Endpoint { return nil },
			Seen: func() ([]endpoint.Endpoint, bool) { return seen, false }, ViaNAT64: func(context.Context) bool { return false }})
		a := u.With(wanting{}, nil)
		a.offered(offer{NAT66: x.there}, nil)
		a.past.add(outcome{missing: []string{"tcp"}}, 1)
		said := strings.Join(a.WhyRelayed(), "; ")
		if got := strings.Contains(said, "IPv6 is translated"); got != (x.want != "") || !strings.Contains(said, x.want) ||
			x.want == "here" && strings.Contains(said, "and there (") || x.want == "there" && strings.Contains(said, "here and") {
			t.Errorf("translated here %v, there %v: %s", x.here, x.there, said)
		}
		if o := u.localOffer(t.Context(), nil); o.NAT66 != x.here {
			t.Errorf("offered: %v, want %v", o.NAT66, x.here)
		}
	}
}

// Two sites behind one carrier's NAT that does not lead back: what it says to a dial of its own address is not about the peer.
func TestNoHairpin(t *testing.T) {
	at := func(a string) endpoint.Endpoint { return endpoint.Endpoint{Addr: netip.MustParseAddrPort(a)} }
	o := outcome{missing: []string{"tcp"}, outside: []netip.Addr{netip.MustParseAddr("5.5.5.1")}}
	o.add(at("5.5.5.1:4501"), "connection refused")
	o.add(at("192.168.1.7:4501"), "connection refused")
	if text := o.text(); !strings.Contains(text, "share their outside address") || strings.Contains(text, "refused") {
		t.Error(text)
	}
	o = outcome{missing: []string{"tcp"}, outside: o.outside}
	if o.add(at("5.5.5.2:4501"), "connection refused"); !strings.Contains(o.text(), "connection refused") {
		t.Error(o.text())
	}
}
