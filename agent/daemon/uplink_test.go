package daemon

import (
	"net/netip"
	"net/url"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/nstest"
)

// A node behind an HTTP proxy needs a route to that, not to its relays.
func TestCutOff(t *testing.T) {
	const far = "2001:db8::1"
	nstest.Enter(t) // nothing is routed there
	own := []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	tcp, udp := ma.StringCast("/ip6/"+far+"/tcp/4001"), ma.StringCast("/ip6/"+far+"/udp/4001/quic-v1")
	for name, c := range map[string]struct {
		own   []netip.Addr
		addr  ma.Multiaddr
		proxy string
		off   bool
	}{
		"no address":           {nil, tcp, "http://127.0.0.1:3128", true},
		"no proxy":             {own, tcp, "", true},
		"a proxy":              {own, tcp, "http://127.0.0.1:3128", false},
		"a proxy by name":      {own, tcp, "http://proxy.example:3128", false},
		"a proxy is as far":    {own, tcp, "http://[" + far + "]:3128", true},
		"UDP passes no proxy":  {own, udp, "http://127.0.0.1:3128", true},
		"a relay on this host": {own, ma.StringCast("/ip4/127.0.0.1/tcp/4001"), "", false},
	} {
		proxied := func(string) (*url.URL, error) {
			if c.proxy == "" {
				return nil, nil //nolint:nilnil // as the proxy's
			}
			return url.Parse(c.proxy)
		}
		if why := cutOff(c.own, []peer.AddrInfo{{Addrs: []ma.Multiaddr{c.addr}}}, proxied); (why != "") != c.off {
			t.Errorf("%s: %q", name, why)
		}
	}
}
