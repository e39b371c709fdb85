package relays

import (
	"fmt"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// Where a relay is configured by name and TCP alone is there, its QUIC address is known for all that: STUN needs one.
func TestAddrsOfNames(t *testing.T) {
	const tcp, quic = "/ip4/192.0.2.1/tcp/443", "/ip4/192.0.2.1/udp/4001/quic-v1"
	for name, c := range map[string]struct {
		configured []string
		want       []string // between the connection's address and those that are configured
	}{
		"a name":                       {[]string{"/dns4/r.example/tcp/443", "/dns4/r.example/udp/4001/quic-v1"}, []string{quic}},
		"a name of either family":      {[]string{"/dns/r.example/tcp/443", "/dns/r.example/udp/4001/quic-v1"}, []string{quic}},
		"WebSocket":                    {[]string{"/dns/r.example/tcp/443/wss", "/dns4/r.example/udp/4001/quic-v1"}, []string{quic}},
		"the other family":             {[]string{"/dns/r.example/tcp/443", "/dns6/r.example/udp/4001/quic-v1"}, nil},
		"another name, perhaps a host": {[]string{"/dns/r.example/tcp/443", "/dns/q.example/udp/4001/quic-v1"}, nil},
		"no QUIC":                      {[]string{"/dns/r.example/tcp/443"}, nil},
		"the family that works": {[]string{"/ip6/2001:db8::1/tcp/443", "/ip6/2001:db8::1/udp/4001/quic-v1",
			"/ip4/192.0.2.1/tcp/443", "/ip4/192.0.2.1/udp/4001/quic-v1"}, []string{quic}},
		"another IP address": {[]string{"/ip4/192.0.2.1/tcp/443", "/ip4/192.0.2.9/udp/4001/quic-v1"}, nil},
	} {
		info := peer.AddrInfo{ID: newID(t)}
		for _, a := range c.configured {
			info.Addrs = append(info.Addrs, ma.StringCast(a))
		}
		s := &Set{clients: []*client{newClient(&common{ctx: t.Context(), host: &oneConn{}, Config: Config{Dialer: listens{}}}, info)}}
		want := slices.Concat([]string{tcp}, c.want, c.configured)
		if got := s.Addrs(); len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
