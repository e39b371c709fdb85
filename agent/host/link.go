package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/cni/conf"
)

// diffBridge compares the bridge: kind, MAC, MTU, sysctls, gateway addresses, up.
func diffBridge(fs families) ([]change, error) {
	if fs.keep {
		return diffNoBridge()
	}
	link, err := findLink(BridgeName, "bridge")
	if err != nil {
		return nil, err
	}
	mac := conf.BridgeMAC(BridgeName)
	var out []change
	if link == nil {
		// Made here, configured by the following changes: their diffs need the
		// interface, so each looks again when it is done.
		out = append(out, change{"create bridge " + BridgeName, func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.HardwareAddr = BridgeName, fs.mtu, mac
			err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			return applyAll(func() ([]change, error) { return diffBridge(fs) })
		}})
		return out, nil
	}
	if !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		out = append(out, change{fmt.Sprintf("set MAC of %s to %s", BridgeName, mac), func() error {
			return netlink.LinkSetHardwareAddr(link, mac)
		}})
	}
	if link.Attrs().Alias != bridgeAlias {
		out = append(out, change{"mark " + BridgeName + " as ours", func() error { return netlink.LinkSetAlias(link, bridgeAlias) }})
	}
	more, err := diffLink(link, fs, false)
	if err != nil {
		return nil, err
	}
	orphans, err := diffPorts(link, fs.promisc)
	return slices.Concat(out, more, diffPromisc(link, fs.promisc), orphans), err
}

// diffPromisc compares the bridge's own setting. A program that listens on it
// (tcpdump) does not count.
func diffPromisc(bridge netlink.Link, want bool) []change {
	if want == (bridge.Attrs().RawFlags&unix.IFF_PROMISC != 0) {
		return nil
	}
	return []change{{fmt.Sprintf("set promiscuous mode of %s to %t", BridgeName, want), func() error {
		set := netlink.SetPromiscOff
		if want {
			set = netlink.SetPromiscOn
		}
		if err := set(bridge); err != nil {
			return err
		}
		return setHairpins(bridge, !want)
	}}}
}

// setHairpins sets the ports that are pods': a promiscuous bridge brings a pod its
// own packets back, and hairpins would do so twice.
func setHairpins(bridge netlink.Link, on bool) error {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex != bridge.Attrs().Index || !isPod(l) {
			continue
		}
		if err := ignore(netlink.LinkSetHairpin(l, on), unix.ENODEV); err != nil {
			return fmt.Errorf("port %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

func isPod(l netlink.Link) bool {
	return l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, conf.PodAlias)
}

// diffPorts plugs in pods' interfaces that lost their bridge: somebody deleted
// it. The plugin has configured all else of them.
func diffPorts(bridge netlink.Link, promisc bool) ([]change, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []change
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex != 0 || !isPod(l) {
			continue
		}
		out = append(out, change{"plug " + a.Name + " into " + BridgeName, func() error {
			err := netlink.LinkSetMaster(l, bridge)
			if err == nil {
				err = netlink.LinkSetHairpin(l, !promisc)
			}
			return ignore(err, unix.ENODEV) // the pod went meanwhile
		}})
	}
	return out, nil
}

// diffTUN compares the TUN's MTU, sysctls and addresses. The device itself is
// the agent's to open.
func diffTUN(fs families) ([]change, error) {
	link, err := findLink(TUNName, "tuntap")
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, ErrNoTUN
	}
	return diffLink(link, fs, true)
}

// diffLink compares what bridge and TUN have in common. On the TUN the gateway
// stands alone (/32, /128): source selection and MASQUERADE find an address of
// the cluster there.
func diffLink(link netlink.Link, fs families, single bool) ([]change, error) {
	attrs := link.Attrs()
	out, err := diffLinkSysctls(attrs.Name, fs, single)
	if err != nil {
		return nil, err
	}
	if attrs.MTU != fs.mtu {
		out = append(out, change{fmt.Sprintf("set MTU of %s to %d", attrs.Name, fs.mtu), func() error {
			return netlink.LinkSetMTU(link, fs.mtu)
		}})
	}
	if attrs.Flags&net.FlagUp == 0 {
		out = append(out, change{"set " + attrs.Name + " up", func() error { return netlink.LinkSetUp(link) }})
	}
	for _, f := range fs.held() {
		more, err := diffAddrs(link, f, single)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// diffAddrs compares the global addresses of one family; those of former
// blocks go.
func diffAddrs(link netlink.Link, f family, single bool) ([]change, error) {
	name := link.Attrs().Name
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, f.id()) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", name, err)
	}
	want := map[netip.Prefix]bool{}
	var order []netip.Prefix
	for _, gw := range f.gateways() {
		if single {
			gw = netip.PrefixFrom(gw.Addr(), gw.Addr().BitLen())
		}
		want[gw] = true
		order = append(order, gw)
	}
	var out []change
	for _, a := range have {
		p := prefixOf(a.IPNet)
		if f.v6 && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if want[p] && a.Flags&unix.IFA_F_DADFAILED == 0 {
			delete(want, p)
			continue
		}
		out = append(out, change{fmt.Sprintf("delete address %s of %s", p, name), func() error {
			return ignore(netlink.AddrDel(link, &a), unix.EADDRNOTAVAIL)
		}})
	}
	for _, p := range order {
		if !want[p] {
			continue
		}
		out = append(out, change{fmt.Sprintf("add address %s to %s", p, name), func() error {
			a := &netlink.Addr{IPNet: ipNet(p)}
			if f.v6 {
				a.Flags = unix.IFA_F_NODAD // a bridge without ports would stay tentative
			}
			return ignore(netlink.AddrAdd(link, a), unix.EEXIST)
		}})
	}
	return out, nil
}

// findLink returns nil without error when no interface is named so, and
// ErrNameTaken when it is of another kind.
func findLink(name, kind string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	if t, ok := link.(*netlink.Tuntap); ok && t.Mode == netlink.TUNTAP_MODE_TAP {
		return nil, fmt.Errorf("%s is a tap: %w", name, ErrNameTaken)
	}
	if link.Type() != kind {
		return nil, fmt.Errorf("%s is a %s: %w", name, link.Type(), ErrNameTaken)
	}
	return link, nil
}

func deleteLink(name, kind string) error {
	link, err := findLink(name, kind)
	if link == nil {
		return err
	}
	return ignore(netlink.LinkDel(link), unix.ENODEV)
}

// applyAll does the changes diff tells until there is none left.
func applyAll(diff func() ([]change, error)) error {
	changes, err := diff()
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := c.do(); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return nil
}

// dump retries a listing that the kernel's state outran (NLM_F_DUMP_INTR).
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		all, err := list()
		if err == nil || try == 4 || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
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
