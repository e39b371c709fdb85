package portmap

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"edgemesh/tunnel/p2p/nat/uplinks"
)

// Gateway is a router, and the address of this host that it knows.
type Gateway struct {
	Router netip.Addr
	Local  netip.Addr
}

// Gateways returns the routers of default routes over the given uplinks, as far as they have private IPv4 addresses.
func Gateways(links []uplinks.Link) []Gateway {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil
	}
	var out []Gateway
	for _, l := range links {
		for _, route := range routes {
			gw, ok := netip.AddrFromSlice(route.Gw)
			isDefault := route.Dst == nil || route.Dst.IP.IsUnspecified()
			if !ok || !isDefault || route.LinkIndex != l.Index {
				continue
			}
			for _, p := range l.Prefixes {
				g := Gateway{Router: gw.Unmap(), Local: p.Addr()}
				if p.Addr().Is4() && p.Contains(g.Router) && !slices.Contains(out, g) {
					out = append(out, g)
				}
			}
		}
	}
	return out
}
