package lan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// socket sends and receives the probes of one pod IP version. It is bound to no
// address: the gateway, to which probes go, need not exist yet. The routes of probes
// choose it as source.
type socket struct {
	v6      bool
	gateway netip.Addr
	conn    *net.UDPConn
	port    uint16

	mu   sync.Mutex // of sending: the mark is the socket's
	mark int
}

// listen opens a socket for probes to a gateway: at port, or at another one where
// that is taken.
func listen(gateway netip.Addr, port uint16) (*socket, error) {
	s := &socket{v6: gateway.Is6(), gateway: gateway}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = s.options(int(fd)) }); cerr != nil {
			return cerr
		}
		return err
	}}
	network, any := "udp4", netip.IPv4Unspecified()
	if s.v6 {
		network, any = "udp6", netip.IPv6Unspecified()
	}
	for {
		pc, err := lc.ListenPacket(context.Background(), network, netip.AddrPortFrom(any, port).String())
		if errors.Is(err, unix.EADDRINUSE) && port != 0 {
			port = 0
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listen for probes at %s: %w", gateway, err)
		}
		s.conn = pc.(*net.UDPConn)
		s.port = s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		return s, nil
	}
}

// options sets what makes a packet a probe: no fragments, whatever the kernel
// thinks of the path, and no router on it.
func (s *socket) options(fd int) error {
	set := func(level, name, value int) error { return unix.SetsockoptInt(fd, level, name, value) }
	if s.v6 {
		return errors.Join(
			set(unix.SOL_IPV6, unix.IPV6_V6ONLY, 1),
			set(unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 1),
			set(unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			set(unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1))
	}
	return errors.Join(
		set(unix.SOL_IP, unix.IP_TTL, 1),
		set(unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
		set(unix.SOL_IP, unix.IP_PKTINFO, 1))
}

// send sends b with the mark that leads it on its way.
func (s *socket) send(mark int, to netip.AddrPort, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mark != s.mark {
		raw, err := s.conn.SyscallConn()
		if err != nil {
			return err
		}
		if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }); cerr != nil {
			return cerr
		}
		if err != nil {
			return fmt.Errorf("mark probes: %w", err)
		}
		s.mark = mark
	}
	_, err := s.conn.WriteToUDPAddrPort(b, to)
	return err
}

// arrival is where a packet came from.
type arrival struct {
	from netip.Addr
	link int // index of the interface it came in on
	v6   bool
}

// run calls f with each packet to the gateway until the socket is closed. f must not keep b.
func (s *socket) run(f func(b []byte, a arrival)) {
	b, oob := make([]byte, maxProbeSize+1), make([]byte, 256)
	for {
		n, on, _, from, err := s.conn.ReadMsgUDPAddrPort(b, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier probe
		}
		var to net.IP
		a := arrival{from: from.Addr().Unmap(), v6: s.v6}
		if s.v6 {
			var cm ipv6.ControlMessage
			if cm.Parse(oob[:on]) != nil {
				continue
			}
			a.link, to = cm.IfIndex, cm.Dst
		} else {
			var cm ipv4.ControlMessage
			if cm.Parse(oob[:on]) != nil {
				continue
			}
			a.link, to = cm.IfIndex, cm.Dst
		}
		if to.Equal(s.gateway.AsSlice()) {
			f(b[:n], a)
		}
	}
}

func (s *socket) close() { _ = s.conn.Close() }
