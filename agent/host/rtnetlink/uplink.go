package rtnetlink

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
	"edgemesh/internal/uplink"
)

// Uplinks lists the private addresses of links that lead to other hosts, in the
// order of their numbers. Addresses inside the cluster's ranges are not uplinks.
func Uplinks(ranges []netip.Prefix) ([]mesh.Uplink, error) {
	links, err := Links()
	if err != nil {
		return nil, err
	}
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	usable := uplink.Indexes(links)
	byIndex := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		if a := l.Attrs(); usable[a.Index] && a.RawFlags&unix.IFF_LOWER_UP != 0 {
			byIndex[a.Index] = a
		}
	}
	var out []mesh.Uplink
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		link := byIndex[a.LinkIndex]
		if link == nil || !mesh.PrivateUnderlay(p.Addr()) || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 ||
			p.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 ||
			slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) }) {
			continue
		}
		u := mesh.Uplink{Link: link.Name, Index: link.Index, Addr: p.Addr(), Bits: p.Bits(), MTU: link.MTU}
		if len(link.HardwareAddr) == len(u.MAC) {
			u.MAC = [6]byte(link.HardwareAddr)
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b mesh.Uplink) int {
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return a.Addr.Compare(b.Addr)
	})
	return out, nil
}
