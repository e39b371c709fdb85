package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/antispoof"
)

// ErrDiffers means that an attachment has changed since ADD.
var ErrDiffers = errors.New("the attachment is not as ADD left it")

func differs(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDiffers, fmt.Sprintf(format, args...))
}

// Check compares the kernel with what the pod should have. The error wraps ErrDiffers and
// says what differs. It does not compare the MTU, which a chained plugin may have changed; mac is p's unless one has.
func Check(p Pod, mac net.HardwareAddr, bridge string, netns ns.NetNS, filtered bool) error {
	if err := checkHost(p, bridge, filtered); err != nil {
		return err
	}
	return netns.Do(func(ns.NetNS) error { return checkPod(p, mac) })
}

func checkHost(p Pod, bridge string, filtered bool) error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return differs("bridge %s: %v", bridge, err)
	}
	if br.Attrs().Flags&net.FlagUp == 0 {
		return differs("bridge %s is down", bridge)
	}
	addrs, err := addrList(br)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", bridge, err)
	}
	for _, a := range p.Addrs {
		if !hasAddr(addrs, netip.PrefixFrom(a.Gateway, a.Prefix.Bits())) {
			return differs("bridge %s lacks the gateway %s/%d", bridge, a.Gateway, a.Prefix.Bits())
		}
	}
	host, err := hostEnd(p.Owner)
	if err != nil {
		return differs("host interface %s: %v", HostName(p.Owner), err)
	}
	name := host.Attrs().Name
	switch {
	case host.Attrs().MasterIndex != br.Attrs().Index:
		return differs("host interface %s is not a port of %s", name, bridge)
	case host.Attrs().Flags&net.FlagUp == 0:
		return differs("host interface %s is down", name)
	}
	if !filtered {
		return nil
	}
	ok, err := antispoof.Attached(host)
	if err != nil {
		return err
	}
	if !ok {
		return differs("host interface %s has lost its source filter", name)
	}
	return nil
}

func checkPod(p Pod, mac net.HardwareAddr) error {
	name := p.Owner.IfName
	link, err := netlink.LinkByName(name)
	if err != nil {
		return differs("%s in the container: %v", name, err)
	}
	switch {
	case link.Type() != "veth":
		return differs("%s in the container is a %s", name, link.Type())
	case link.Attrs().Flags&net.FlagUp == 0:
		return differs("%s in the container is down", name)
	case !bytes.Equal(link.Attrs().HardwareAddr, mac):
		return differs("%s in the container has MAC %s, not %s", name, link.Attrs().HardwareAddr, mac)
	}
	addrs, err := addrList(link)
	if err != nil {
		return fmt.Errorf("list addresses in the container: %w", err)
	}
	for _, a := range p.Addrs {
		if !hasAddr(addrs, a.Prefix) {
			return differs("%s in the container lacks %s", name, a.Prefix)
		}
		family := netlink.FAMILY_V4
		if a.Gateway.Is6() {
			family = netlink.FAMILY_V6
		}
		on := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC} // a further interface has a table of its own
		routes, err := Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, on, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("list routes in the container: %w", err)
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return isDefault(r) && r.Gw.Equal(a.Gateway.AsSlice())
		}) {
			return differs("the container lacks the default route through %s", a.Gateway)
		}
	}
	return nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

func hasAddr(addrs []netlink.Addr, p netip.Prefix) bool {
	want := IPNet(p).String()
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == want })
}
