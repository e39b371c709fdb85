package p2p

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/portmap"
)

// startMapping begins to ask routers for a port.
func (n *Node) startMapping() {
	cfg := portmap.Config{Gateways: n.gateways, Log: n.log,
		Public: func(ip netip.Addr) bool {
			return manet.IsPublicAddr(endpoint{addr: netip.AddrPortFrom(ip, 1)}.multiaddr())
		},
		Changed: func() { // attempts that were in vain may succeed now
			n.peers.natChanged()
			n.peers.netChanged()
		},
	}
	for _, a := range n.ListenAddrs() {
		e, ok := parseEndpoint(a)
		switch {
		case !ok || e.addr.Addr().IsLoopback():
		case e.udp && cfg.UDP == 0:
			cfg.UDP = e.addr.Port()
		case !e.udp && cfg.TCP == 0:
			cfg.TCP = e.addr.Port()
		}
	}
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
	r := n.gater.members.Load()
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil
	}
	var out []portmap.Gateway
	for _, l := range n.uplinks.lan(r) {
		for _, route := range routes {
			gw, ok := netip.AddrFromSlice(route.Gw)
			isDefault := route.Dst == nil || route.Dst.IP.IsUnspecified()
			if !ok || !isDefault || route.LinkIndex != l.index {
				continue
			}
			for _, p := range l.prefixes {
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
func (n *Node) mapped() []endpoint {
	m := n.mapper.Load()
	if m == nil {
		return nil
	}
	var out []endpoint
	for _, x := range m.Mappings() {
		out = append(out, endpoint{udp: x.UDP, addr: x.External})
	}
	return out
}

// remap has routers asked again: what relays see has changed.
func (n *Node) remap() {
	if m := n.mapper.Load(); m != nil {
		m.Again()
	}
}
