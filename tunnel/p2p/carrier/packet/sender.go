package packet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/upkeep"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

const (
	// trainBytes and trainPackets bound a train, which one system call sends: the length of a UDP packet, and
	// UDP_MAX_SEGMENTS of older kernels.
	trainBytes   = 65000
	trainPackets = 64
	// quicExtra is what quic-go leaves for headers in its longest datagram, bytes (estimateMaxPayloadSize).
	quicExtra = 1 + 20 + 16
	// headers of UDP and IPv4, bytes.
	headers = 8 + 20
)

// sender is the sending direction of a session.
type sender struct {
	link *link
	route
	base []byte       // control message with the source address, or empty
	size atomic.Int32 // largest packet that passes, with a channel's header, bytes; 0: none

	arrived  chan uint32 // probes that the peer confirms
	tooLarge wake.One    // the interface refused a packet of the size in use
	confirm  wake.One    // the size in use may be too large

	mu     sync.Mutex // guards the rest; no other lock is taken under it
	sealer *sealed.Sealer
	train
}

// train is the packets that one system call sends.
type train struct {
	buf    *[]byte // the packets that were put; nil: none
	each   int     // length of a packet, of all but the last
	count  int
	whole  bool   // no more may follow: the last packet is shorter
	oob    []byte // control messages of a train
	cut    int    // the packet length that oob is for
	single bool   // the interface takes no trains
}

// sending is what is sent beside one connection.
type sending struct {
	link
	now  atomic.Pointer[sender] // nil: none can be sent
	next atomic.Pointer[sender] // is to replace it; nil: none
}

// route is how packets leave.
type route struct {
	quic *quic.Conn // on whose addresses: the peer's, or a relay's that forwards them
	sock *socket
	src  netip.Addr // none: the kernel fills it in
	head []byte     // of the channel at the relay; empty: none forwards them
}

func newSender(l *link, r route, sealer *sealed.Sealer) *sender {
	base := sourceControl(nil, r.src)
	return &sender{link: l, route: r, base: base, sealer: sealer, train: train{oob: base},
		arrived: make(chan uint32, 16), tooLarge: wake.NewOne(), confirm: wake.NewOne()}
}

// run serves the direction until its stream ends, or ctx does. It closes works when the size is found.
func (o *sender) run(ctx context.Context, s network.Stream, largest int, works chan<- struct{}) error {
	ended := make(chan error, 1)
	o.link.cfg.Spawn(func() {
		var b [4]byte
		for {
			if _, err := io.ReadFull(s, b[:]); err != nil {
				ended <- fmt.Errorf("the peer ended the stream: %w", err)
				return
			}
			o.note(binary.BigEndian.Uint32(b[:]))
		}
	})
	find := search{
		sizes: packetSizes(o.v6(), largest+len(o.head)), size: &o.size, arrived: o.arrived, tooLarge: o.tooLarge, confirm: o.confirm, ended: ended,
		probe: func(id uint32, size int) error { return o.sendOwn(kindProbe, id, size) },
		path:  o.link.path, log: o.link.cfg.Log,
		seen: seen{id: rand.Uint32()},
	}
	find.works = sync.OnceFunc(func() { close(works) })
	if via := o.link.via; via != nil {
		found := find.works
		find.works, find.rests, find.slow = func() { found(); via.note(nil) }, via.note, via.slow
	} else {
		find.quicNeeds = o.quicNeeds
	}
	return find.run(ctx)
}

func (o *sender) v6() bool {
	a, ok := o.quic.RemoteAddr().(*net.UDPAddr)
	return ok && a.IP.To4() == nil
}

// quicNeeds is how large QUIC's own packets are, which a datagram that is too large makes it say.
func (o *sender) quicNeeds() (int, error) {
	var tooLarge *quic.DatagramTooLargeError
	if err := o.quic.SendDatagram(make([]byte, maxPacket)); !errors.As(err, &tooLarge) {
		return 0, errors.Join(errEnded, err)
	}
	return int(tooLarge.MaxDatagramPayloadSize) + quicExtra, nil
}

// note takes the peer's confirmation of a probe.
func (o *sender) note(id uint32) {
	select {
	case o.arrived <- id:
	default: // the search waits for one at a time
	}
}

// overhead is what is sent beside a payload, bytes.
func (o *sender) overhead() int { return len(o.head) + sealed.Overhead }

// put seals b as the next packet of the train, and sends the train before it where b does not fit. The error is
// ErrNoDatagrams or the socket's.
func (o *sender) put(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(b) + o.overhead()
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
		if o.buf, ok = o.link.trains.Get().(*[]byte); !ok {
			return ErrNoDatagrams
		}
	}
	var err error
	if *o.buf, err = o.sealer.Seal(append(*o.buf, o.head...), b); err != nil {
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
func (o *sender) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	if o.count > 0 {
		err = o.send()
	}
	if o.buf != nil {
		o.link.trains.Put(o.buf)
		o.buf = nil
	}
	return err
}

// sendOwn sends a payload of the package's own immediately, padded to a packet of size bytes.
func (o *sender) sendOwn(kind byte, id uint32, size int) error {
	payload := binary.BigEndian.AppendUint32([]byte{kind}, id)
	payload = append(payload, make([]byte, max(size-o.overhead()-len(payload), 0))...)
	o.mu.Lock()
	defer o.mu.Unlock()
	b, err := o.sealer.Seal(append(make([]byte, 0, len(payload)+o.overhead()), o.head...), payload)
	if err != nil {
		return err
	}
	_, err = o.write(b, o.base)
	return err
}

// send sends the train and makes room for the next. Where the interface takes no trains, it sends packet by packet. The
// caller holds mu.
func (o *sender) send() error {
	b, each, count := *o.buf, o.each, o.count
	*o.buf, o.count, o.whole = b[:0], 0, false
	o.link.path.Sent(len(b))
	if count > 1 && !o.single {
		if each != o.cut {
			o.oob, o.cut = segmentControl(append(o.oob[:0:cap(o.oob)], o.base...), each), each
		}
		_, err := o.write(b, o.oob)
		if err == nil || !isNoTrain(err) && !isTooLarge(err) {
			return o.judge(err)
		}
		o.single = isNoTrain(err)
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

// judge turns the outcome of a write into the caller's. A packet that is too large for the interface is lost, as on any
// link, and wakes the search for a smaller size.
func (o *sender) judge(err error) error {
	if err == nil || !isTooLarge(err) {
		return err
	}
	o.tooLarge.Wake()
	return nil
}

func (o *sender) write(b, oob []byte) (int, error) {
	to, ok := o.quic.RemoteAddr().(*net.UDPAddr) // follows the peer's address
	if !ok {
		return 0, ErrNoDatagrams
	}
	n, _, err := o.sock.WriteMsgUDP(b, oob, to)
	each := n
	if len(oob) > len(o.base) {
		each = o.cut
	}
	o.sock.wire.Sealed.Sent(n + packets(n, each)*upkeep.HeaderOf(to))
	return n, err
}
