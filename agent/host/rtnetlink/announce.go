package rtnetlink

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// announce tells all pods that addresses of theirs have the bridge's MAC now: they would send to the one that they know for most of a minute.
// What it cannot send (AF_PACKET may be closed to this process) is only that minute.
func announce(bridge netlink.Link, ips []netip.Addr) {
	for _, ip := range ips {
		if ip.Is4() {
			_ = gratuitousARP(bridge, ip)
		} else {
			_ = advertise(bridge, ip)
		}
	}
}

// gratuitousARP sends an ARP announcement (RFC 826, RFC 5227 section 2.3).
func gratuitousARP(bridge netlink.Link, ip netip.Addr) error {
	mac := bridge.Attrs().HardwareAddr
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, their lengths, request
	b = append(append(b, mac...), ip.AsSlice()...)
	b = append(append(b, make([]byte, len(mac))...), ip.AsSlice()...)
	const protocol = unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8 // in network order
	to := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: bridge.Attrs().Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	return sendOn(unix.AF_PACKET, unix.SOCK_DGRAM, 0, nil, b, to)
}

// advertise sends an unsolicited neighbour advertisement that overrides (RFC 4861, sections 4.4 and 7.2.6).
func advertise(bridge netlink.Link, ip netip.Addr) error {
	b := binary.BigEndian.AppendUint32([]byte{136, 0, 0, 0}, 1<<29) // the kernel adds the checksum
	b = append(append(b, ip.AsSlice()...), 2, 1)
	b = append(b, bridge.Attrs().HardwareAddr...)
	index := bridge.Attrs().Index
	to := &unix.SockaddrInet6{ZoneId: uint32(index), Addr: netip.IPv6LinkLocalAllNodes().As16()}
	return sendOn(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, map[int]int{unix.IPV6_MULTICAST_HOPS: 255, unix.IPV6_MULTICAST_IF: index}, b, to)
}

// sendOn sends one packet by a socket of its own, with options of IPv6's.
func sendOn(family, kind, protocol int, options map[int]int, b []byte, to unix.Sockaddr) error {
	s, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for option, v := range options {
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, option, v); err != nil {
			return err
		}
	}
	return unix.Sendto(s, b, 0, to)
}
