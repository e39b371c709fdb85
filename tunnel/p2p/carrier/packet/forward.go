package packet

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"edgemesh/internal/upkeep"
)

// A packet for a relay to forward has a header before it: two bits 10, which neither QUIC nor sealed packets begin with and
// which RFC 9443 gives to RTP, and the number of a channel. Numbers are the relay's. It takes the header off, so what
// arrives is a sealed packet like any other.
//
//	 0        4
//	+--------+------------------
//	| number | sealed packet
//	+--------+------------------
const (
	// ChannelLen is the length of the header, bytes.
	ChannelLen  = 4
	channelMask = 0xc0
	channelBits = 0x80
	// MaxChannel is the highest number.
	MaxChannel = 1<<30 - 1
)

// isChannel reports whether b begins as a packet to forward does.
func isChannel(b []byte) bool { return len(b) > 0 && b[0]&channelMask == channelBits }

// ChannelOf is the number in the header of a packet; false: it has none.
func ChannelOf(b []byte) (number uint32, ok bool) {
	if len(b) < ChannelLen || !isChannel(b) {
		return 0, false
	}
	return binary.BigEndian.Uint32(b) & MaxChannel, true
}

// appendChannel appends the header of a channel.
func appendChannel(b []byte, number uint32) []byte {
	return binary.BigEndian.AppendUint32(b, channelBits<<24|number)
}

// Channel is this node's end of one: what is sent on Over, beside QUIC, with Number before it, goes to the peer as long as
// the peer has a channel to this node. It ends with Ctx, and Close ends it.
type Channel struct {
	Over   *quic.Conn
	Number uint32
	Ctx    context.Context //nolint:containedctx // the channel's lifetime
	Close  func()
}

// Forwarder forwards packets of members at a relay.
type Forwarder interface {
	// Forward takes packets of each bytes, the last one perhaps shorter, that begin with the same header and came from one
	// address. It is called by the goroutine that reads the socket; b is valid, and may be changed, during the call.
	Forward(b []byte, each int, from *net.UDPAddr)
}

// SetForwarder has f take the packets that are to be forwarded. Without one they are refused.
func (s *Service) SetForwarder(f Forwarder) { s.in.forwarder.Store(&f) }

// forward takes packets with a channel's header.
func (d *dispatcher) forward(b []byte, each int, from *net.UDPAddr) {
	if f := d.in.forwarder.Load(); f != nil {
		(*f).Forward(b, each, from)
		return
	}
	d.in.counts[RefusedUnknown].Add(uint64(packets(len(b), each)))
}

// sameChannel cuts off the packets at the beginning of a train that have the same header.
func (r *received) sameChannel() []byte {
	n := min(r.size, len(r.b))
	if n >= ChannelLen {
		head := r.b[:ChannelLen]
		for n < len(r.b) && bytes.HasPrefix(r.b[n:], head) {
			n = min(n+r.size, len(r.b))
		}
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

// Far is the far end of a QUIC connection on one of the shared sockets, to which other packets can be sent, too.
type Far struct {
	quic *quic.Conn
	sock *socket
	base []byte // control message with the source address, or empty
}

// Far returns the far end of c. The error says why nothing else can be sent there.
func (s *sockets) Far(c network.Conn) (Far, error) {
	var q *quic.Conn
	if !c.As(&q) {
		return Far{}, fmt.Errorf("%s is no QUIC connection", c.RemoteMultiaddr())
	}
	sock, src, err := s.socketOf(q)
	return Far{q, sock, sourceControl(nil, src)}, err
}

// Is reports whether it is at an address, which QUIC has validated (RFC 9000, sections 8 and 9).
func (f Far) Is(a *net.UDPAddr) bool {
	at, ok := f.quic.RemoteAddr().(*net.UDPAddr)
	return ok && (at == a || at.Port == a.Port && at.IP.Equal(a.IP) && at.Zone == a.Zone)
}

// Send sends packets of each bytes, the last one perhaps shorter, and returns how many bytes of them it sent. It does not
// wait: unix.EAGAIN means that the socket takes no more now.
func (f Far) Send(b []byte, each int) (sent int, err error) {
	to, ok := f.quic.RemoteAddr().(*net.UDPAddr)
	if !ok {
		return 0, ErrNoDatagrams
	}
	if len(b) > each {
		var room [128]byte
		err := f.sock.sendNow(b, segmentControl(append(room[:0], f.base...), each), to, each)
		if err == nil {
			return len(b), nil
		}
		if !isNoTrain(err) {
			return 0, err
		}
	}
	for sent < len(b) {
		n := min(each, len(b)-sent)
		if err := f.sock.sendNow(b[sent:sent+n], f.base, to, each); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// sendNow is WriteMsgUDP without waiting, neither for room nor for another writer.
func (s *socket) sendNow(b, oob []byte, to *net.UDPAddr, each int) error {
	sa, err := s.sockaddr(to)
	if err != nil {
		return err
	}
	var n int
	if e := s.raw.Control(func(fd uintptr) { n, err = unix.SendmsgN(int(fd), b, oob, sa, unix.MSG_DONTWAIT) }); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	s.wire.All.Sent(n + packets(n, each)*upkeep.HeaderOf(to))
	return nil
}

// sockaddr is an address as the socket's family takes it.
func (s *socket) sockaddr(a *net.UDPAddr) (unix.Sockaddr, error) {
	own, ok := s.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("%s is not a UDP address", s.LocalAddr())
	}
	if own.IP.To4() != nil {
		ip := a.IP.To4()
		if ip == nil {
			return nil, fmt.Errorf("%s is not an address for %s", a, own)
		}
		return &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}, nil
	}
	ip := a.IP.To16()
	if ip == nil || a.Zone != "" {
		return nil, fmt.Errorf("%s is not an address for %s", a, own)
	}
	return &unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(ip)}, nil
}
