package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/nat64"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// cutOff says why packets cannot leave this host for any relay, as the kernel knows it; "" where they can, or nothing is known.
// addrs are those of its uplinks, proxied names the HTTP proxy for a target. Nothing is sent for it.
func cutOff(addrs []netip.Addr, relays []peer.AddrInfo, proxied func(string) (*url.URL, error)) string {
	if len(addrs) == 0 {
		return "no interface that leads off this host is up and has an address"
	}
	why := ""
	for _, r := range relays {
		for _, a := range r.Addrs {
			ip, err := manet.ToIP(a)
			if err != nil {
				return "" // a name: who has its address is not known here
			}
			if e, known := endpoint.Target(a); known && !e.UDP {
				u, err := proxied(e.Addr.String())
				if u != nil {
					ip = net.ParseIP(u.Hostname())
				}
				if err != nil || ip == nil {
					return "" // likewise
				}
			}
			if why = unrouted(ip); why == "" {
				return ""
			}
		}
	}
	return why
}

// unrouted says why nothing leads to ip.
func unrouted(ip net.IP) string {
	addr, _ := netip.AddrFromSlice(ip)
	routes, err := netlink.RouteGet(ip)
	if err != nil && addr.Unmap().Is4() { // NAT64 may lead there
		routes, err = netlink.RouteGet(nat64.Embed(nat64.WellKnown, addr.Unmap()).AsSlice())
	}
	if err != nil || len(routes) == 0 {
		return fmt.Sprintf("no route leads to a relay or its proxy, such as %s: %v", addr.Unmap(), err)
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	if a := l.Attrs(); a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown {
		return fmt.Sprintf("%s, which leads to the relays, has no link: its cable is unplugged, or the device at its other end is off", a.Name)
	}
	return ""
}
