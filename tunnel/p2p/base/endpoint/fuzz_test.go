package endpoint

import (
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

// FuzzTarget: what is dialed goes where the rules about addresses were asked for.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{"/ip4/5.5.1.1/tcp/4001", "/ip6/2001:db8::1/udp/4001/quic-v1", "/ip4/1.2.3.4/tcp/443/tls/sni/x/ws",
		"/ip6/::ffff:127.0.0.1/tcp/80", "/ip4/5.5.5.5/tcp/1/p2p-circuit", "/dns4/x/tcp/1", "/ip6zone/eth0/ip6/fe80::1/tcp/1"} {
		f.Add(ma.StringCast(s).Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ma.NewMultiaddrBytes(b)
		if err != nil {
			return
		}
		e, ok := Parse(a)
		target, known := Target(a)
		if ok && (!known || target != e) {
			t.Errorf("%s is dialed at %v, and checked at %v %v", a, e, target, known)
		}
		if known && target.Addr.Addr().Is4In6() {
			t.Errorf("%s: %v evades rules about IPv4", a, target)
		}
		_, _, _, _ = IsCircuit(a), OverWebSocket(a), OverUDP(a), RelayOf(a)
	})
}
