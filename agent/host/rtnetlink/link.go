package rtnetlink

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/uplink"
)

// DiffTUN compares the TUN's MTU, sysctls and addresses. The agent opens the device
// itself.
func DiffTUN(s plan.State) ([]plan.Change, error) {
	link, err := findLink(plan.TUNName, "tuntap")
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, ErrNoTUN
	}
	return diffLink(link, s, true)
}

// create makes an interface, then runs diff again to configure it: diff needs the interface
// to exist.
func create(what string, s plan.State, diff func(plan.State) ([]plan.Change, error), add func() error) []plan.Change {
	return []plan.Change{{What: "create " + what, Do: func() error {
		if err := add(); err != nil {
			return err
		}
		return plan.Apply(func() ([]plan.Change, error) { return diff(s) })
	}}}
}

func diffMAC(link netlink.Link, mac net.HardwareAddr) []plan.Change {
	if bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	return []plan.Change{{What: fmt.Sprintf("set MAC of %s to %s", link.Attrs().Name, mac), Do: func() error { return netlink.LinkSetHardwareAddr(link, mac) }}}
}

// minIPv6MTU is the least that links with IPv6 carry, in bytes (RFC 8200, section 5).
const minIPv6MTU = 1280

// diffLink compares what all our interfaces have in common. Where single is true the gateway
// has a prefix of its own (/32, /128), so that source selection and MASQUERADE find an
// address of the cluster on the interface.
func diffLink(link netlink.Link, s plan.State, single bool) ([]plan.Change, error) {
	attrs := link.Attrs()
	if attrs.MTU < minIPv6MTU && s.MTU >= minIPv6MTU { // the kernel has taken IPv6 from it, and its sysctls
		return []plan.Change{{What: fmt.Sprintf("set MTU of %s to %d", attrs.Name, s.MTU), Do: func() error {
			if err := netlink.LinkSetMTU(link, s.MTU); err != nil {
				return err
			}
			attrs.MTU = s.MTU
			return plan.Apply(func() ([]plan.Change, error) { return diffLink(link, s, single) })
		}}}, nil
	}
	out, err := sysctl.DiffLink(attrs.Name, s, single)
	if err != nil {
		return nil, err
	}
	if attrs.MTU != s.MTU {
		out = append(out, plan.Change{What: fmt.Sprintf("set MTU of %s to %d", attrs.Name, s.MTU), Do: func() error {
			return netlink.LinkSetMTU(link, s.MTU)
		}})
	}
	if attrs.Flags&net.FlagUp == 0 {
		out = append(out, plan.Change{What: "set " + attrs.Name + " up", Do: func() error { return netlink.LinkSetUp(link) }})
	}
	for _, f := range s.Held() {
		more, err := diffAddrs(link, f, single)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// diffAddrs compares the global addresses of one family and deletes those of former
// blocks, except that the bridge, or the TUN in keep mode, keeps what kubelet reports.
func diffAddrs(link netlink.Link, f plan.Family, single bool) ([]plan.Change, error) {
	name := link.Attrs().Name
	have, err := dump("addresses of "+name, func() ([]netlink.Addr, error) { return netlink.AddrList(link, f.ID()) })
	if err != nil {
		return nil, err
	}
	want := map[netip.Prefix]bool{}
	var order []netip.Prefix
	for _, gw := range f.Gateways() {
		if single {
			gw = plan.Single(gw.Addr())
		}
		want[gw] = true
		order = append(order, gw)
	}
	if name == plan.BridgeName || name == plan.TUNName && f.Keep {
		for _, a := range f.Former {
			p, keep := plan.Single(a), f.InRange(plan.Single(a))
			for _, h := range have {
				// As the gateway that it was; but inside of an own block, addresses of its former block are pods' now, the
				// broadcast address that comes with the length among them.
				if was := prefixOf(h.IPNet); was.Addr() == a && !f.Own(a) {
					p, keep = was, true
				}
			}
			if keep {
				want[p] = true
				order = append(order, p)
			}
		}
	}
	var out []plan.Change
	for _, a := range have {
		p := prefixOf(a.IPNet)
		if f.V6 && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if want[p] && a.Flags&unix.IFA_F_DADFAILED == 0 {
			delete(want, p)
			continue
		}
		out = append(out, plan.Change{What: fmt.Sprintf("delete address %s of %s", p, name), Do: func() error {
			return ignore(netlink.AddrDel(link, &a), unix.EADDRNOTAVAIL)
		}})
	}
	for _, p := range order {
		if !want[p] {
			continue
		}
		out = append(out, plan.Change{What: fmt.Sprintf("add address %s to %s", p, name), Do: func() error {
			a := &netlink.Addr{IPNet: ipNet(p)}
			if f.V6 {
				a.Flags = unix.IFA_F_NODAD // a bridge without ports would stay tentative
			}
			return ignore(netlink.AddrAdd(link, a), unix.EEXIST)
		}})
	}
	return out, nil
}

// findLink returns nil without an error when there is no interface of this name, and
// ErrNameTaken when it is of another kind.
func findLink(name, kind string) (netlink.Link, error) {
	link, err := linkByName(name)
	if link == nil {
		return nil, err
	}
	if t, ok := link.(*netlink.Tuntap); ok && t.Mode == netlink.TUNTAP_MODE_TAP {
		return nil, fmt.Errorf("%s is a tap: %w", name, ErrNameTaken)
	}
	if link.Type() != kind {
		return nil, fmt.Errorf("%s is a %s: %w", name, link.Type(), ErrNameTaken)
	}
	return link, nil
}

// linkByName returns nil without an error when there is no interface of this name.
func linkByName(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return link, nil
}

func deleteLink(link netlink.Link) error { return ignore(netlink.LinkDel(link), unix.ENODEV) }

// CheckTUN fails if no process has the TUN open: the kernel gives it a carrier while one has.
// The error wraps ErrNoTUN if there is none.
func CheckTUN() error {
	link, err := findLink(plan.TUNName, "tuntap")
	switch {
	case err != nil:
		return err
	case link == nil:
		return ErrNoTUN
	case link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0:
		return errors.New("no process has the TUN " + plan.TUNName + " open: packets to other nodes are dropped")
	}
	return nil
}

// DiffFormerTUN removes the TUN of an earlier agent. It comes after the routes: ours carry everything by then.
func DiffFormerTUN(s plan.State) ([]plan.Change, error) {
	link, err := formerTUN()
	if link == nil || err != nil {
		return nil, err
	}
	for _, f := range s.Each {
		addrs, err := dump("addresses of "+plan.FormerTUNName, func() ([]netlink.Addr, error) { return netlink.AddrList(link, f.ID()) })
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p := prefixOf(a.IPNet).Addr(); !(f.V6 && p.IsLinkLocalUnicast()) && !slices.ContainsFunc(f.Ranges, func(r netip.Prefix) bool { return r.Contains(p) }) {
				return nil, nil // another's: an agent's has addresses of the pod network
			}
		}
	}
	return []plan.Change{{What: "delete " + plan.FormerTUNName + ", the name of earlier agents", Do: func() error { return deleteLink(link) }}}, nil
}

// formerTUN finds a TUN under the name of earlier agents. EdgeMesh's device of that name is a dummy.
func formerTUN() (netlink.Link, error) {
	link, err := findLink(plan.FormerTUNName, "tuntap")
	if errors.Is(err, ErrNameTaken) {
		return nil, nil
	}
	return link, err
}

// DeleteTUN removes the TUN if it is ours, under either name.
func DeleteTUN() error {
	return errors.Join(deleteOurs(findLink(plan.TUNName, "tuntap")), deleteOurs(formerTUN()))
}

// deleteOurs deletes the link that a lookup found. A foreign link stays.
func deleteOurs(link netlink.Link, err error) error {
	if errors.Is(err, ErrNameTaken) {
		return nil
	}
	if link == nil {
		return err
	}
	return deleteLink(link)
}

// Uplinks lists the private addresses, and those in the IPv6 internet, of links that lead to other hosts, in the
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
		if link == nil || !mesh.PrivateUnderlay(p.Addr()) && (!mesh.GlobalUnderlay(p.Addr()) || a.Flags&unix.IFA_F_DEPRECATED != 0) || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 ||
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

// Neighbour is the MAC that the kernel has for an address on a link, none if it looked without success, and when it was confirmed; the error
// is fs.ErrNotExist if it has not looked.
func Neighbour(link string, a netip.Addr) (mac [6]byte, confirmed time.Time, err error) {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return mac, confirmed, err
	}
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := dump("neighbours of "+link, func() ([]netlink.Neigh, error) { return netlink.NeighList(l.Attrs().Index, family) })
	if err != nil {
		return mac, confirmed, err
	}
	i := slices.IndexFunc(all, func(n netlink.Neigh) bool { return n.IP.Equal(a.AsSlice()) })
	switch {
	case i < 0:
		return mac, confirmed, fs.ErrNotExist
	case all[i].State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) != 0:
		return mac, confirmed, nil
	case len(all[i].HardwareAddr) != len(mac):
		return mac, confirmed, fs.ErrNotExist
	}
	const tick = 10 * time.Millisecond // sysconf(_SC_CLK_TCK), on all of Linux
	return [6]byte(all[i].HardwareAddr), time.Now().Add(-time.Duration(all[i].Confirmed) * tick), nil
}
