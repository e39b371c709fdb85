package p2p

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/portmap"
)

// startMapping begins to ask routers for a port.
func (n *Node) startMapping() {
	cfg := portmap.Config{Gateways: n.gateways, Log: n.log,
		Public: endpoint.IsPublic,
		Changed: func() { // attempts that were in vain may succeed now
			n.peers.natChanged()
			n.peers.netChanged()
		},
	}
	cfg.TCP, cfg.UDP = n.dialer.Ports()
	if cfg.TCP == 0 && cfg.UDP == 0 {
		return
	}
	m := portmap.New(cfg)
	n.mapper.Store(m)
	n.spawn(func() { m.Run(n.ctx) })
}

// gateways are the routers of default routes over uplinks that lead to a local
// network with private IPv4 addresses.
func (n *Node) gateways() []portmap.Gateway {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil
	}
	var out []portmap.Gateway
	for _, l := range n.addrs.LAN() {
		for _, route := range routes {
			gw, ok := netip.AddrFromSlice(route.Gw)
			isDefault := route.Dst == nil || route.Dst.IP.IsUnspecified()
			if !ok || !isDefault || route.LinkIndex != l.Index {
				continue
			}
			for _, p := range l.Prefixes {
				g := portmap.Gateway{Router: gw.Unmap(), Local: p.Addr()}
				if p.Addr().Is4() && p.Contains(g.Router) && !slices.Contains(out, g) {
					out = append(out, g)
				}
			}
		}
	}
	return out
}

// mapped are the endpoints at which routers let others in.
func (n *Node) mapped() []endpoint.Endpoint {
	m := n.mapper.Load()
	if m == nil {
		return nil
	}
	var out []endpoint.Endpoint
	for _, x := range m.Mappings() {
		out = append(out, endpoint.Endpoint{UDP: x.UDP, Addr: x.External})
	}
	return out
}

// remap has routers asked again: what relays see has changed.
func (n *Node) remap() {
	if m := n.mapper.Load(); m != nil {
		m.Again()
	}
}
