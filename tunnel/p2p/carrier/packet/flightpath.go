package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

const (
	maxReplies = 4 // that wait
	// trainBytes and trainPackets bound a train, which one system call sends: the length of a UDP packet, and
	// UDP_MAX_SEGMENTS of older kernels.
	trainBytes   = 65000
	trainPackets = 64
	// quicExtra is what quic-go leaves for headers in its longest datagram, bytes (estimateMaxPayloadSize).
	quicExtra = 1 + 20 + 16
	// headers of UDP and IPv4, bytes.
	headers = 8 + 20
)

// flightTrain is what has been taken for one system call. It belongs to the goroutine that sends.
type flightTrain struct {
	buf, payload []byte
	oob          []byte       // control messages of a train
	cut          int          // the packet length that oob is for
	single       bool         // the interface takes no trains
	longer       int          // bytes of a packet behind the train that is longer than its
	quicAt       *net.UDPAddr // where QUIC sends
}

// send sends all that may leave now, and sets the timer for what is due next. The error says that the path is of no use any longer.
func (x *flightPath) send() error {
	b, ok := x.trains.Get().(*[]byte) // none of its own: a hub has hundreds of paths that say little
	if !ok {
		return ErrNoDatagrams
	}
	x.buf = *b
	defer func() {
		*b = x.buf[:0]
		x.trains.Put(b)
		x.buf = nil
	}()
	for {
		if err := x.validate(); err != nil {
			return err
		}
		to, each, count, more, err := x.fill()
		if err == nil && count > 0 {
			err = x.write(to, each, count)
		}
		if err != nil || !more {
			return err
		}
	}
}

// look has serve look so many seconds after now. The caller holds the peer's mu.
func (x *flightPath) look(now, wait float64) {
	x.next = now + wait
	x.timer.Reset(time.Duration((x.next - x.of.now()) * 1e9))
}

// take takes a packet. It reports whether it is the first one since the last flush. What does not open is
// counted and ignored: anybody can have sent it.
func (x *flightPath) take(b []byte, from *received) bool {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.closed {
		return false
	}
	if len(b) > maxPacket {
		x.refuse(RefusedOversize, x.link.path)
		return false
	}
	if !x.open(b, from) || x.touched {
		return false
	}
	x.touched = true
	return true
}

// flush has what was taken delivered and counted. What is to be acknowledged and repaired now is nothing in most cases: an ACK goes with
// what leaves next.
func (x *flightPath) flush() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.touched = false
	if x.closed {
		return
	}
	x.of.lanes.Flush()
	now := x.of.now()
	wait, quiet := x.path.Quiet(now)
	switch {
	case !quiet:
		x.woken.Wake()
		x.of.wake() // the path that carries repairs
	case now+wait < x.next:
		x.look(now, wait)
	}
	if x.bytes == 0 {
		x.link.path.Heard()
		return
	}
	x.link.path.Received(x.bytes)
	x.bytes = 0
	x.Want()
}

// isUp reports whether the other end was heard on the path.
func (x *flightPath) isUp() bool {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	return x.at.works
}

// passes reports whether packets other than probes were acknowledged a moment ago.
func (x *flightPath) passes() bool {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	return x.path.InFlight() > 0 && x.path.Silent(x.of.now()) < narrowTime
}

// overhead is what a packet has beside its payload, bytes.
func (x *flightPath) overhead() int { return len(x.route.head) + sealed.Overhead }

// fill seals a train of what the path gives away. What is longer than those before it begins another. More: the path was not asked
// until it had nothing to give.
func (x *flightPath) fill() (to *net.UDPAddr, each, count int, more bool, err error) {
	x.buf = x.buf[:0]
	p := x.of
	p.mu.Lock()
	defer p.mu.Unlock()
	x.room = int(x.size.Load()) - x.overhead()
	now := p.now()
	if p.active.Load() == x {
		switch silent := x.path.Silent(now); {
		case silent > silentTime:
			return nil, 0, 0, false, errMute
		case silent > narrowTime && x.size.Load() > basePacket && !x.narrow.Swap(true):
			x.confirm.Wake()
		}
	}
	if x.narrow.Load() {
		x.room = basePacket - x.overhead()
	}
	for count < trainPackets && len(x.buf)+x.room+x.overhead() <= trainBytes {
		before := len(x.buf)
		var wait float64
		if x.payload, wait = x.path.Next(now, x.sealer.Counter(), x.payload[:0], x.room); len(x.payload) == 0 {
			if due := x.at.due(); !due.IsZero() {
				wait = min(wait, max(time.Until(due), time.Millisecond).Seconds())
			}
			x.look(now, wait)
			return x.to, each, count, false, nil
		}
		if x.buf, err = x.sealer.Seal(append(x.buf, x.route.head...), x.payload); err != nil {
			return nil, 0, 0, false, err
		}
		n := len(x.buf) - before
		if each == 0 {
			each = n
		}
		if n > each {
			x.longer = n
			break
		}
		count++
		if n < each {
			break
		}
	}
	return x.to, each, count, true, nil
}

// write sends the train, and what was longer than its packets behind it.
func (x *flightPath) write(to *net.UDPAddr, each, count int) error {
	train := x.buf[:len(x.buf)-x.longer]
	last := x.buf[len(train):]
	x.longer = 0
	x.link.path.Sent(len(x.buf))
	x.Want()
	if count > 1 && !x.single {
		if each != x.cut {
			x.oob, x.cut = segmentControl(append(x.oob[:0:cap(x.oob)], x.base...), each), each
		}
		err := x.one(train, x.oob, to, count)
		if err == nil || !isNoTrain(err) && !isTooLarge(err) {
			train = nil
		} else {
			x.single = isNoTrain(err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	for ; len(train) > 0; train = train[min(each, len(train)):] {
		if err := x.judge(x.one(train[:min(each, len(train))], x.base, to, 1)); err != nil {
			return err
		}
	}
	if len(last) > 0 {
		return x.judge(x.one(last, x.base, to, 1))
	}
	return nil
}

func (x *flightPath) one(b, oob []byte, to *net.UDPAddr, count int) error {
	n, _, err := x.route.sock.WriteMsgUDP(b, oob, to)
	x.route.sock.wire.Sealed.Sent(n + count*upkeep.HeaderOf(to))
	return err
}

// judge has what is too large for the interface lost, as on any link, and the size searched again.
func (x *flightPath) judge(err error) error {
	if err == nil || !isTooLarge(err) {
		return err
	}
	x.tooLarge.Wake()
	return nil
}

// own seals a payload of the package's own, padded to a packet of size bytes. The caller holds the peer's mu.
func (x *flightPath) own(kind byte, data uint64, size int) ([]byte, error) {
	payload := binary.BigEndian.AppendUint64([]byte{kind}, data)
	payload = append(payload, make([]byte, max(size-x.overhead()-len(payload), 0))...)
	return x.sealer.Seal(bytes.Clone(x.route.head), payload)
}

// probe sends a challenge of size bytes to where packets go.
func (x *flightPath) probe(id uint32, size int) error {
	x.of.mu.Lock()
	b, err := x.own(kindChallenge, uint64(id), size)
	to := x.to
	x.of.mu.Unlock()
	if err != nil {
		return err
	}
	return x.one(b, x.base, to, 1)
}

// validate sends challenges, and answers those of the other end.
func (x *flightPath) validate() error {
	p := x.of
	p.mu.Lock()
	x.follow()
	replies := x.reply
	x.reply = nil
	to, data, ask, failed := x.at.ask(ownLen+x.overhead()+headers, time.Now())
	works := x.at.works
	var out []sealedTo
	seal := func(to netip.AddrPort, kind byte, data uint64, size int) error {
		b, err := x.own(kind, data, size)
		out = append(out, sealedTo{b, to})
		return err
	}
	var err error
	for _, r := range replies {
		if err == nil {
			err = seal(r.to, kindResponse, r.data, 0)
		}
	}
	if ask && err == nil {
		size := 0
		if !works { // of the least size that a path is to take (RFC 9000, 8.2.1)
			size = basePacket
			if x.asked++; x.asked > goneTries {
				err = seal(to, kindChallenge, ^data, 0)
			}
		}
		if err == nil {
			err = seal(to, kindChallenge, data, size)
		}
	}
	vanish := !works && x.asked >= 2*goneTries && x.small > 1
	known, addr := x.at.now, x.to
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if vanish {
		x.link.path.Broken(fmt.Sprintf("loses packets of %d bytes, smaller ones pass", basePacket))
	}
	if vanish || failed && !works {
		return errMute
	}
	for _, o := range out {
		at := addr
		if o.to != known {
			at = net.UDPAddrFromAddrPort(o.to)
		}
		if err := x.one(o.b, x.base, at, 1); err != nil && o.to == known { // any other may be made up
			return err
		}
	}
	return nil
}

type sealedTo struct {
	b  []byte
	to netip.AddrPort
}

// follow takes over an address that QUIC has validated since. The caller holds the peer's mu.
func (x *flightPath) follow() {
	to, ok := x.route.quic.RemoteAddr().(*net.UDPAddr)
	if !ok || to == x.quicAt {
		return
	}
	first := x.quicAt == nil
	x.quicAt = to
	if at := unmapped(to); !first && at != x.at.now {
		x.moved(at, to, at.Addr() != x.at.now.Addr())
		x.at.now = at
	}
}

// moved has packets go to another address. The caller holds the peer's mu.
func (x *flightPath) moved(at netip.AddrPort, to *net.UDPAddr, line bool) {
	x.cfg.Log.Debug("sealed packets go to another address", "peer", x.link.path.Peer(), "addr", at, "line", line)
	x.to = to
	if line {
		x.path.Afresh()
		x.confirm.Wake()
	}
	x.woken.Wake()
}

// open opens a packet, and reports whether the other end sealed it. The caller holds the peer's mu.
func (x *flightPath) open(b []byte, in *received) (taken bool) {
	payload, err := x.opener.Open(b)
	if err != nil {
		x.refuse(RefusedForged, x.link.path)
		return false
	}
	now, clock, number, at := time.Now(), x.of.now(), sealed.Counter(b), unmapped(in.from)
	own := len(payload) >= ownLen && (payload[0] == kindChallenge || payload[0] == kindResponse)
	if own && !x.path.First(number) || !own && !x.path.Receive(number, payload, clock-in.age.Seconds(), clock) {
		return false // a repetition, which says nothing of where the other end is
	}
	newest := number >= x.newest
	x.newest = max(x.newest, number+1)
	if x.at.heard(at, len(b)+headers, newest, rand.Uint64(), now) {
		x.woken.Wake()
	}
	if !own {
		x.bytes += len(b)
		return true
	}
	data := binary.BigEndian.Uint64(payload[1:])
	switch payload[0] {
	case kindChallenge:
		if len(x.reply) < maxReplies {
			x.reply = append(x.reply, reply{at, data})
			x.woken.Wake()
		}
	case kindResponse:
		before := x.at.works
		if !before && data == ^x.at.data {
			x.small++
		}
		works, moved, line := x.at.answered(data)
		if moved {
			x.moved(x.at.now, net.UDPAddrFromAddrPort(x.at.now), line)
		}
		switch {
		case works && !before:
			x.of.works(x)
			x.woken.Wake()
		case !works:
			select {
			case x.answers <- uint32(data):
			default: // the search waits for one at a time
			}
		}
	}
	return true
}
