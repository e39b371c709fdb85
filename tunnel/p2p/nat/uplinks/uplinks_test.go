package uplinks

import (
	"net/netip"
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/members"
)

// host has one uplink with a private address, one with a public one, and pods.
func host(listen ...ma.Multiaddr) *Addrs {
	view := members.NewView("me", members.Membership{ClusterCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44:44::/48")}})
	a := New(func() *members.View { return view }, func() []ma.Multiaddr { return listen })
	a.list = func() (Reading, error) {
		lan, pod, wan := netip.MustParsePrefix("192.168.1.10/24"), netip.MustParsePrefix("10.244.3.1/24"), netip.MustParsePrefix("5.5.9.9/24")
		return Reading{
			Owned:   map[netip.Addr]bool{lan.Addr(): true, pod.Addr(): true, wan.Addr(): true, netip.MustParseAddr("172.17.0.1"): true},
			Offered: []netip.Addr{lan.Addr(), pod.Addr(), wan.Addr()},
			Links:   []Link{{1, []netip.Prefix{lan, pod}}, {2, []netip.Prefix{wan}}},
		}, nil
	}
	return a
}

// A peer may announce anything; what cannot be its address is not dialed.
func TestRubbishIsNotDialable(t *testing.T) {
	a := host(ma.StringCast("/ip4/0.0.0.0/tcp/4001"))
	for addr, want := range map[string]bool{
		"5.5.1.1": true, "192.168.1.11": true, "2001:db8::1": true, "fd00::1": true,
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "169.254.169.254": false, "fe80::1": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
		"10.244.1.1": false, "::ffff:10.244.1.1": false, "fd44:44::9": false, // pods
		"192.168.1.10": false, "172.17.0.1": false, // this node
		"64:ff9b::5.5.1.1": true, "64:ff9b::10.244.1.1": false, "64:ff9b::169.254.169.254": false, "64:ff9b::192.168.1.10": false, // through NAT64
	} {
		for _, udp := range []bool{false, true} {
			e := endpoint.Endpoint{UDP: udp, Addr: netip.AddrPortFrom(netip.MustParseAddr(addr).Unmap(), 4001)}
			if got := a.Dialable(e); got != want {
				t.Errorf("%v dialable: %v, want %v", e, got, want)
			}
		}
	}
}

// Peers are offered addresses of uplinks, without those of pods, and loopback only where
// nothing else is listened on.
func TestOffered(t *testing.T) {
	a := host(ma.StringCast("/ip4/0.0.0.0/tcp/4001"))
	var got []string
	for _, e := range a.Local() {
		got = append(got, e.String())
	}
	if want := []string{"tcp 192.168.1.10:4001", "tcp 5.5.9.9:4001"}; !slices.Equal(got, want) {
		t.Errorf("offered %q, want %q", got, want)
	}
	lan := a.LAN()
	if len(lan) != 1 || lan[0].Index != 1 || len(lan[0].Prefixes) != 1 || !a.Owns(netip.MustParseAddr("::ffff:172.17.0.1")) {
		t.Errorf("local networks %v, want the private uplink without pods", lan)
	}
	loopback := endpoint.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:4002")}
	if a.Dialable(loopback) || !host(ma.StringCast("/ip4/127.0.0.1/tcp/4001")).Dialable(loopback) {
		t.Error("loopback is dialable exactly where this node listens there")
	}
}

// Beside the kernel's choice, one address of each other network of the same kind is a source, if packets from it leave by its
// own uplink.
func TestSources(t *testing.T) {
	view := members.NewView("me", members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("2001:db8:44::/48")}})
	a := New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
	var links []Link
	for i, l := range [][]string{{"2001:db8:1::10/64", "2001:db8:1::11/128", "fd00::10/64", "192.168.1.10/24", "2001:db8:2::10/64"},
		{"2001:db8:3::10/64", "192.168.2.10/24", "2001:db8:44::1/64"}, {"2001:db8:4::10/64", "5.5.6.40/24"}} {
		link := Link{Index: i + 1}
		for _, p := range l {
			link.Prefixes = append(link.Prefixes, netip.MustParsePrefix(p))
		}
		links = append(links, link)
	}
	a.list = func() (Reading, error) { return Reading{Links: links}, nil }
	asked := 0
	// The first uplink has the default routes; another rule sends what comes from 5.5.6.40 and the last prefix by the third.
	a.route = func(to, from netip.Addr, _ uint32) (netip.Addr, int, error) {
		asked++
		switch {
		case from == netip.MustParseAddr("5.5.6.40"), from == netip.MustParseAddr("2001:db8:4::10"):
			return from, 3, nil
		case from.IsValid():
			return from, 1, nil
		case to.Is4():
			return netip.MustParseAddr("192.168.1.10"), 1, nil
		}
		return netip.MustParseAddr("2001:db8:1::11"), 1, nil
	}
	for to, want := range map[string][]string{
		"2001:db8:f::1": {"2001:db8:2::10", "2001:db8:4::10"},
		"8.8.8.8":       {"5.5.6.40"},
		"192.168.1.99":  nil, "fd00::99": nil, "fe80::1": nil,
	} {
		var got []string
		for _, s := range a.Sources(netip.MustParseAddr(to), 1) {
			got = append(got, s.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("to %s from %q, want %q", to, got, want)
		}
	}
	links, asked = links[:1], 0
	links[0].Prefixes = links[0].Prefixes[:4]
	a.forget(false)
	for _, to := range []string{"2001:db8:f::1", "8.8.8.8"} { // a plain dual-stack site
		if got := a.Sources(netip.MustParseAddr(to), 1); got != nil || asked > 0 {
			t.Errorf("to %s from %v, the kernel was asked %d times", to, got, asked)
		}
	}
}

// Addresses of Services and of standby routers, in the kernel's network or alone, are not sources: each would be a second dial.
// Where an interface has no other, as in some clouds, it is.
func TestServiceIsNoSource(t *testing.T) {
	view := members.NewView("me", members.Membership{})
	a := New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
	a.route = func(_, from netip.Addr, _ uint32) (netip.Addr, int, error) {
		switch {
		case !from.IsValid():
			return netip.MustParseAddr("192.168.1.10"), 1, nil
		case from == netip.MustParseAddr("5.5.6.40"):
			return from, 2, nil
		}
		return from, 1, nil
	}
	for what, x := range map[string]struct{ first, second, want []string }{
		"in the network":                    {[]string{"192.168.1.10/24", "192.168.1.100/32"}, nil, nil},
		"before the network's":              {[]string{"192.168.1.100/32", "192.168.1.10/24"}, nil, nil},
		"of another network":                {[]string{"192.168.1.10/24", "192.168.7.100/32"}, nil, nil},
		"a wider network on another uplink": {[]string{"192.168.1.10/24"}, []string{"192.168.2.10/16"}, nil},
		"alone on an interface":             {[]string{"192.168.1.10/32"}, []string{"5.5.6.40/32"}, []string{"5.5.6.40"}},
	} {
		var links []Link
		for i, l := range [][]string{x.first, x.second} {
			link := Link{Index: i + 1}
			for _, p := range l {
				link.Prefixes = append(link.Prefixes, netip.MustParsePrefix(p))
			}
			links = append(links, link)
		}
		a.list = func() (Reading, error) { return Reading{Links: links}, nil }
		a.forget(false)
		var got []string
		for _, s := range a.Sources(netip.MustParseAddr("8.8.8.8"), 1) {
			got = append(got, s.String())
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: from %q, want %q", what, got, x.want)
		}
	}
}
