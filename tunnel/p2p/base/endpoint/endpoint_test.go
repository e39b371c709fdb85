package endpoint

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

func ep(s string) Endpoint {
	proto, addr, _ := strings.Cut(s, " ")
	return Endpoint{UDP: proto == "udp", Addr: netip.MustParseAddrPort(addr)}
}

func eps(ss ...string) (out []Endpoint) {
	for _, s := range ss {
		out = append(out, ep(s))
	}
	return out
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"/ip4/1.2.3.4/tcp/5":             "tcp 1.2.3.4:5",
		"/ip6/2001:db8::1/udp/5/quic-v1": "udp [2001:db8::1]:5",
		"/ip4/1.2.3.4/tcp/5/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m": "tcp 1.2.3.4:5",
		"/ip6/::ffff:1.2.3.4/tcp/5":               "tcp 1.2.3.4:5",
		"/ip6/64:ff9b::1.2.3.4/udp/5/quic-v1":     "udp 1.2.3.4:5",
		"/ip4/1.2.3.4/udp/5":                      "",
		"/ip4/1.2.3.4/udp/5/quic-v1/webtransport": "",
		"/ip4/1.2.3.4/tcp/5/ws":                   "",
		"/dns4/example.org/tcp/5":                 "",
		"/memory/1":                               "",
		"/ip4/1.2.3.4":                            "",
		"/ip4/1.2.3.4/tcp/5/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m/p2p-circuit": "",
	} {
		e, ok := Parse(ma.StringCast(in))
		got := ""
		if ok {
			got = e.String()
		}
		if got != want {
			t.Errorf("%s is %q, want %q", in, got, want)
		}
	}
}

// Through NAT64 an address is as public, and as special, as the one inside.
func TestNAT64(t *testing.T) {
	for a, public := range map[string]bool{"64:ff9b::5.5.5.5": true, "64:ff9b::10.0.0.1": false, "64:ff9b:1::10.0.0.1": false, "2a05::1": true} {
		if got := IsPublic(netip.MustParseAddr(a)); got != public {
			t.Errorf("%s public: %v, want %v", a, got, public)
		}
	}
	if !IsMetadata(netip.MustParseAddr("64:ff9b::169.254.169.254")) {
		t.Error("a cloud's metadata service is not known through NAT64")
	}
	for in, want := range map[string]string{
		"/ip6/64:ff9b::1.2.3.4/udp/5/quic-v1": "/ip4/1.2.3.4/udp/5/quic-v1",
		"/ip6/2a05::1/tcp/5":                  "/ip6/2a05::1/tcp/5",
		"/ip4/1.2.3.4/tcp/5/ws":               "/ip4/1.2.3.4/tcp/5/ws",
		"/dns/example.org/tcp/5":              "/dns/example.org/tcp/5",
	} {
		if a := ma.StringCast(in); Real(a).String() != want || NAT64(a) != (in != want) {
			t.Errorf("%s is really %s (NAT64 %v), want %s", in, Real(a), NAT64(a), want)
		}
	}
}

func TestOffered(t *testing.T) {
	listen := []ma.Multiaddr{ma.StringCast("/ip4/0.0.0.0/tcp/4001"), ma.StringCast("/ip6/::/udp/4001/quic-v1"), ma.StringCast("/ip4/10.0.0.1/tcp/5")}
	got := Offered(listen, []netip.Addr{netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("2001:db8::1")})
	if want := eps("tcp 192.168.1.10:4001", "udp [2001:db8::1]:4001", "tcp 10.0.0.1:5"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
