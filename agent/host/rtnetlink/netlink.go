// Package rtnetlink compares and changes what rtnetlink(7) holds: interfaces,
// addresses, routes, rules and neighbours.
//
//	netlink.go  what all listings share
//	batch.go    many requests in one call
//	link.go     an interface's addresses, MTU and sysctls; the TUN; what leads to other hosts
//	bridge.go   the bridge and its ports
//	apart.go    its ports kept apart, where the host forwards between pods; announce.go: pods learn its MAC
//	others.go   what other programs configure on our interfaces and pods'
//	vxlan.go    the VXLAN device
//	rule.go     policy rules
//	place.go    where our rules stand among those of other programs
//	table.go    our tables: what a route is; routes of own blocks and ranges, and blackholes
//	path.go     what native and VXLAN paths need: routes, probe routes, neighbours and forwarding entries
//	foreign.go  foreign state under our names or ahead of ours; Cleanup
package rtnetlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"

	"edgemesh/internal/uplink"
)

// dump lists what. It repeats a listing during which the kernel's state changed
// (NLM_F_DUMP_INTR).
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

// ignore returns nil for the errno that means that the change was already made.
func ignore(err error, done unix.Errno) error {
	if errors.Is(err, done) {
		return nil
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf is the reverse of ipNet; nil becomes the invalid prefix.
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

// addrOf converts an address; nil becomes the invalid one.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// LinkIndexes maps the names of all interfaces that are up to their indexes. The kernel
// drops the routes of an interface that is set down, announces nothing, and accepts no new ones.
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

// Foreign lists the interfaces that are not ours.
func Foreign() ([]netlink.Link, error) {
	links, err := Links()
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		return plan.OurLink(l.Attrs().Name) || l.Attrs().Name == plan.FormerTUNName && l.Type() == "tuntap"
	}), err
}

// Addressed keeps the names of links that are up and have an address on a prefix with other hosts.
func Addressed(links []netlink.Link, names []string) (out []string, err error) {
	all, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	for _, l := range links {
		a := l.Attrs()
		has := slices.ContainsFunc(all, func(x netlink.Addr) bool {
			p := prefixOf(x.IPNet)
			return x.LinkIndex == a.Index && !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast()
		})
		if has && a.Flags&net.FlagUp != 0 && slices.Contains(names, a.Name) {
			out = append(out, a.Name)
		}
	}
	return out, err
}

// NoTranslators leaves out the names of links that translate this host's own packets, which then leave by an uplink: TUN devices
// alone, since a DHCP server may give any address to hardware.
func NoTranslators(links []netlink.Link, names []string) ([]string, error) {
	all, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	for _, l := range links {
		t, is := l.(*netlink.Tuntap)
		if is && t.Mode == netlink.TUNTAP_MODE_TUN && slices.ContainsFunc(all, func(x netlink.Addr) bool {
			return x.LinkIndex == t.Index && uplink.Continuity.Contains(prefixOf(x.IPNet).Addr())
		}) {
			names = slices.DeleteFunc(names, func(n string) bool { return n == t.Name })
		}
	}
	return names, err
}

// OnLink returns a function that lists the interfaces, by index, that have an address's prefix: that of the
// address, and others of the same LAN.
func OnLink() (func(netip.Addr) []int, error) {
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	return func(local netip.Addr) (out []int) {
		for _, a := range addrs {
			if prefixOf(a.IPNet).Contains(local) && !slices.Contains(out, a.LinkIndex) {
				out = append(out, a.LinkIndex)
			}
		}
		return out
	}, nil
}

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

var (
	// ErrNoTUN means that the TUN does not exist yet. Everything that does not
	// need it was set: pods of this node reach each other, and blackhole
	// routes drop packets for the rest of the cluster's ranges.
	ErrNoTUN = errors.New("the TUN " + plan.TUNName + " does not exist; the agent has to open it first")
	// ErrNameTaken means that a foreign interface has one of our names.
	ErrNameTaken = errors.New("an interface of another program has this name; rename or delete it (ip link delete)")
	// ErrTableTaken means that foreign routes were in one of our routing tables
	// before us.
	ErrTableTaken = errors.New("another program uses this routing table; move its routes to another number")
	// ErrPodsLeft means that the bridge cannot be removed: pods are attached to it.
	ErrPodsLeft = errors.New("pods of our own plugin still run on " + plan.BridgeName +
		"; drain the node before cniMode: keep, or set cniMode: own")
)
