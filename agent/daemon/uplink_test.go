package daemon

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
		if why := cutOff(c.own, nil, []peer.AddrInfo{{Addrs: []ma.Multiaddr{c.addr}}}, proxied); (why != "") != c.off {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// TestNoUplink: the interfaces are named, each with what is wrong with it; pods' are not.
func TestNoUplink(t *testing.T) {
	none := func(netlink.Link) []netip.Addr { return nil }
	up := net.FlagUp | net.FlagBroadcast
	index := 1
	eth := func(name string, flags net.Flags, raw uint32) netlink.Link {
		index++
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name, Flags: flags, RawFlags: raw}}
	}
	all := []netlink.Link{eth("eth0", 0, 0), eth("eth1", up, 0), eth("eth2", up, unix.IFF_LOWER_UP),
		&netlink.Sittun{LinkAttrs: netlink.LinkAttrs{Index: 7, Name: "sit0"}}, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 6, Name: "port", MasterIndex: 99}},
		&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Index: 8, Name: "edgemesh-tun", Flags: up}, Mode: netlink.TUNTAP_MODE_TUN}, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 9, Name: "cali1", Flags: up}}}
	if got := noUplink(all, nil, none); !strings.HasSuffix(got, "address: eth0 is down, eth1 has no link: no cable, or no network and eth2 has no address") {
		t.Error(got)
	}
	if got := noUplink(all[3:], nil, none); !strings.HasSuffix(got, "address: cali1 has no link: no cable, or no network") {
		t.Error(got)
	}
	bridged := []netlink.Link{&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 20, Name: "br0", Flags: up, RawFlags: unix.IFF_LOWER_UP}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 21, Name: "eth0", MasterIndex: 20, Flags: up, RawFlags: unix.IFF_LOWER_UP}}}
	if got := noUplink(bridged, nil, none); !strings.HasSuffix(got, "address: br0 has no address") {
		t.Error(got)
	}
	carrier := func(netlink.Link) []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.244.9.9")} }
	if got := noUplink(bridged, nil, carrier); !strings.Contains(got, "address: br0 has 10.244.9.9, inside the cluster's pod ranges") {
		t.Error(got)
	}
	if got := noUplink(nil, nil, none); !strings.HasSuffix(got, "has an address") {
		t.Error(got)
	}
}
