package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
)

// DiffOthers finds what programs that configure every interface they find (dhcpcd, connman, NetworkManager, systemd-networkd)
// have added to ours and to the host's ends of pods' interfaces: addresses, and routes that lead the host's packets there.
func DiffOthers(s plan.State) ([]plan.Change, error) {
	links, err := Links()
	if err != nil {
		return nil, err
	}
	ours, pods := map[int]netlink.Link{}, map[int]netlink.Link{}
	for _, l := range links {
		a := l.Attrs()
		switch {
		case IsPod(l):
			pods[a.Index] = l
		case plan.OurLink(a.Name) && (a.Name != plan.VXLANName || oursVXLAN(l)):
			ours[a.Index] = l
		}
	}
	var out []plan.Change
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		l := pods[a.LinkIndex]
		switch {
		case l != nil && p.Addr().Is6(): // the plugin switched IPv6 off there
			more, err := sysctl.DiffPod(l.Attrs().Name)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		case l == nil && ours[a.LinkIndex] != nil && strange(s, p.Addr()):
			l = ours[a.LinkIndex]
			fallthrough
		case l != nil:
			out = append(out, plan.Change{What: fmt.Sprintf("delete address %s of %s", p, l.Attrs().Name), Do: func() error {
				return ignore(netlink.AddrDel(l, &a), unix.EADDRNOTAVAIL)
			}})
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump("routes", func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			l := pods[r.LinkIndex]
			if l == nil && misleads(s, r) {
				l = ours[r.LinkIndex]
			}
			if l == nil || r.Protocol == unix.RTPROT_KERNEL || r.Table == unix.RT_TABLE_LOCAL {
				continue
			}
			to := "default"
			if p := prefixOf(r.Dst); p.IsValid() && p.Bits() > 0 {
				to = p.String()
			}
			out = append(out, plan.Change{What: fmt.Sprintf("delete route %s dev %s (table %d, metric %d, proto %s)", to, l.Attrs().Name, r.Table, r.Priority, r.Protocol),
				Do: func() error { return ignore(netlink.RouteDel(&r), unix.ESRCH) }})
		}
	}
	return out, nil
}

// strange reports whether an address on an interface of ours is another program's: addresses inside of ranges, blocks and former
// blocks are compared elsewhere.
func strange(s plan.State, a netip.Addr) bool {
	f := s.Of(a)
	return !(a.Is6() && a.IsLinkLocalUnicast()) && !f.InRange(plan.Single(a)) && !f.Own(a) && a != f.Gateway && !slices.Contains(f.Former, a)
}

// misleads reports whether a route of table main over an interface of ours is none that an operator makes on purpose: into the
// ranges, to a network behind a pod, or one without gateway to IPv6 Services (docs/ipv6.md), whose range is unique-local.
func misleads(s plan.State, r netlink.Route) bool {
	if r.Table != unix.RT_TABLE_MAIN || r.Protocol == plan.RouteProtocol {
		return false
	}
	dst, via := prefixOf(r.Dst), addrOf(r.Gw)
	if !dst.IsValid() || dst.Bits() == 0 {
		return true
	}
	f := s.Of(dst.Addr())
	byHand := r.Protocol == unix.RTPROT_BOOT || r.Protocol == unix.RTPROT_STATIC
	services := !via.IsValid() && dst.Addr().Is6() && dst.Addr().IsPrivate() && !dst.IsSingleIP()
	return !f.InRange(dst) && !mesh.Inside(f.Blocks, dst) && !(byHand && (services || via.IsValid() && f.Own(via)))
}

// Exits are the interfaces with a default route of IPv4.
func Exits() (out []string, err error) {
	routes, err := dump("routes", func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		links := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			links = append(links, hop.LinkIndex)
		}
		for _, index := range links {
			if l, err := netlink.LinkByIndex(index); err == nil && !plan.OurLink(l.Attrs().Name) && !slices.Contains(out, l.Attrs().Name) {
				out = append(out, l.Attrs().Name)
			}
		}
	}
	return out, nil
}
