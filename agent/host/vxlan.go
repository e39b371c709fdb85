package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// VXLANName is the VXLAN device. Its alias says that it is ours, and which IP
// version its outer packets have: the kernel does not tell.
const (
	VXLANName  = "edgemesh.vx"
	vxlanAlias = "edgemesh over "
)

// aliasOf is the alias of a device as it is made today: one of another version is
// made anew.
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

// missingVXLAN tells why there can be no VXLAN device, "" when there can.
func missingVXLAN(w mesh.LAN) (string, error) {
	link, err := netlink.LinkByName(VXLANName)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
	case err != nil:
		return "", fmt.Errorf("look up interface %s: %w", VXLANName, err)
	case !oursVXLAN(link):
		return fmt.Sprintf("the name %s is taken by an interface of another program (%s); delete or rename it (ip link delete)", VXLANName, link.Type()), nil
	case link.(*netlink.Vxlan).Port == int(w.VXLANPort) && overIPv6(link) == w.IPv6Underlay && link.Attrs().Flags&net.FlagUp != 0:
		return "", nil // the port is in use by ours
	}
	if err := tryPort(int(w.VXLANPort), w.IPv6Underlay); err != nil {
		return fmt.Sprintf("UDP port %d is in use by another program: stop it, or set lan.vxlanPort on every node: %v", w.VXLANPort, err), nil
	}
	return "", nil
}

// tryPort tells why a VXLAN device could not have a UDP port. The kernel's socket is of
// one IP version, that of the outer packets, as is the one here.
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

// diffStaleVXLAN removes a device of ours that is not wanted, or not as it is, while the
// firewall still checks what comes in at its port.
func diffStaleVXLAN(fs families) ([]change, error) {
	link, err := netlink.LinkByName(VXLANName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", VXLANName, err)
	}
	if !oursVXLAN(link) || fs.lan.VXLAN && sameVXLAN(link, fs.lan) {
		return nil, nil
	}
	return []change{{"delete " + VXLANName, func() error { return ignore(netlink.LinkDel(link), unix.ENODEV) }}}, nil
}

// diffVXLAN compares the device: MAC, MTU, sysctls, gateway addresses, up.
func diffVXLAN(fs families) ([]change, error) {
	link, err := netlink.LinkByName(VXLANName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		link, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", VXLANName, err)
	}
	if !fs.lan.VXLAN || link != nil && !oursVXLAN(link) {
		return nil, nil // told by missingVXLAN
	}
	if link == nil || !sameVXLAN(link, fs.lan) {
		return []change{{"create VXLAN device " + VXLANName, func() error {
			if err := addVXLAN(fs); err != nil {
				return err
			}
			return applyAll(func() ([]change, error) { return diffVXLAN(fs) })
		}}}, nil
	}
	var out []change
	if mac := fs.lan.MAC[:]; !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		out = append(out, change{fmt.Sprintf("set MAC of %s to %s", VXLANName, net.HardwareAddr(mac)), func() error {
			return netlink.LinkSetHardwareAddr(link, mac)
		}})
	}
	more, err := diffLink(link, fs, true)
	return append(out, more...), err
}

func sameVXLAN(link netlink.Link, w mesh.LAN) bool {
	v, ok := link.(*netlink.Vxlan)
	return ok && v.VxlanId == mesh.VXLANID && v.Port == int(w.VXLANPort) && !v.Learning && v.Alias == aliasOf(w.IPv6Underlay)
}

// addVXLAN makes the device. It learns nothing: who has which MAC is known.
func addVXLAN(fs families) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = VXLANName, fs.mtu, fs.lan.MAC[:]
	v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: mesh.VXLANID, Port: int(fs.lan.VXLANPort), UDPCSum: true}
	if fs.lan.IPv6Underlay {
		v.SrcAddr = net.IPv6unspecified
	}
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	link, err := netlink.LinkByName(VXLANName)
	if err == nil {
		err = forbidFragments(link)
	}
	if err == nil {
		err = netlink.LinkSetAlias(link, aliasOf(fs.lan.IPv6Underlay))
	}
	if err != nil {
		return errors.Join(err, netlink.LinkDel(v))
	}
	return nil
}

// forbidFragments sets DF on VXLAN's outer packets, as all IPv6 is: else a router on the
// way would cut them up, full-size probes would pass, and each of the pods' packets
// would cost two. Kernels before 4.20 do not know it and ignore it.
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

// neighbour is an entry of a neighbour or forwarding table.
type neighbour struct {
	addr netip.Addr // the inner next hop, or the underlay address of a forwarding entry
	mac  [6]byte
	fdb  bool
}

// wantNeighbours are the static neighbours and forwarding entries of all peers.
func wantNeighbours(fs families, w mesh.Paths) map[neighbour]bool {
	want := map[neighbour]bool{}
	if !fs.lan.VXLAN {
		return want
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() != fs.lan.IPv6Underlay {
			continue
		}
		want[neighbour{v.Underlay, v.MAC, true}] = true
		for _, g := range v.Gateways {
			if fs.inFamily(g).lan.on {
				want[neighbour{g, v.MAC, false}] = true
			}
		}
	}
	return want
}

// diffNeighbours compares the entries of the VXLAN device. What goes comes first: a
// MAC has one forwarding entry.
func diffNeighbours(have, want map[neighbour]bool, index int) []request {
	var out []request
	for n := range have {
		if !want[n] {
			out = append(out, newRequest("delete "+n.String(), unix.ENOENT, n.request(index, unix.RTM_DELNEIGH, 0)))
		}
	}
	for n := range want {
		if !have[n] {
			out = append(out, newRequest("add "+n.String(), nil, n.request(index, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)))
		}
	}
	return out
}

func (n neighbour) String() string {
	if n.fdb {
		return fmt.Sprintf("forwarding entry %s dst %s", net.HardwareAddr(n.mac[:]), n.addr)
	}
	return fmt.Sprintf("neighbour %s lladdr %s", n.addr, net.HardwareAddr(n.mac[:]))
}

// request is the message that sets or deletes the entry (rtnetlink(7)).
func (n neighbour) request(index, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	msg := &netlink.Ndmsg{Index: uint32(index), State: netlink.NUD_PERMANENT}
	switch {
	case n.fdb:
		msg.Family, msg.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
	case n.addr.Is6():
		msg.Family = unix.AF_INET6
	default:
		msg.Family = unix.AF_INET
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	return req
}

// listNeighbours lists all static entries of the VXLAN device.
func listNeighbours(index int) (map[neighbour]bool, error) {
	out := map[neighbour]bool{}
	for _, familyID := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		all, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, familyID) })
		if err != nil {
			return nil, fmt.Errorf("list neighbours of %s: %w", VXLANName, err)
		}
		for _, e := range all {
			a, ok := netip.AddrFromSlice(e.IP)
			if !ok || len(e.HardwareAddr) != 6 || e.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			out[neighbour{a.Unmap(), [6]byte(e.HardwareAddr), familyID == unix.AF_BRIDGE}] = true
		}
	}
	return out, nil
}

// deleteVXLAN removes the device if it is ours.
func deleteVXLAN() error {
	link, err := netlink.LinkByName(VXLANName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil || !oursVXLAN(link) {
		return err
	}
	return ignore(netlink.LinkDel(link), unix.ENODEV)
}
