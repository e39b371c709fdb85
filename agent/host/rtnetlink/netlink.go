// Package rtnetlink compares and changes what rtnetlink(7) holds: interfaces,
// addresses, routes, rules and neighbours.
//
//	netlink.go    what every listing shares
//	batch.go      many requests in one call
//	link.go       an interface's addresses, MTU and sysctls; the TUN
//	bridge.go     the bridge and its ports
//	vxlan.go      the VXLAN device
//	rule.go       policy rules
//	table.go      a route of our tables, and which the kernel has
//	route.go      routes of own blocks and ranges, and blackholes
//	neighbour.go  the VXLAN device's neighbours and forwarding entries
//	path.go       what native and VXLAN paths need: routes, routes of probes, neighbours
//	foreign.go    what is foreign and in our place or before it; Cleanup of what is ours
//	uplink.go     interfaces and addresses that lead to other hosts
//	errors.go
package rtnetlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// dump lists what, again where the kernel's state outran the listing (NLM_F_DUMP_INTR).
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		all, err := list()
		switch {
		case err == nil:
			return all, nil
		case try == 4 || !errors.Is(err, netlink.ErrDumpInterrupted):
			return nil, fmt.Errorf("list %s: %w", what, err)
		}
	}
}

// ignore returns nil for the errno that says that a change was made already.
func ignore(err error, done unix.Errno) error {
	if errors.Is(err, done) {
		return nil
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf is the reverse of ipNet; nil is the invalid prefix.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a := addrOf(n.IP)
	bits, size := n.Mask.Size()
	if a.Is4() && size == 128 {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// addrOf is the invalid address for nil.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// LinkIndexes maps the names of all interfaces that are up to their numbers. The kernel
// drops the routes of one that is set down, tells nobody, and takes no new ones.
func LinkIndexes() (map[string]int, error) {
	links, err := Links()
	if err != nil {
		return nil, err
	}
	out := make(map[string]int, len(links))
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp != 0 {
			out[l.Attrs().Name] = l.Attrs().Index
		}
	}
	return out, nil
}

// Links lists all interfaces.
func Links() ([]netlink.Link, error) { return dump("interfaces", netlink.LinkList) }

// Addrs lists the addresses of interfaces that are not ours.
func Addrs() ([]netip.Addr, error) {
	links, err := Links()
	if err != nil {
		return nil, err
	}
	ours := map[int]bool{}
	for _, l := range links {
		ours[l.Attrs().Index] = plan.OurLink(l.Attrs().Name)
	}
	all, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if !ours[a.LinkIndex] {
			out = append(out, prefixOf(a.IPNet).Addr())
		}
	}
	return out, nil
}
