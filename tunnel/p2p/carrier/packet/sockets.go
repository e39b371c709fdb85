package packet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/quic-go/quic-go"
)

// sockets are the UDP sockets of a node that QUIC and sealed packets share.
type sockets struct {
	in  *intake
	mu  sync.Mutex // a leaf
	all map[*socket]struct{}
}

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
	k, err := newSocket(u, &dispatcher{in: s.in}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, k)
	})
	if err != nil {
		u.Close()
		return nil, err
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
