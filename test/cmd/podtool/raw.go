package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"edgemesh/tunnel/inet"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// spoof sends UDP datagrams with a forged source to the echo port.
func spoof(_ context.Context, args []string) error {
	fs := newFlags("spoof")
	src := fs.String("src", "", "the forged source address")
	count := fs.Int("count", 3, "datagrams")
	headers := fs.String("extensions", "", "numbers of IPv6 extension headers before the datagram, with commas")
	var f frames
	fs.StringVar(&f.from, "from-mac", "", "the frames' source")
	fs.StringVar(&f.to, "to-mac", "", "their destination")
	fs.StringVar(&f.dev, "dev", "", "interface that frames leave by")
	fs.StringVar(&f.vtep, "vtep", "", "where frames are sent inside VXLAN")
	fs.Uint64Var(&f.vni, "vni", 0, "the VXLAN's number")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	from, err := netip.ParseAddr(*src)
	if err != nil {
		return fmt.Errorf("%w: --src: %w", errUsage, err)
	}
	to, err := netip.ParseAddr(host[0])
	if err != nil || to.Is4() != from.Is4() {
		return fmt.Errorf("%w: %q is no address of the source's family", errUsage, host[0])
	}
	packet, err := extend(udpPacket(from, to, servePort, []byte("forged")), *headers)
	if err != nil {
		return fmt.Errorf("%w: --extensions: %w", errUsage, err)
	}
	if f.dev != "" || f.vtep != "" {
		if err := f.send(packet, *count); err != nil {
			return err
		}
		return report(map[string]int{"sent": *count})
	}
	family, sa := unix.AF_INET, unix.Sockaddr(nil)
	if to.Is4() {
		sa = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
	}
	// IPPROTO_RAW: the IP header is part of what is written, raw(7).
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	var errs []error
	for range *count {
		if err := unix.Sendto(fd, packet, 0, sa); err != nil {
			errs = append(errs, os.NewSyscallError("sendto", err))
		}
	}
	return errors.Join(append(errs, report(map[string]int{"sent": *count - len(errs)}))...)
}

// udpPacket builds an IPv4 or IPv6 packet with one datagram.
func udpPacket(src, dst netip.Addr, port int, payload []byte) []byte {
	udp := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(udp[0:], 40000)
	binary.BigEndian.PutUint16(udp[2:], uint16(port))
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	udp = append(udp, payload...)
	pseudo := append(append([]byte{}, src.AsSlice()...), dst.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP, byte(len(udp)>>8), byte(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], inet.Checksum(0, append(pseudo, udp...)))
	if dst.Is4() {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(udp)))
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(h[10:], inet.Checksum(0, h))
		return append(h, udp...)
	}
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, unix.IPPROTO_UDP, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(udp)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return append(h, udp...)
}

// extend puts extension headers (RFC 8200, section 4) into an IPv6 packet: a fragment header of the only fragment, a
// routing header with a segment left, options that are padding.
func extend(packet []byte, list string) ([]byte, error) {
	if list == "" {
		return packet, nil
	}
	if packet[0]>>4 != 6 {
		return nil, errors.New("the packet is not IPv6")
	}
	var chain []byte
	next := &packet[6]
	for text := range strings.SplitSeq(list, ",") {
		kind, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			return nil, err
		}
		header := []byte{*next, 0, 1, 4, 0, 0, 0, 0}
		switch kind {
		case unix.IPPROTO_FRAGMENT:
			header = []byte{*next, 0, 0, 0, 0, 0, 0, 1}
		case unix.IPPROTO_ROUTING:
			header = []byte{*next, 0, 4, 1, 0, 0, 0, 0}
		}
		*next = byte(kind)
		chain = append(chain, header...)
		next = &chain[len(chain)-8]
	}
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40+len(chain)))
	return slices.Concat(packet[:40], chain, packet[40:]), nil
}

// advertise sends router advertisements (RFC 4861, section 4.2) for one prefix,
// making the sender a default router, until it is stopped.
func advertise(ctx context.Context, args []string) error {
	fs := newFlags("ra")
	iface := fs.String("iface", "", "interface to send on")
	lifetime := fs.Duration("lifetime", time.Minute, "of router and prefix")
	every := fs.Duration("every", time.Second, "pause between two")
	var p, nat64 netip.Prefix
	fs.TextVar(&p, "prefix", p, "on-link, autonomous /64; none: what is sent makes nobody a router")
	fs.TextVar(&nat64, "nat64", nat64, "a NAT64 prefix of 96 bits (RFC 8781)")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	ifi, err := net.InterfaceByName(*iface)
	if err != nil {
		return err
	}
	c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return err
	}
	defer c.Close()
	pc := ipv6.NewPacketConn(c)
	if err := errors.Join(pc.SetMulticastHopLimit(255), pc.SetMulticastInterface(ifi),
		pc.SetChecksum(true, 2)); err != nil {
		return err
	}
	seconds := uint16(*lifetime / time.Second)
	ra := make([]byte, 16, 64)
	ra[0], ra[4] = byte(ipv6.ICMPTypeRouterAdvertisement), 64
	if p.IsValid() {
		binary.BigEndian.PutUint16(ra[6:], seconds)
		opt := make([]byte, 32)                                     // prefix information, section 4.6.2
		opt[0], opt[1], opt[2], opt[3] = 3, 4, byte(p.Bits()), 0xc0 // on-link and autonomous
		binary.BigEndian.PutUint32(opt[4:], uint32(seconds))
		binary.BigEndian.PutUint32(opt[8:], uint32(seconds))
		copy(opt[16:], p.Addr().AsSlice())
		ra = append(ra, opt...)
	}
	if nat64.IsValid() {
		ra = append(append(ra, 38, 2), binary.BigEndian.AppendUint16(nil, seconds/8<<3)...)
		ra = append(ra, nat64.Addr().AsSlice()[:12]...)
	}
	to := &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: *iface}
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for {
		// Without an address or carrier yet, the next one may get through.
		if _, err := pc.WriteTo(ra, nil, to); err != nil {
			fmt.Fprintln(os.Stderr, "podtool ra:", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
