package packet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// Config is what a Service needs. All of it is required, except Renew.
type Config struct {
	Self peer.ID
	// Control applies the options of an underlay socket before it is bound.
	Control func(network, address string, c syscall.RawConn) error
	// Renew is how long the keys of a session are used; 0: a day.
	Renew time.Duration
	// Spawn runs a function in a goroutine that the owner waits for; false: the owner is closed.
	Spawn func(func()) bool
	Log   *slog.Logger
}

// Sink takes the datagrams of one path from one peer. The calls come one after the other.
type Sink interface {
	// Datagram takes one; b is valid during the call only, and may be changed.
	Datagram(b []byte)
	// Flush says that no more came with those before.
	Flush()
	// Close is the last call.
	Close()
}

// Service is a node's end of all sessions.
type Service struct {
	cfg       Config
	began     time.Time
	sink      atomic.Pointer[func(peer.ID) Sink]   // nil: no datagrams yet
	receivers atomic.Pointer[map[uint32]*receiver] // by index; replaced, never changed
	trains    sync.Pool                            // buffers of sessions that are sending
	refusals  refusals
	reported  seldom.Log

	mu       sync.Mutex // guards replacing receivers, and the rest; only reported's and meters' are taken under it
	sockets  map[*socket]struct{}
	inbound  map[peer.ID]*inbound
	sessions map[peer.ID][]*Session // with which datagrams are sent
}

// New returns a Service without sockets or sessions.
func New(cfg Config) *Service {
	if cfg.Renew <= 0 {
		cfg.Renew = renewEvery
	}
	s := &Service{cfg: cfg, began: time.Now(), sockets: map[*socket]struct{}{}, inbound: map[peer.ID]*inbound{},
		sessions: map[peer.ID][]*Session{}}
	s.trains.New = func() any { b := make([]byte, 0, trainBytes+maxPacket); return &b }
	s.receivers.Store(&map[uint32]*receiver{})
	return s
}

// Handle has f make the sink for each path of a peer that begins to send datagrams. Before the call no datagrams are
// agreed on.
func (s *Service) Handle(f func(peer.ID) Sink) { s.sink.Store(&f) }

// Open opens an underlay socket of its own, for no sealed packets yet.
func (s *Service) Open(network string, a *net.UDPAddr) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: s.cfg.Control}
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
func (s *Service) Listen(network string, a *net.UDPAddr) (net.PacketConn, error) {
	u, err := s.Open(network, a)
	if err != nil {
		return nil, err
	}
	return s.Share(u)
}

// Share makes u a socket that QUIC and sealed packets share. It closes u where that fails.
func (s *Service) Share(u *net.UDPConn) (net.PacketConn, error) {
	var k *socket
	k, err := newSocket(u, &dispatcher{s: s}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sockets, k)
	})
	if err != nil {
		u.Close()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets[k] = struct{}{}
	return k, nil
}

// socketOf finds the socket of a QUIC connection, and the source address that packets beside it need; none where the
// kernel fills it in.
func (s *Service) socketOf(q *quic.Conn) (*socket, netip.Addr, error) {
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
	for k := range s.sockets {
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
func (s *Service) twin(k *socket, port int) bool {
	for o := range s.sockets {
		if a, ok := o.LocalAddr().(*net.UDPAddr); ok && o != k && a.Port == port {
			return true
		}
	}
	return false
}

// add lets packets to r in, unless another receiver has its index. What its peer has too much of ends.
func (s *Service) add(r *receiver) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (*s.receivers.Load())[r.index] != nil {
		return false
	}
	for _, over := range s.from(r.peer).admit(r) {
		s.refuse(RefusedReplaced, over.ss.path)
		over.end()
	}
	s.replace(r.index, r)
	return true
}

// remove lets no more packets to r in, and closes its sink.
func (s *Service) remove(r *receiver) {
	s.mu.Lock()
	s.replace(r.index, nil)
	s.from(r.peer).remove(r)
	s.mu.Unlock()
	r.close()
}

// replace sets or, with nil, removes an entry. The caller holds mu.
func (s *Service) replace(index uint32, r *receiver) {
	m := maps.Clone(*s.receivers.Load())
	if r != nil {
		m[index] = r
	} else {
		delete(m, index)
	}
	s.receivers.Store(&m)
}

// dispatcher hands the sealed packets of one socket to their receivers. It belongs to the socket's reader.
type dispatcher struct {
	s       *Service
	touched []*receiver // to be flushed
	// The receiver of the last packet, its index, and the table it was found in.
	last  *receiver
	index uint32
	table *map[uint32]*receiver
}

func (d *dispatcher) take(b []byte) {
	index, table := sealed.Index(b), d.s.receivers.Load()
	if d.last == nil || index != d.index || table != d.table {
		d.last, d.index, d.table = (*table)[index], index, table
	}
	r := d.last
	switch {
	case r == nil:
		d.s.refusals.count(RefusedUnknown)
	case r.take(b):
		d.touched = append(d.touched, r)
	}
}

func (d *dispatcher) flush() {
	for i, r := range d.touched {
		r.flush()
		d.touched[i] = nil
	}
	d.touched = d.touched[:0]
}
