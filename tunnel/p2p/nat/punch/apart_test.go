package punch

import (
	"errors"
	"testing"
)

func TestApart(t *testing.T) {
	t.Parallel()
	const v4, private, v6, ula = "/ip4/5.5.1.1/tcp/1", "/ip4/192.168.1.1/tcp/1", "/ip6/2001:db8::1/tcp/1", "/ip6/fd00::1/tcp/1"
	for _, x := range []struct {
		mine, theirs offer
		want         string
	}{
		{offer{Addrs: []string{v4, private}}, offer{Addrs: []string{v6}}, "no IP version in common: IPv4 here, IPv6 there"},
		{offer{Addrs: []string{v4, ula}}, offer{Addrs: []string{v6}}, "no IP version in common: IPv4 and IPv6 of its own site (ULA) here, IPv6 there"},
		{offer{Addrs: []string{v4, ula}}, offer{Addrs: []string{v6, ula}}, ""},
		{offer{Addrs: []string{v4, v6}}, offer{Addrs: []string{v6}}, ""},
		{offer{Addrs: []string{v6}, NAT64: true}, offer{Addrs: []string{v4}}, ""},
		{offer{Addrs: []string{v4}}, offer{Addrs: []string{v6}, NAT64: true}, ""},
		{offer{Addrs: []string{v4}}, offer{}, ""},
		{offer{}, offer{Addrs: []string{v4}}, ""},
		{offer{Addrs: []string{v4}}, offer{Addrs: []string{"/ip6/64:ff9b::505:101/tcp/1"}}, ""},
	} {
		a := New(Config{}).With(silent{}, nil)
		err := a.apart(x.mine, x.theirs, endpoints(x.theirs.Addrs, maxOffer))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != x.want || (err != nil) != errors.Is(err, ErrApart) {
			t.Errorf("%+v and %+v: %q, want %q", x.mine, x.theirs, got, x.want)
		}
	}
}
