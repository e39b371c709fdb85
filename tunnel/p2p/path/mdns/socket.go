package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// socket is a multicast socket of one IP version.
type socket interface {
	is4() bool
	// join makes the kernel accept multicast messages from one interface.
	join(index int) error
	// send multicasts b on one interface, from one of its addresses.
	send(b []byte, index int, from netip.Addr) error
	// read returns the length of a message, the interface it came in on, and its sender. The error means that the socket
	// is closed.
	read(b []byte) (n, index int, from netip.Addr, err error)
	Close() error
}

// The groups of RFC 6762 section 3.
func group4() *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: port} }
func group6() *net.UDPAddr { return &net.UDPAddr{IP: net.ParseIP("ff02::fb"), Port: port} }

// hops is the hop limit of mDNS packets (RFC 6762 section 11).
const hops = 255

// port is that of mDNS.
const port = 5353

type socket4 struct{ *ipv4.PacketConn }

var (
	_ socket = socket4{}
	_ socket = socket6{}
)

func open4(mark uint32) (socket, error) {
	c, err := listen("udp4", fmt.Sprintf("224.0.0.251:%d", port), mark)
	if err != nil {
		return nil, err
	}
	p := ipv4.NewPacketConn(c)
	err = errors.Join(p.SetControlMessage(ipv4.FlagInterface, true), p.SetMulticastTTL(hops), p.SetMulticastLoopback(true))
	if err != nil {
		c.Close()
		return nil, err
	}
	return socket4{p}, nil
}

func (s socket4) is4() bool { return true }

func (s socket4) join(index int) error {
	return joined(s.JoinGroup(&net.Interface{Index: index}, group4()))
}

func (s socket4) send(b []byte, index int, from netip.Addr) error {
	_, err := s.WriteTo(b, &ipv4.ControlMessage{IfIndex: index, Src: from.AsSlice()}, group4())
	return err
}

func (s socket4) read(b []byte) (int, int, netip.Addr, error) {
	n, cm, from, err := s.ReadFrom(b)
	if err != nil || cm == nil {
		return n, 0, addrOf(from), err
	}
	return n, cm.IfIndex, addrOf(from), nil
}

type socket6 struct{ *ipv6.PacketConn }

func open6(mark uint32) (socket, error) {
	c, err := listen("udp6", fmt.Sprintf("[ff02::fb]:%d", port), mark)
	if err != nil {
		return nil, err
	}
	p := ipv6.NewPacketConn(c)
	err = errors.Join(p.SetControlMessage(ipv6.FlagInterface, true), p.SetMulticastHopLimit(hops), p.SetMulticastLoopback(true))
	if err != nil {
		c.Close()
		return nil, err
	}
	return socket6{p}, nil
}

func (s socket6) is4() bool { return false }

func (s socket6) join(index int) error {
	return joined(s.JoinGroup(&net.Interface{Index: index}, group6()))
}

func (s socket6) send(b []byte, index int, from netip.Addr) error {
	_, err := s.WriteTo(b, &ipv6.ControlMessage{IfIndex: index, Src: from.AsSlice()}, group6())
	return err
}

func (s socket6) read(b []byte) (int, int, netip.Addr, error) {
	n, cm, from, err := s.ReadFrom(b)
	if err != nil || cm == nil {
		return n, 0, addrOf(from), err
	}
	return n, cm.IfIndex, addrOf(from), nil
}

// joined ignores that the group was joined before.
func joined(err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return nil
	}
	return err
}

func addrOf(a net.Addr) netip.Addr {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(u.IP)
	return ip.Unmap()
}

// control shares the port with other responders, and marks the socket.
func control(mark uint32) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			if mark != 0 {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
			}
		})
		return errors.Join(cerr, err)
	}
}

// listen opens UDP port 5353 beside other responders of this host, such as Avahi.
func listen(network, address string, mark uint32) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: control(mark)}
	return lc.ListenPacket(context.Background(), network, address)
}
