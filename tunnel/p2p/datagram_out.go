package p2p

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/sealed"
)

const (
	// trainBytes and trainPackets bound what is sent with one system call: the
	// length of a UDP packet, and UDP_MAX_SEGMENTS of older kernels.
	trainBytes   = 65000
	trainPackets = 64
)

// ErrNoDatagrams means that a path takes no datagrams, or none that large, now.
var ErrNoDatagrams = errors.New("the path takes no such datagram")

// trainPool keeps the buffers of sessions that are sending.
type trainPool struct{ sync.Pool }

func newTrainPool() *trainPool {
	return &trainPool{sync.Pool{New: func() any { b := make([]byte, 0, trainBytes+maxDatagram); return &b }}}
}

// datagramOut is the sending end of one direction of one path.
type datagramOut struct {
	p    *path
	q    *quic.Conn
	sock *udpSocket
	base []byte       // control message of the source, or empty
	size atomic.Int32 // largest sealed packet that passes, bytes; 0: none

	confirmed chan uint32   // probes that arrived
	tooLarge  chan struct{} // the interface refused a packet of the size in force
	check     chan struct{} // the size in force may be too large

	mu     sync.Mutex
	sealer *sealed.Sealer
	buf    *[]byte // the train being made; nil: none
	each   int     // length of its packets but the last
	count  int
	whole  bool // no more may follow: the last one is shorter
	oob    []byte
	cut    int  // the packet length that oob is for
	single bool // trains are refused here
}

func newDatagramOut(p *path, q *quic.Conn, sock *udpSocket, src netip.Addr, sealer *sealed.Sealer) *datagramOut {
	base := sourceControl(nil, src)
	return &datagramOut{p: p, q: q, sock: sock, base: base, oob: base, sealer: sealer,
		confirmed: make(chan uint32, 16), tooLarge: make(chan struct{}, 1), check: make(chan struct{}, 1)}
}

// run serves the session until its stream or its path ends.
func (o *datagramOut) run(s network.Stream, largest int) error {
	ended := make(chan error, 1)
	o.p.n.spawn(func() {
		var b [4]byte
		for {
			if _, err := io.ReadFull(s, b[:]); err != nil {
				ended <- fmt.Errorf("the peer ended them: %w", err)
				return
			}
			o.confirm(binary.BigEndian.Uint32(b[:]))
		}
	})
	o.p.datagrams.Store(o)
	defer o.p.datagrams.CompareAndSwap(o, nil)
	defer o.size.Store(0)
	return o.search(largest, ended)
}

// confirm notes that a probe arrived.
func (o *datagramOut) confirm(id uint32) {
	select {
	case o.confirmed <- id:
	default:
	}
}

// put seals b behind those put before; flush sends them. The error is
// ErrNoDatagrams or the socket's.
func (o *datagramOut) put(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(b) + sealed.Overhead
	if n > int(o.size.Load()) {
		return ErrNoDatagrams
	}
	if o.count > 0 && (o.whole || n > o.each || o.count == trainPackets || len(*o.buf)+n > trainBytes) {
		if err := o.send(); err != nil {
			return err
		}
	}
	if o.buf == nil {
		var ok bool
		if o.buf, ok = o.p.n.datagrams.trains.Get().(*[]byte); !ok {
			return ErrNoDatagrams
		}
	}
	var err error
	if *o.buf, err = o.sealer.Seal(*o.buf, b); err != nil {
		return err
	}
	if o.count == 0 {
		o.each = n
	}
	o.whole = n < o.each
	o.count++
	return nil
}

// flush sends what was put.
func (o *datagramOut) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	if o.count > 0 {
		err = o.send()
	}
	if o.buf != nil {
		o.p.n.datagrams.trains.Put(o.buf)
		o.buf = nil
	}
	return err
}

// sendOwn sends a payload of this package at once, padded to a packet of size bytes.
func (o *datagramOut) sendOwn(kind byte, id uint32, size int) error {
	payload := make([]byte, max(size-sealed.Overhead, 5))
	payload[0] = kind
	binary.BigEndian.PutUint32(payload[1:], id)
	o.mu.Lock()
	defer o.mu.Unlock()
	b, err := o.sealer.Seal(make([]byte, 0, len(payload)+sealed.Overhead), payload)
	if err != nil {
		return err
	}
	_, err = o.write(b, o.base)
	return err
}

// send sends the train and makes room for the next; o.mu is held. A train that is
// refused as such goes packet by packet.
func (o *datagramOut) send() error {
	b, each, count := *o.buf, o.each, o.count
	*o.buf, o.count, o.whole = b[:0], 0, false
	o.p.sent(len(b))
	if count > 1 && !o.single {
		if each != o.cut {
			o.oob, o.cut = segmentControl(append(o.oob[:0:cap(o.oob)], o.base...), each), each
		}
		_, err := o.write(b, o.oob)
		if err == nil || !noSegments(err) && !noSpace(err) {
			return o.judge(err)
		}
		o.single = noSegments(err)
	}
	for len(b) > 0 {
		n := min(each, len(b))
		if _, err := o.write(b[:n], o.base); o.judge(err) != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// judge takes the outcome of a write. A packet that is too large for the interface
// is lost as on any link, and a smaller size is looked for.
func (o *datagramOut) judge(err error) error {
	if err == nil || !noSpace(err) {
		return err
	}
	post(o.tooLarge)
	return nil
}

func (o *datagramOut) write(b, oob []byte) (int, error) {
	to, ok := o.q.RemoteAddr().(*net.UDPAddr) // follows the peer's address
	if !ok {
		return 0, ErrNoDatagrams
	}
	n, _, err := o.sock.WriteMsgUDP(b, oob, to)
	return n, err
}

// DatagramSize is the longest datagram that the stream's path takes beside it now,
// 0: none.
func (s *Stream) DatagramSize() int {
	if o := s.path.datagrams.Load(); o != nil {
		return max(int(o.size.Load())-sealed.Overhead, 0)
	}
	return 0
}

// PutDatagram sends b beside the stream, unreliably and out of order, latest with
// the next FlushDatagrams. Its first byte is below 128. The error is
// ErrNoDatagrams, after which the stream can still be used, or the socket's.
func (s *Stream) PutDatagram(b []byte) error {
	if o := s.path.datagrams.Load(); o != nil {
		return o.put(b)
	}
	return ErrNoDatagrams
}

// FlushDatagrams sends what was put. An error says that some of it is lost.
func (s *Stream) FlushDatagrams() error {
	if o := s.path.datagrams.Load(); o != nil {
		return o.flush()
	}
	return nil
}
