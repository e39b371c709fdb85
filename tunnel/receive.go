package tunnel

import (
	"errors"
	"fmt"
	"io"

	"edgemesh/tunnel/acks"
	"edgemesh/tunnel/epoch"
	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// Receive takes the packets of one incoming stream until it ends: nil after an end in order. The underlay calls it, in a
// goroutine of its own per stream, with the authenticated peer, and closes the stream afterwards. The stream is reset
// from here if the peer leaves or the tunnel closes.
//
// Errors: ErrClosed, ErrUnknownPeer, ErrBadLane, ErrVersion, ErrMalformed, or that of s.
func (t *Tunnel) Receive(id PeerID, ln Lane, s Stream) error {
	if ln >= numLanes {
		return fmt.Errorf("lane %d: %w", ln, ErrBadLane)
	}
	p, err := t.enter(id, ln, s)
	if err != nil {
		return err
	}
	defer t.wg.Done()
	defer p.streams.remove(ln, s)
	if ln == StreamLane { // nothing is sent over TCP without an answer
		p.lanes[ln].expect()
	}
	err = p.receive(ln, s)
	if p.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}

// enter registers a stream.
func (t *Tunnel) enter(id PeerID, ln Lane, s Stream) (*peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	p := stateOf(t, t.members[id])
	if p == nil {
		return nil, fmt.Errorf("peer %s: %w", id, ErrUnknownPeer)
	}
	if !p.streams.add(ln, s, t.lim.StreamsPerLane, t.now()) {
		return nil, fmt.Errorf("peer %s: %w: it is in quarantine for that", id, ErrMalformed)
	}
	t.wg.Add(1)
	return p, nil
}

// receive reads one stream from its HELLO to its end.
func (p *peer) receive(ln Lane, s Stream) error {
	f := newFrameReader(s, p.t.pools)
	defer f.release()
	h, err := readHello(f, ln)
	if err != nil {
		if errors.Is(err, ErrMalformed) {
			p.malformed(DropBadFrame)
		}
		return err
	}
	in := &incoming{p: p, frames: f, carrier: h.carrier, order: &p.order[ln]}
	in.order.begin(h.carrier)
	defer in.end()
	return in.receive()
}

// incoming is one stream after its HELLO.
type incoming struct {
	p       *peer
	frames  *frameReader
	carrier epoch.Carrier
	order   *order
	waited  bool // for the carrier before it
	reads   int  // of frames, as of the last packet
	join    tcpJoiner
}

// wait returns once the carrier before this one is over, or has been silent for too long.
func (in *incoming) wait() {
	if !in.waited {
		in.waited = true
		in.order.wait(in.p.ctx, in.carrier, in.p.t.lim.HoldTime)
	}
}

// end notes that the stream has nothing more to say. One without any packet waits as well: the next carrier relies on
// that.
func (in *incoming) end() {
	in.wait()
	in.p.write(in.join.frame())
	in.order.end(in.carrier)
}

func (in *incoming) receive() error {
	p := in.p
	for {
		t, body, err := in.frames.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			if errors.Is(err, ErrMalformed) {
				p.malformed(DropBadFrame)
			}
			return err
		case t == framePacket:
			if in.frames.reads != in.reads { // once per Read; a HELLO or MARK alone is no traffic
				in.reads = in.frames.reads
				p.used(p.t.now())
			}
			in.wait()
			if r := in.deliver(body); r != 0 && p.refuse(r) {
				return fmt.Errorf("last: %s: %w", r, ErrMalformed)
			}
			if !in.frames.ready() { // nothing waits for the next Read
				p.write(in.join.frame())
			}
		case t == frameMark && len(body) == 0:
			in.end()
		default:
			if p.malformed(DropBadFrame) {
				return fmt.Errorf("last: frame of type %d: %w", t, ErrMalformed)
			}
		}
	}
}

// readHello reads a stream's first frame.
func readHello(f *frameReader, ln Lane) (hello, error) {
	t, body, err := f.next()
	if err != nil {
		return hello{}, err
	}
	if t != frameHello || len(body) > helloMax {
		return hello{}, fmt.Errorf("a frame of type %d comes first: %w", t, ErrMalformed)
	}
	h, err := parseHello(body)
	if err == nil && h.lane != ln {
		err = fmt.Errorf("hello for lane %d on lane %d: %w", h.lane, ln, ErrBadLane)
	}
	return h, err
}

// deliver checks the packet just read, b with its virtio header, and writes it to the device, or holds it to join others
// to it.
func (in *incoming) deliver(b []byte) Reason {
	p := in.p
	var h inet.Header
	if r := p.check(b, &h); r != 0 {
		return r
	}
	if in.join.join(b, &h) {
		return 0
	}
	p.write(in.join.frame())
	if !p.thins(&h, b) && !in.join.hold(in.frames.rest(len(b)), len(b), &h) {
		p.write(b)
	}
	return 0
}

// check checks a packet, b with its virtio header, and counts it.
func (p *peer) check(b []byte, h *inet.Header) Reason {
	if len(b) < minPacketBody {
		return DropMalformed
	}
	ip := b[virtio.HeaderLen:]
	if err := h.Parse(ip, p.t.seed); err != nil {
		return reasonOf(err)
	}
	if !virtio.Get(b).Valid(h, ip) {
		return DropBadOffload
	}
	if r := p.t.table.Load().admitReceive(p, h); r != 0 {
		return r
	}
	p.counters.rxPackets.Add(1)
	p.counters.rxBytes.Add(uint64(len(ip)))
	return 0
}

// write gives the device one frame, unless it is nil.
func (p *peer) write(b []byte) {
	if b != nil && p.t.cfg.Device.Write(b) != nil {
		p.counters.drop(DropDevice)
	}
}

// thins hands a packet that is admitted, b with its virtio header, to the thinner, and reports whether that keeps it.
func (p *peer) thins(h *inet.Header, b []byte) bool {
	if h.Proto != inet.ProtoTCP {
		return false
	}
	release, holds := p.acks.Received(h, b, p.t.now())
	p.writeACK(release)
	return holds
}

// writeACK gives the device an ACK that was held, unless it is nil.
func (p *peer) writeACK(h *acks.Held) {
	if h != nil {
		p.write(h.Frame())
		h.Free()
	}
}

// refuse counts a packet that was not delivered, and reports whether the stream is to be given up. A foreign address is no
// reason for that: the two ends may see a change of membership at different times.
func (p *peer) refuse(r Reason) bool {
	if r == DropMalformed || r == DropBadOffload || r == DropSourceRoute {
		return p.malformed(r)
	}
	p.counters.drop(r)
	if f := p.t.cfg.Refused; f != nil {
		f(p.id, r)
	}
	return false
}
