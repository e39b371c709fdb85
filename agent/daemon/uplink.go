package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	hostplan "edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/internal/nat64"
	"edgemesh/internal/uplink"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// cutOff says why packets cannot leave this host for any relay, as the kernel knows it; "" where they can, or nothing is known.
// addrs are those of its uplinks, ranges the cluster's, proxied names the HTTP proxy for a target. Nothing is sent for it.
func cutOff(addrs []netip.Addr, ranges []netip.Prefix, relays []peer.AddrInfo, proxied func(string) (*url.URL, error)) string {
	if len(addrs) == 0 {
		links, err := rtnetlink.Links()
		return noUplink(links, err, func(l netlink.Link) []netip.Addr { return insideOf(l, ranges) })
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

// insideOf are the addresses of an interface that are in the cluster's ranges: they lead nowhere, since they would be pods'.
func insideOf(l netlink.Link, ranges []netip.Prefix) (out []netip.Addr) {
	addrs, _ := netlink.AddrList(l, netlink.FAMILY_ALL) // none: it has no address
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip.Unmap()) }) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// noUplink says what is wrong with each interface that may lead off this host, where none has an address that does; inside are the addresses of
// one that are in the cluster's ranges.
func noUplink(links []netlink.Link, err error, inside func(netlink.Link) []netip.Addr) string {
	if err != nil {
		return fmt.Sprintf("no interface that leads off this host is known: %v", err)
	}
	names := uplink.Between(links, nil)                                  // of a bridge by its ports, which have no addresses
	made := []string{"sit", "ipip", "gre", "gretap", "ip6tnl", "ip6gre"} // by kernels themselves
	links = slices.DeleteFunc(slices.Clone(links), func(l netlink.Link) bool {
		return l.Attrs().MasterIndex != 0 || slices.Contains(made, l.Type()) || hostplan.OurLink(l.Attrs().Name)
	})
	among := func(name string) bool {
		return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	}
	if !slices.ContainsFunc(names, among) { // in a container or a virtual machine it may be a veth
		for _, l := range links {
			if a := l.Attrs(); l.Type() == "veth" {
				names = append(names, a.Name)
			}
		}
	}
	var each []string
	for _, l := range links {
		switch a := l.Attrs(); {
		case !slices.Contains(names, a.Name):
		case a.Flags&net.FlagUp == 0:
			each = append(each, a.Name+" is down")
		case a.RawFlags&unix.IFF_LOWER_UP == 0:
			each = append(each, a.Name+" has no link: no cable, or no network")
		default:
			if in := inside(l); len(in) > 0 {
				each = append(each, fmt.Sprintf("%s has %v, inside the cluster's pod ranges: have the network give it another address, or give the cluster other podCIDRs", a.Name, in[0]))
			} else {
				each = append(each, a.Name+" has no address")
			}
		}
	}
	const none = "no interface that leads off this host is up and has an address"
	if len(each) == 0 {
		return none
	}
	return none + ": " + wording.Most(each, 4)
}
