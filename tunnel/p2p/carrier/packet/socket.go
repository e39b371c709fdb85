package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"edgemesh/internal/rawio"
	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

const (
	// udpBatch messages are read with one call. Each may be a train of packets that the kernel has joined (UDP_GRO, udp(7)), of
	// up to udpTrain bytes.
	udpBatch = 8
	udpTrain = 64 << 10
	udpOOB   = 192 // control messages of one message, bytes: ECN, local address, each of IPv4 and IPv6 (24 and 40 at most), train, time
)

// taker gets the packets of a socket that are neither QUIC's nor STUN's, in the goroutine that reads the socket. The bytes are
// valid during the call only.
type taker interface {
	take(b []byte, in *received)
	// forward takes packets of each bytes, the last one perhaps shorter, with the same channel's header.
	forward(b []byte, each int, from *net.UDPAddr)
	// flush says that no more came with those just taken.
	flush()
}

// socket is a UDP socket that QUIC shares with sealed packets. Reads are batched below quic-go, which by itself reads one
// packet at a time where the kernel has joined many.
type socket struct {
	*net.UDPConn
	raw    syscall.RawConn
	io     *rawio.Conn
	inet6  bool // its addresses are of IPv6
	taker  taker
	onGone func()
	once   sync.Once
	named  *sources // nil: the kernel chooses all
	wire   *upkeep.Wire

	// The rest belongs to the reader, of which there is one.
	batch
	rest  received
	froms fromCache
	zones map[uint32]zone
}

// zone is the name of an interface, looked up at that time.
type zone struct {
	name string
	at   time.Time
}

// batch is the messages that one system call reads.
type batch struct {
	hdrs  []rawio.Message
	iovs  []unix.Iovec
	names []unix.RawSockaddrInet6
	oobs  [][udpOOB]byte
	bufs  []byte
	n     int // messages read last
	at    int // the message to hand out next
}

// received is what is left of a message: the rest of a train.
type received struct {
	b    []byte
	size int // of each packet but the last
	oob  []byte
	from *net.UDPAddr
	age  time.Duration // since the kernel had it, where that is asked for
}

var (
	_ quic.OOBCapablePacketConn = (*socket)(nil)
	_ interface {
		ReadBatch(ms []ipv4.Message, flags int) (int, error)
	} = (*socket)(nil)
)

// newSocket takes c over. It sets UDP_GRO where the kernel has it.
func newSocket(c *net.UDPConn, t taker, wire *upkeep.Wire, onGone func()) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reach the socket: %w", err)
	}
	io, err := rawio.New(c)
	if err != nil {
		return nil, fmt.Errorf("reach the socket: %w", err)
	}
	s := &socket{UDPConn: c, raw: raw, io: io, taker: t, onGone: onGone, wire: wire, zones: map[uint32]zone{},
		batch: batch{hdrs: make([]rawio.Message, udpBatch), iovs: make([]unix.Iovec, udpBatch),
			names: make([]unix.RawSockaddrInet6, udpBatch), oobs: make([][udpOOB]byte, udpBatch),
			bufs: make([]byte, udpBatch*udpTrain)}}
	// Without it every message is one packet.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		s.inet6 = err == nil && domain == unix.AF_INET6
	})
	for i := range s.hdrs {
		s.iovs[i].Base = &s.bufs[i*udpTrain]
		s.iovs[i].SetLen(udpTrain)
		h := &s.hdrs[i].Header
		h.Name = (*byte)(unsafe.Pointer(&s.names[i]))
		h.Iov = &s.iovs[i]
		h.SetIovlen(1)
		h.Control = &s.oobs[i][0]
	}
	return s, nil
}

// receive fills the messages.
func (s *socket) receive() (err error) {
	for i := range s.hdrs {
		s.hdrs[i].Header.Namelen = unix.SizeofSockaddrInet6
		s.hdrs[i].Header.SetControllen(udpOOB)
	}
	s.n, s.at = 0, 0
	s.n, err = s.io.Receive(s.hdrs)
	return err
}

// ReadBatch fills ms with packets of QUIC and gives all others to the taker. It blocks until there is one of QUIC.
func (s *socket) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	got := 0
	for got < len(ms) {
		if len(s.rest.b) > 0 || s.nextTrain() {
			if s.packet(&ms[got]) {
				got++
			}
			continue
		}
		s.taker.flush()
		if got > 0 {
			break
		}
		if err := s.receive(); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return 0, err
		}
	}
	return got, nil
}

// nextTrain advances to the next message of the batch; false: there is none.
func (s *socket) nextTrain() bool {
	if s.at >= s.n {
		return false
	}
	h := &s.hdrs[s.at]
	b := s.bufs[s.at*udpTrain:][:h.Len]
	oob := s.oobs[s.at][:h.Header.Controllen]
	s.rest = received{b: b, size: len(b), oob: oob}
	if v := udpOption(oob, unix.UDP_GRO); len(v) >= 4 && int32(binary.NativeEndian.Uint32(v)) > 0 {
		s.rest.size = int(int32(binary.NativeEndian.Uint32(v)))
	}
	s.rest.age = age(oob)
	s.rest.from = s.froms.addr(&s.names[s.at], s.zone)
	s.at++
	s.wire.All.Received(len(b) + packets(len(b), s.rest.size)*upkeep.HeaderOf(s.rest.from))
	return len(b) > 0 || s.nextTrain()
}

// age is for how long a message has waited to be read (SO_TIMESTAMPNS, socket(7)), 0 where that is not known. The clock may be set
// meanwhile: more than a second is not believed.
func age(oob []byte) time.Duration {
	v := option(oob, unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS)
	if len(v) < int(unsafe.Sizeof(unix.Timespec{})) {
		return 0
	}
	at := (*unix.Timespec)(unsafe.Pointer(&v[0]))
	if d := time.Since(time.Unix(at.Unix())); d > 0 && d < time.Second {
		return d
	}
	return 0
}

// packet takes the next packet of the train. It reports whether it is one of QUIC, which is in m then.
func (s *socket) packet(m *ipv4.Message) bool {
	if isChannel(s.rest.b) {
		s.taker.forward(s.rest.sameChannel(), s.rest.size, s.rest.from)
		return false
	}
	n := min(s.rest.size, len(s.rest.b))
	b := s.rest.b[:n:n]
	s.rest.b = s.rest.b[n:]
	if sealed.Is(b) && !stun.Is(b) {
		s.wire.Sealed.Received(n + upkeep.HeaderOf(s.rest.from))
		s.taker.take(b, &s.rest)
		return false
	}
	if n > len(m.Buffers[0]) { // longer than any packet of QUIC
		return false
	}
	m.N = copy(m.Buffers[0], b)
	m.NN = copy(m.OOB, s.rest.oob)
	m.Addr = s.rest.from
	return true
}

// udpOption finds the value of UDP's control message of a kind: the length of a train's packets. Without it a message is one packet.
func udpOption(oob []byte, kind int32) []byte { return option(oob, unix.SOL_UDP, kind) }

func option(oob []byte, level, kind int32) []byte {
	for len(oob) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(oob) {
			return nil
		}
		if h.Level == level && h.Type == kind {
			return oob[unix.CmsgLen(0):n]
		}
		oob = oob[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(oob)):]
	}
	return nil
}

// packets is how many of a size n bytes are.
func packets(n, size int) int { return (n + size - 1) / max(size, 1) }

// WriteMsgUDP sends b from the source that its connection has been given. One that answers has its own in oob.
func (s *socket) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	size := len(b)
	if v := udpOption(oob, unix.UDP_SEGMENT); len(v) >= 2 {
		size = int(binary.NativeEndian.Uint16(v))
	}
	if s.named != nil {
		oob = sourceControl(oob, s.named.get(to))
	}
	if at := to.AddrPort(); len(b) > 0 && to.Zone == "" && (s.inet6 || at.Addr().Unmap().Is4()) {
		n, err = s.io.Send(b, oob, at, s.inet6)
	} else {
		n, oobn, err = s.UDPConn.WriteMsgUDP(b, oob, to)
	}
	s.wire.All.Sent(n + packets(n, size)*upkeep.HeaderOf(to))
	return n, oobn, err
}

// WriteTo sends what is not of a connection.
func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := s.UDPConn.WriteTo(b, to)
	if a, ok := to.(*net.UDPAddr); ok && err == nil {
		s.wire.All.Sent(n + upkeep.HeaderOf(a))
	}
	return n, err
}

// Close closes the socket.
func (s *socket) Close() error {
	s.once.Do(s.onGone)
	return s.UDPConn.Close()
}

// fromCache keeps the addresses of the last senders, so that a packet makes no garbage. An address is never changed:
// quic-go keeps it.
type fromCache struct {
	keys [16]netip.AddrPort
	vals [16]*net.UDPAddr
	next int
}

// addr is the address sa; zone names its interface if it is link-local.
func (f *fromCache) addr(sa *unix.RawSockaddrInet6, zone func(index uint32) string) *net.UDPAddr {
	var key netip.AddrPort
	// The port has network order in memory whatever the machine's is.
	port := func(p *uint16) uint16 { b := (*[2]byte)(unsafe.Pointer(p)); return uint16(b[0])<<8 | uint16(b[1]) }
	if sa.Family == unix.AF_INET {
		s4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		key = netip.AddrPortFrom(netip.AddrFrom4(s4.Addr), port(&s4.Port))
	} else {
		a := netip.AddrFrom16(sa.Addr)
		if sa.Scope_id != 0 && !a.Is4In6() {
			a = a.WithZone(zone(sa.Scope_id))
		}
		key = netip.AddrPortFrom(a, port(&sa.Port))
	}
	for i, k := range f.keys {
		if k == key && f.vals[i] != nil {
			return f.vals[i]
		}
	}
	v := net.UDPAddrFromAddrPort(key)
	f.keys[f.next], f.vals[f.next] = key, v
	f.next = (f.next + 1) % len(f.keys)
	return v
}

const (
	// zoneFor is how long the name of an interface holds: anybody on the link can send link-local packets, and each must not
	// cost a look-up in the kernel.
	zoneFor = time.Second
	// maxZones bounds what is remembered of interfaces that come and go.
	maxZones = 256
)

// zone is the name of an interface in link-local addresses, as net.UDPAddr has it.
func (s *socket) zone(index uint32) string {
	now := time.Now()
	if z, ok := s.zones[index]; ok && now.Sub(z.at) < zoneFor {
		return z.name
	}
	z := zone{fmt.Sprint(index), now}
	var err error
	// SIOCGIFNAME finds one interface; net.InterfaceByIndex lists all.
	if r, _ := unix.NewIfreq(""); s.raw.Control(func(fd uintptr) {
		r.SetUint32(index)
		err = unix.IoctlIfreq(int(fd), unix.SIOCGIFNAME, r)
	}) == nil && err == nil {
		z.name = r.Name()
	}
	if len(s.zones) >= maxZones {
		clear(s.zones)
	}
	s.zones[index] = z
	return z.name
}

// segmentControl appends the control message that has the kernel, or the network card, cut a train into packets of the
// given size (UDP_SEGMENT, udp(7)).
func segmentControl(oob []byte, size int) []byte {
	n := len(oob)
	oob = append(oob, make([]byte, unix.CmsgSpace(2))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[n]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&oob[n+unix.CmsgLen(0)])) = uint16(size)
	return oob
}

// sourceControl appends the control message with the source address of what is sent, on a socket that is bound to any
// address (ip(7), ipv6(7)).
func sourceControl(oob []byte, src netip.Addr) []byte {
	switch {
	case !src.IsValid() || src.IsUnspecified():
		return oob
	case src.Is4() || src.Is4In6():
		a := src.As4()
		cm := ipv4.ControlMessage{Src: a[:]}
		return append(oob, cm.Marshal()...)
	}
	n := len(oob)
	oob = append(oob, make([]byte, unix.CmsgSpace(unix.SizeofInet6Pktinfo))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[n]))
	h.Level, h.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&oob[n+unix.CmsgLen(0)]))
	info.Addr = src.As16()
	return oob
}
