package netcheck

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/control"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/nat/portmap"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/uplinks"
	"edgemesh/tunnel/p2p/who/members"
)

// portMappingTime is how long routers may take to answer.
const portMappingTime = 5 * time.Second

// servers are one UDP address of each relay and IP version.
func (k *checker) servers(ctx context.Context) []netip.AddrPort {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var out []netip.AddrPort
	for _, r := range k.Relays {
		var have [2]bool
		for _, t := range targets(r.Addrs) {
			if t.kind != udp {
				continue
			}
			a, err := k.lookup(ctx, t)
			v := 0
			if a.Addr().Is6() {
				v = 1
			}
			if err == nil && !have[v] {
				have[v] = true
				to, _ := k.Names.Via(ctx, a.Addr())
				out = append(out, netip.AddrPortFrom(to, a.Port()))
			}
		}
	}
	return out
}

// mapped queries up to two relays of each IP version from one socket.
func (k *checker) mapped(ctx context.Context, servers []netip.AddrPort) []Mapped {
	out := []Mapped{}
	for _, family := range []string{"ipv4", "ipv6"} {
		of := slices.DeleteFunc(slices.Clone(servers), func(a netip.AddrPort) bool { return a.Addr().Is4() != (family == "ipv4") })
		if len(of) == 0 {
			continue
		}
		c, err := k.listen(ctx, of[0].Addr())
		if err != nil {
			continue
		}
		for _, server := range of[:min(2, len(of))] {
			one, cancel := context.WithTimeout(ctx, queryTimeout/2)
			a, err := stun.Query(one, c, server)
			cancel()
			if err == nil {
				out = append(out, Mapped{Family: family, Local: localOf(c, server), Seen: a.Mapped, Server: server})
			}
		}
		_ = c.Close()
	}
	return out
}

// localOf is c's address as packets to server have it.
func localOf(c net.PacketConn, server netip.AddrPort) netip.AddrPort {
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	out := netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), uint16(local.Port))
	if routed, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server)); err == nil { // sends nothing
		if a, ok := routed.LocalAddr().(*net.UDPAddr); ok {
			out = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), out.Port())
		}
		_ = routed.Close()
	}
	return out
}

// nat finds out what kind of NAT there is, as the agent does.
func (k *checker) nat(ctx context.Context, servers []netip.AddrPort) control.NAT {
	of := slices.DeleteFunc(slices.Clone(servers), func(a netip.AddrPort) bool { return !a.Addr().Is4() })
	if len(of) == 0 {
		of = servers
	}
	if len(of) == 0 {
		return control.NAT{Kind: "unknown", Detail: "not measured: no UDP address of a relay is known"}
	}
	v, _ := sense.Look(ctx, sense.Config{
		Servers: func() []netip.AddrPort { return of },
		Listen: func(network string) (net.PacketConn, error) {
			if network == "udp4" {
				return k.listen(ctx, netip.IPv4Unspecified())
			}
			return k.listen(ctx, netip.IPv6Unspecified())
		},
		Owns: k.addrs().Owns, Log: k.Log,
	})
	return control.NAT{Kind: v.Kind.String(), Detail: sense.Text(v.Kind)}
}

// addrs reads this host's addresses.
func (k *checker) addrs() *uplinks.Addrs {
	v := members.NewView(peer.ID("netcheck"), members.Membership{})
	return uplinks.New(func() *members.View { return v }, func() []ma.Multiaddr { return nil })
}

// portMapping requests a port from routers, and gives it back.
func (k *checker) portMapping(ctx context.Context) string {
	c, err := k.listen(ctx, netip.IPv4Unspecified())
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return ""
	}
	addrs := k.addrs()
	ctx, cancel := context.WithTimeout(ctx, portMappingTime)
	defer cancel()
	var m *portmap.Mapper
	granted := make(chan string, 1)
	m = portmap.New(portmap.Config{
		Ports: func() (uint16, uint16) { return 0, uint16(local.Port) }, Public: endpoint.IsPublic, Log: k.Log,
		Gateways: func() []portmap.Gateway { return portmap.Gateways(addrs.LAN()) },
		Changed: func() { // there is nothing more to know; when the port is given back, it is called again
			select {
			case granted <- m.String():
			default:
			}
			cancel()
		},
	})
	m.Run(ctx)
	select {
	case said := <-granted:
		return said
	default:
	}
	return cmp.Or(m.String(), "no router before this host")
}

// uplinks are the interfaces that lead off this host.
func (k *checker) uplinks() []Uplink {
	out := []Uplink{}
	for _, l := range k.addrs().Links() {
		i, err := net.InterfaceByIndex(l.Index)
		if err != nil {
			continue
		}
		u := Uplink{Name: i.Name, MTU: i.MTU, Addrs: []netip.Addr{}}
		for _, p := range l.Prefixes {
			u.Addrs = append(u.Addrs, p.Addr())
		}
		out = append(out, u)
	}
	return out
}
