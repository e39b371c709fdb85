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
