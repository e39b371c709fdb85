package main

import (
	"net/netip"
	"slices"
	"testing"

	"edgemesh/tunnel/p2p/who/members"

	ma "github.com/multiformats/go-multiaddr"
)

func TestOffered(t *testing.T) {
	addr := func(s string) ifaceAddr { return ifaceAddr{ip: netip.MustParseAddr(s)} }
	bridge := func(s string) ifaceAddr { return ifaceAddr{netip.MustParseAddr(s), true} }
	wildcards := multiaddrs("/ip4/0.0.0.0/tcp/1", "/ip4/0.0.0.0/udp/1/quic-v1", "/ip6/::/tcp/1")
	lo := []ifaceAddr{addr("127.0.0.1"), addr("::1")}
	r := members.NewView("", members.Membership{ClusterCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("20.1.0.0/16")}})
	for _, c := range []struct {
		name   string
		listen []ma.Multiaddr
		ifaces []ifaceAddr
		want   []ma.Multiaddr
		public bool
	}{
		{"public only", wildcards, append(lo, addr("5.5.5.5"), addr("10.0.0.5"), bridge("172.17.0.1")),
			multiaddrs("/ip4/5.5.5.5/tcp/1", "/ip4/5.5.5.5/udp/1/quic-v1"), true},
		{"public on a bridge", wildcards, append(lo, bridge("5.5.5.5")),
			multiaddrs("/ip4/5.5.5.5/tcp/1", "/ip4/5.5.5.5/udp/1/quic-v1"), true},
		{"both families", wildcards, append(lo, addr("5.5.5.5"), addr("2a00::5"), addr("fe80::1")),
			multiaddrs("/ip4/5.5.5.5/tcp/1", "/ip4/5.5.5.5/udp/1/quic-v1", "/ip6/2a00::5/tcp/1"), true},
		{"private uplink before containers", wildcards, append(lo, addr("10.0.0.5"), bridge("172.17.0.1")),
			multiaddrs("/ip4/10.0.0.5/tcp/1", "/ip4/10.0.0.5/udp/1/quic-v1"), false},
		{"private bridge", wildcards, append(lo, bridge("10.0.0.5")),
			multiaddrs("/ip4/10.0.0.5/tcp/1", "/ip4/10.0.0.5/udp/1/quic-v1"), false},
		{"loopback at last", wildcards[:1], lo, multiaddrs("/ip4/127.0.0.1/tcp/1"), false},
		{"never the cluster's", wildcards, append(lo[:0:0], bridge("10.244.1.1"), addr("20.1.1.1")), nil, false},
		{"by name", multiaddrs("/ip4/10.0.0.5/tcp/1", "/ip4/10.244.1.1/tcp/1"), lo, multiaddrs("/ip4/10.0.0.5/tcp/1"), false},
		{"by name and wildcard", append(multiaddrs("/ip4/10.0.0.5/tcp/2"), wildcards[0]), append(lo, addr("10.0.0.5"), addr("5.5.5.5")),
			multiaddrs("/ip4/10.0.0.5/tcp/2", "/ip4/5.5.5.5/tcp/1"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, public := offered(c.listen, c.ifaces, r)
			slices.SortFunc(c.want, ma.Multiaddr.Compare)
			if !slices.EqualFunc(got, c.want, ma.Multiaddr.Equal) || public != c.public {
				t.Errorf("got %v, public %t; want %v, %t", got, public, c.want, c.public)
			}
		})
	}
}
