package sense

import (
	"net/netip"
	"testing"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
)

func TestClassify(t *testing.T) {
	at := func(ports ...uint16) []netip.AddrPort {
		var out []netip.AddrPort
		for _, p := range ports {
			out = append(out, netip.AddrPortFrom(netip.MustParseAddr("9.9.9.9"), p))
		}
		return out
	}
	const port, port2 = 4444, 5555
	for _, c := range []struct {
		name string
		seen []netip.AddrPort
		last uint16
		owns bool
		want View
	}{
		{"no NAT", at(port, port), port2, true, View{Kind: ladder.NATNone, Kept: true}},
		{"keeps ports", at(port, port), port2, false, View{Kind: ladder.NATStable, Kept: true}},
		{"keeps ports, one server", at(port), port2, false, View{Kind: ladder.NATStable, Kept: true}},
		{"one port for all", at(2000, 2000), 9000, false, View{Kind: ladder.NATStable}},
		{"one port for all, counts", at(2000, 2000), 2001, false, View{Kind: ladder.NATStable, Step: 1}},
		{"counts", at(2000, 2001), 2002, false, View{Kind: ladder.NATSequential, Step: 1}},
		{"counts by two, others between", at(2000, 2002, 2006), 2008, false, View{Kind: ladder.NATSequential, Step: 2}},
		{"counts down", at(2000, 1999), 1998, false, View{Kind: ladder.NATSequential, Step: -1}},
		{"counts, one server", at(2000), 2001, false, View{Kind: ladder.NATUnknown, Step: 1}},
		{"random", at(2000, 40000), 9000, false, View{Kind: ladder.NATRandom}},
		{"random, near each other once", at(2000, 2003), 9000, false, View{Kind: ladder.NATRandom}},
		{"up and down", at(2000, 2003), 2001, false, View{Kind: ladder.NATRandom}},
		{"changes, one server", at(2000), 9000, false, View{Kind: ladder.NATUnknown}},
	} {
		got := classify(port, c.seen, port2, at(c.last)[0], func(netip.Addr) bool { return c.owns })
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A NAT that chooses another outside address by destination is not stable, whatever it does with ports.
func TestPool(t *testing.T) {
	at := netip.MustParseAddrPort
	if v := classify(4444, []netip.AddrPort{at("9.9.9.9:4444"), at("9.9.9.8:4444")}, 5555, at("9.9.9.9:5555"), func(netip.Addr) bool { return false }); v.Kind != ladder.NATRandom {
		t.Errorf("two servers: %+v", v)
	}
	local := []endpoint.Endpoint{{Addr: at("192.168.1.2:4444"), UDP: true}, {Addr: at("192.168.1.2:4444")}, {Addr: at("[2a05:1::2]:4444"), UDP: true}}
	seen := func(udp bool, addrs ...string) (out []endpoint.Endpoint) {
		for _, a := range addrs {
			out = append(out, endpoint.Endpoint{Addr: at(a), UDP: udp})
		}
		return out
	}
	for _, c := range []struct {
		seen []endpoint.Endpoint
		want ladder.NAT
	}{
		{seen(true, "9.9.9.9:4444", "9.9.9.8:4444"), ladder.NATRandom},
		{append(seen(true, "9.9.9.9:4444"), seen(false, "9.9.9.9:4444")...), ladder.NATStable},
		{seen(true, "9.9.9.9:4444", "[2a05:1::2]:4444"), ladder.NATStable},
		{seen(true, "9.9.9.9:4444"), ladder.NATStable},
	} {
		if got := Judge(c.seen, local, false); got != c.want {
			t.Errorf("%v: %v, want %v", c.seen, got, c.want)
		}
	}
}

func TestFollows(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	last := at("9.9.9.9:2000")
	for next, steps := range map[string][]int{
		"9.9.9.9:2001": {1, 2}, "9.9.9.9:2008": {1}, "9.9.9.9:1998": {-2, -1},
	} {
		for _, step := range steps {
			if !follows(last, at(next), step) {
				t.Errorf("%s by %d does not follow", next, step)
			}
			if follows(last, at(next), -step) {
				t.Errorf("%s follows by %d", next, -step)
			}
		}
	}
	for _, next := range []string{"9.9.9.9:2000", "9.9.9.9:2009", "9.9.9.9:40000", "9.9.9.8:2001"} {
		if follows(last, at(next), 1) {
			t.Errorf("%s follows", next)
		}
	}
}
