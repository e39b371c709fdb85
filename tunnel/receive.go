package tunnel

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// Receive takes the packets of one incoming stream until it ends: nil after an
// end in order. It is called by the underlay, in a goroutine of its own per
// stream, with the authenticated peer; the caller closes the stream afterwards.
// Reset ends it from this side: the peer left, the tunnel closed.
//
// Errors: ErrClosed, ErrUnknownPeer, ErrBadLane, ErrVersion, ErrMalformed, or
// that of s.
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
	p := t.peers[id]
	if p == nil {
		return nil, fmt.Errorf("peer %s: %w", id, ErrUnknownPeer)
	}
	if !p.streams.add(ln, s, t.lim.StreamsPerLane, t.now()) {
		return nil, fmt.Errorf("peer %s: %w: it is in quarantine for that", id, ErrMalformed)
	}
	t.wg.Add(1)
	return p, nil
}

// receive is the life of one stream.
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
	o := &p.order[ln]
	o.begin(h.carrier)
	reads := 0
	var j tcpJoiner
	hold := sync.OnceFunc(func() { o.wait(p.ctx, h.carrier, p.t.lim.HoldTime) })
	// A carrier without any packet is not over before the one before it, either:
	// the next one relies on that.
	over := func() { hold(); p.flush(&j); o.end(h.carrier) }
	defer over()
	for {
		t, body, err := f.next()
		if err == nil && t == framePacket && f.reads != reads { // its beginning and end are no use of a carrier
			reads = f.reads
			p.used(p.t.now())
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			if errors.Is(err, ErrMalformed) {
				p.malformed(DropBadFrame)
			}
			return err
		case t == framePacket:
			hold()
			r := p.deliver(&j, f, body)
			if !f.ready() { // nothing is held over a Read
				r = max(r, p.write(j.frame()))
			}
			if r != 0 && p.refuse(r) {
				return fmt.Errorf("last: %s: %w", r, ErrMalformed)
			}
		case t == frameMark && len(body) == 0:
			over()
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

// deliver checks one packet with its virtio header, the body of the frame just
// read, and writes it to the device or holds it in j.
func (p *peer) deliver(j *tcpJoiner, f *frameReader, b []byte) Reason {
	if len(b) < minPacketBody {
		return DropMalformed
	}
	ip := b[virtio.HeaderLen:]
	var h inet.Header
	if err := h.Parse(ip, p.t.seed); err != nil {
		return reasonOf(err)
	}
	if !virtio.Get(b).Valid(&h, ip) {
		return DropBadOffload
	}
	if r := p.t.table.Load().admitReceive(p, &h); r != 0 {
		return r
	}
	p.counters.rxPackets.Add(1)
	p.counters.rxBytes.Add(uint64(len(ip)))
	if j.join(b, &h) {
		return 0
	}
	r := p.write(j.frame())
	release, holds := p.acks.received(&h, b, p.t.now())
	p.writeACK(release)
	if holds {
		return r
	}
	if !j.hold(f.rest(len(b)), len(b), &h) {
		r = max(r, p.write(b))
	}
	return r
}

// flush writes what j holds.
func (p *peer) flush(j *tcpJoiner) {
	if r := p.write(j.frame()); r != 0 {
		p.counters.drop(r)
	}
}

// write gives the device one frame; nil is none.
func (p *peer) write(b []byte) Reason {
	if b == nil || p.t.cfg.Device.Write(b) == nil {
		return 0
	}
	return DropDevice
}

// writeACK gives the device an ACK that was held; nil is none.
func (p *peer) writeACK(h *heldACK) {
	if h == nil {
		return
	}
	if r := p.write(h.frame()); r != 0 {
		p.counters.drop(r)
	}
	p.acks.free(h)
}

// refuse counts a packet that was not delivered and reports whether the stream
// is to be given up. A foreign address is no reason for that: the two ends may
// see a change of the membership at different times.
func (p *peer) refuse(r Reason) bool {
	switch r {
	case DropMalformed, DropBadOffload, DropSourceRoute:
		return p.malformed(r)
	}
	p.counters.drop(r)
	return false
}
