package packet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// sockets are the UDP sockets of a node that QUIC and sealed packets share.
type sockets struct {
	in    *intake
	named sources
	mu    sync.Mutex // a leaf
	all   map[*socket]struct{}
}

// sources are the own addresses from which packets of some QUIC connections leave; the kernel chooses that of all others. A
// connection is known by the address it was dialed at, the very one.
type sources struct {
	count atomic.Int32
	of    sync.Map // *net.UDPAddr → netip.Addr
}

// get returns the source of what is sent to an address; none: the kernel chooses it.
func (s *sources) get(to net.Addr) netip.Addr {
	if s.count.Load() > 0 {
		if v, ok := s.of.Load(to); ok {
			return v.(netip.Addr) //nolint:forcetypeassert // nothing else is stored
		}
	}
	return netip.Addr{}
}

// SendFrom has what a QUIC connection sends to an address, the one it is dialed at, leave from src, until forget is called.
func (s *sockets) SendFrom(to net.Addr, src netip.Addr) (forget func()) {
	s.named.of.Store(to, src)
	s.named.count.Add(1)
	return func() {
		if _, was := s.named.of.LoadAndDelete(to); was {
			s.named.count.Add(-1)
		}
	}
}

// Source is what SendFrom names for an address; none: the kernel chooses.
func (s *sockets) Source(to net.Addr) netip.Addr { return s.named.get(to) }

// Open opens an underlay socket of its own, for no sealed packets yet.
func (s *sockets) Open(network string, a *net.UDPAddr) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: s.in.cfg.Control}
	c, err := lc.ListenPacket(context.Background(), network, a.String())
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("listen on %s: a %T is not a UDP socket", a, c)
	}
	return u, nil
}

// Listen opens an underlay socket that QUIC and sealed packets share.
func (s *sockets) Listen(network string, a *net.UDPAddr) (net.PacketConn, error) {
	u, err := s.Open(network, a)
	if err != nil {
		return nil, err
	}
	return s.Share(u)
}

// Share makes u a socket that QUIC and sealed packets share. It closes u where that fails.
func (s *sockets) Share(u *net.UDPConn) (net.PacketConn, error) {
	var k *socket
	k, err := newSocket(u, &dispatcher{in: s.in}, s.in.cfg.Wire, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, k)
	})
	if err != nil {
		u.Close()
		return nil, err
	}
	k.named = &s.named
	if s.in.cfg.Sealed { // without it packets arrive when they are read
		_ = k.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[k] = struct{}{}
	return k, nil
}

// socketOf finds the socket of a QUIC connection, and the source address that packets beside it need; none where the
// kernel fills it in.
func (s *sockets) socketOf(q *quic.Conn) (*socket, netip.Addr, error) {
	local, ok := q.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, netip.Addr{}, fmt.Errorf("%s is not a UDP address", q.LocalAddr())
	}
	remote, ok := q.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return nil, netip.Addr{}, fmt.Errorf("%s is not a UDP address", q.RemoteAddr())
	}
	ip, port := local.AddrPort().Addr().Unmap(), local.Port
	v4 := remote.AddrPort().Addr().Unmap().Is4()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.all {
		at, ok := k.LocalAddr().(*net.UDPAddr)
		if !ok || at.Port != port {
			continue
		}
		bound := at.AddrPort().Addr().Unmap()
		switch {
		case bound == ip:
			return k, netip.Addr{}, nil
		case bound.IsUnspecified() && (bound.Is4() == v4 || v4 && !s.twin(k, port)):
			if src := s.named.get(remote); src.IsValid() {
				ip = src
			}
			return k, ip, nil
		}
	}
	return nil, netip.Addr{}, fmt.Errorf("no shared socket is bound to %s", local)
}

// twin reports whether another socket than k has the port, as one for IPv4 beside one for IPv6 has. The caller holds mu.
func (s *sockets) twin(k *socket, port int) bool {
	for o := range s.all {
		if a, ok := o.LocalAddr().(*net.UDPAddr); ok && o != k && a.Port == port {
			return true
		}
	}
	return false
}
