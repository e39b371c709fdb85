package lan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/wake"
)

// Socket sends and receives the probes of one pod IP version.
type Socket interface {
	Port() uint16
	// Send sends b with the mark that routes it, and a hop limit. It does not wait: where there is no room it is an error.
	Send(mark, hops int, to netip.AddrPort, b []byte) error
	// Run calls f with each packet to the gateway until Close. f must not keep b.
	Run(f func(b []byte, a Arrival))
	// Renamed says that interfaces may have other names now.
	Renamed()
	Close()
}

// Arrival is where a packet came from.
type Arrival struct {
	From netip.Addr
	Link string // the interface it came in on, "" when that is gone
	Hops int    // its hop limit
	V6   bool
}

// socket is a Socket of the kernel. It is bound to no address: the gateway, to which
// probes go, need not exist yet. The routes of probes choose it as source.
type socket struct {
	v6      bool
	gateway netip.Addr
	conn    *net.UDPConn
	raw     syscall.RawConn // conn's
	port    uint16

	mu    sync.Mutex // of sending and of links; nothing else is locked while it is held
	mark  int        // the socket's now
	hops  int        // likewise
	links map[int]string
}

// Listen opens a Socket of the kernel for probes to a gateway, at port or, if that is in
// use, at another one.
func Listen(gateway netip.Addr, port uint16) (Socket, error) {
	s := &socket{v6: gateway.Is6(), gateway: gateway, hops: 1, links: map[int]string{}}
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
		if s.raw, err = s.conn.SyscallConn(); err != nil {
			s.conn.Close()
			return nil, fmt.Errorf("listen for probes at %s: %w", gateway, err)
		}
		s.port = s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		return s, nil
	}
}

// sendBuffer is far more than a socket has by default, in bytes: probes to neighbours that do not answer stay in it until the
// kernel gives these up, after 3 s, and those of other paths must find room beside them.
const sendBuffer = 4 << 20

// options keeps probes from being fragmented, whatever the kernel knows of the path, and
// from being routed, unless they say otherwise.
func (s *socket) options(fd int) error {
	set := func(level, name, value int) error { return unix.SetsockoptInt(fd, level, name, value) }
	_ = set(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) // without the right to it, the default
	if s.v6 {
		return errors.Join(
			set(unix.SOL_IPV6, unix.IPV6_V6ONLY, 1),
			set(unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 1),
			set(unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			set(unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1),
			set(unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	}
	return errors.Join(
		set(unix.SOL_IP, unix.IP_TTL, 1),
		set(unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
		set(unix.SOL_IP, unix.IP_PKTINFO, 1),
		set(unix.SOL_IP, unix.IP_RECVTTL, 1))
}

// Send implements Socket.
func (s *socket) Send(mark, hops int, to netip.AddrPort, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mark != s.mark {
		if err := s.set(unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
			return fmt.Errorf("mark probes: %w", err)
		}
		s.mark = mark
	}
	if hops != s.hops {
		level, name := unix.SOL_IP, unix.IP_TTL
		if s.v6 {
			level, name = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS
		}
		if err := s.set(level, name, hops); err != nil {
			return fmt.Errorf("limit hops of probes: %w", err)
		}
		s.hops = hops
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	if !s.v6 {
		sa = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	var err error
	closed := s.raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, sa) })
	return errors.Join(closed, err)
}

func (s *socket) set(level, name, value int) error {
	var err error
	closed := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, value) })
	return errors.Join(closed, err)
}

// Run implements Socket.
func (s *socket) Run(f func(b []byte, a Arrival)) {
	b, oob := make([]byte, decide.MaxProbe+1), make([]byte, 256)
	for {
		n, on, _, from, err := s.conn.ReadMsgUDPAddrPort(b, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier probe
		}
		var to net.IP
		var link, hops int
		if s.v6 {
			var cm ipv6.ControlMessage
			if cm.Parse(oob[:on]) != nil {
				continue
			}
			link, to, hops = cm.IfIndex, cm.Dst, cm.HopLimit
		} else {
			var cm ipv4.ControlMessage
			if cm.Parse(oob[:on]) != nil {
				continue
			}
			link, to, hops = cm.IfIndex, cm.Dst, cm.TTL
		}
		if to.Equal(s.gateway.AsSlice()) {
			f(b[:n], Arrival{From: from.Addr().Unmap(), Link: s.linkName(link), Hops: hops, V6: s.v6})
		}
	}
}

// linkName is the name of an interface, "" if there is no such interface.
func (s *socket) linkName(index int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, ok := s.links[index]
	if !ok {
		if i, err := net.InterfaceByIndex(index); err == nil {
			name = i.Name
		}
		s.links[index] = name
	}
	return name
}

// Renamed implements Socket.
func (s *socket) Renamed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.links)
}

// Port implements Socket.
func (s *socket) Port() uint16 { return s.port }

// Close implements Socket.
func (s *socket) Close() { _ = s.conn.Close() }

// maxInbox bounds the waiting packets: a thousand peers' requests.
const maxInbox = 2048

// inbox holds packets while a change is applied to the kernel: one call then applies all
// that they change.
type inbox struct {
	arrived wake.One

	mu   sync.Mutex // nothing else is locked while it is held
	list []decide.Packet
}

// put takes one packet from a socket.
func (i *inbox) put(b []byte, a Arrival) {
	m, err := decide.Parse(b)
	if err != nil {
		return
	}
	i.mu.Lock()
	if len(i.list) < maxInbox {
		i.list = append(i.list, decide.Packet{Message: m, V6: a.V6, From: a.From, Link: a.Link, Hops: a.Hops, Payload: bytes.Clone(b), At: time.Now()})
	}
	i.mu.Unlock()
	i.arrived.Wake()
}

// empty takes all packets out.
func (i *inbox) empty() []decide.Packet {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.list
	i.list = nil
	return all
}
