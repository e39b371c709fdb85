package rtnetlink

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// vxlanAlias begins the alias of the VXLAN device. The alias says that the device is ours and which
// IP version its outer packets have, which the kernel does not report.
const vxlanAlias = "edgemesh over "

// aliasOf returns the alias of a device that this version makes. A device with another alias is
// recreated.
func aliasOf(v6 bool) string {
	if v6 {
		return vxlanAlias + "IPv6"
	}
	return vxlanAlias + "IPv4, df"
}

// oursVXLAN reports whether link is a VXLAN device that an agent made.
func oursVXLAN(link netlink.Link) bool {
	return link.Type() == "vxlan" && strings.HasPrefix(link.Attrs().Alias, vxlanAlias)
}

// overIPv6 reports whether the outer packets of a device of ours are IPv6.
func overIPv6(link netlink.Link) bool { return strings.HasPrefix(link.Attrs().Alias, aliasOf(true)) }

// currentVXLAN returns the device of our name or, where an earlier agent has left one, of its name; nil if there is none.
func currentVXLAN() (netlink.Link, error) {
	link, err := linkByName(plan.VXLANName)
	if link != nil || err != nil {
		return link, err
	}
	former, err := linkByName(plan.FormerVXLANName)
	if former == nil || !oursVXLAN(former) {
		return nil, err
	}
	return former, nil
}

// MissingVXLAN returns the reason why there can be no VXLAN device, "" when there can.
func MissingVXLAN(w mesh.LAN) (string, error) {
	link, err := currentVXLAN()
	switch {
	case err != nil:
		return "", err
	case link == nil:
	case !oursVXLAN(link):
		return fmt.Sprintf("the name %s is taken by an interface of another program (%s); delete or rename it (ip link delete)", plan.VXLANName, link.Type()), nil
	case link.(*netlink.Vxlan).Port == int(w.VXLANPort) && overIPv6(link) == w.IPv6Underlay && link.Attrs().Flags&net.FlagUp != 0:
		return "", nil // our device has the port
	}
	if err := tryPort(int(w.VXLANPort), w.IPv6Underlay); err != nil {
		return fmt.Sprintf("UDP port %d is in use by another program: stop it, or set lan.vxlanPort on every node: %v", w.VXLANPort, err), nil
	}
	return "", nil
}

// tryPort fails if a VXLAN device could not have a UDP port. Like the kernel's socket, the one here
// has only the IP version of the outer packets.
func tryPort(port int, v6 bool) error {
	domain := unix.AF_INET
	var at unix.Sockaddr = &unix.SockaddrInet4{Port: port}
	if v6 {
		domain, at = unix.AF_INET6, &unix.SockaddrInet6{Port: port}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open udp socket: %w", err)
	}
	defer unix.Close(fd)
	if v6 {
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("open udp socket: %w", err)
		}
	}
	return unix.Bind(fd, at)
}

// DiffStaleVXLAN removes a device of ours that is not wanted, or not with its settings, while the
// firewall still checks what arrives at its port.
func DiffStaleVXLAN(s plan.State) ([]plan.Change, error) {
	link, err := currentVXLAN()
	if link == nil || err != nil {
		return nil, err
	}
	name := link.Attrs().Name
	if !oursVXLAN(link) || s.LAN.VXLAN && sameVXLAN(link, s.LAN) && name == plan.VXLANName {
		return nil, nil
	}
	return []plan.Change{{What: "delete " + name, Do: func() error { return deleteLink(link) }}}, nil
}

// DiffVXLAN compares the device: MAC, MTU, sysctls, gateway addresses, up or down.
func DiffVXLAN(s plan.State) ([]plan.Change, error) {
	link, err := linkByName(plan.VXLANName)
	if err != nil {
		return nil, err
	}
	if !s.LAN.VXLAN || link != nil && !oursVXLAN(link) {
		return nil, nil // MissingVXLAN has said why
	}
	if link == nil || !sameVXLAN(link, s.LAN) {
		return create("VXLAN device "+plan.VXLANName, s, DiffVXLAN, func() error { return addVXLAN(s) }), nil
	}
	more, err := diffLink(link, s, true)
	return append(diffMAC(link, s.LAN.MAC[:]), more...), err
}

func sameVXLAN(link netlink.Link, w mesh.LAN) bool {
	v, ok := link.(*netlink.Vxlan)
	return ok && v.VxlanId == mesh.VXLANID && v.Port == int(w.VXLANPort) && !v.Learning && v.Alias == aliasOf(w.IPv6Underlay)
}

// addVXLAN makes the device. Learning is off: all MACs are known.
func addVXLAN(s plan.State) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = plan.VXLANName, s.MTU, s.LAN.MAC[:]
	v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: mesh.VXLANID, Port: int(s.LAN.VXLANPort), UDPCSum: true}
	if s.LAN.IPv6Underlay {
		v.SrcAddr = net.IPv6unspecified
	}
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	link, err := netlink.LinkByName(plan.VXLANName)
	if err == nil {
		err = forbidFragments(link)
	}
	if err == nil {
		err = netlink.LinkSetAlias(link, aliasOf(s.LAN.IPv6Underlay))
	}
	if err != nil {
		return errors.Join(err, netlink.LinkDel(v))
	}
	return nil
}

// forbidFragments sets DF on VXLAN's outer packets, which IPv6 implies. Otherwise a router on the
// path would fragment them, full-size probes would pass, and each large packet would
// cost two. Kernels before 4.20 ignore the attribute.
func forbidFragments(link netlink.Link) error {
	const attrDF, dfSet = 29, 1 // IFLA_VXLAN_DF, VXLAN_DF_SET: linux/if_link.h
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attrDF, nl.Uint8Attr(dfSet))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignore(err, unix.EOPNOTSUPP)
}

// DeleteVXLAN removes the device if it is ours.
func DeleteVXLAN() error {
	var errs []error
	for _, name := range []string{plan.VXLANName, plan.FormerVXLANName} {
		link, err := linkByName(name)
		if link != nil && oursVXLAN(link) {
			err = deleteLink(link)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
