package tunnel

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"edgemesh/tunnel/acks"
	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// maxReadErrors in a row end Run: the device does not recover.
const maxReadErrors = 20

// readDevice is the one reader of the device, until that is closed. It never blocks on a peer.
func (t *Tunnel) readDevice() error {
	p := t.pools.get(fullLen)
	defer func() { t.pools.put(p) }()
	failed := 0
	for {
		n, err := t.cfg.Device.Read(p.buf[frameHdrLen:])
		t.reads.Add(1)
		if err != nil {
			if errors.Is(err, os.ErrClosed) || t.ctx.Err() != nil {
				return nil
			}
			if failed++; failed >= maxReadErrors {
				return err
			}
			t.log.Warn("cannot read from the TUN; trying again", "err", err)
			select { // the interface may be down for a moment
			case <-t.ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		failed = 0
		p.n = frameHdrLen + n
		p = t.send(p)
	}
}

// send passes the packet just read to its lane, and returns a full-size buffer for the next one: p itself if it is free
// again.
func (t *Tunnel) send(p *packet) *packet {
	if p.n < frameHdrLen+minPacketBody {
		t.lost.drop(DropMalformed)
		return p
	}
	var h inet.Header
	ip := p.ip()
	if err := h.Parse(ip, t.seed); err != nil {
		t.lost.drop(reasonOf(err))
		return p
	}
	m, r := t.table.Load().admitSend(&h)
	if r != 0 {
		if h.Noise() {
			return p
		}
		t.lost.drop(r)
		if r == DropNoRoute {
			t.unreachable(ip)
		}
		return p
	}
	to := t.talkTo(m)
	if to == nil {
		t.lost.drop(DropPeerGone)
		return p
	}
	if !virtio.Normalize(p.buf[frameHdrLen:], &h, ip) {
		to.counters.drop(DropBadOffload)
		return p
	}
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
	q, free := p, p
	if p.n <= largeLen { // do not keep 64 KiB for less than half of it
		q = t.pools.get(p.n)
		q.n = copy(q.buf, p.frame())
	} else {
		free = t.pools.get(fullLen)
	}
	q.flow, q.at = h.Flow, t.now()
	q.seq, q.data = h.Segment(q.ip())
	to.writeACK(to.acks.Sent(&h, q.ip(), q.at))
	to.used(q.at)
	to.forward(&h, q)
	return free
}

// forward passes a packet to its lane, so that a lost bulk segment never delays a ping or a DNS answer, nor the other
// direction's acknowledgements.
func (p *peer) forward(h *inet.Header, q *packet) {
	egress := acks.Past
	switch {
	case h.Proto == inet.ProtoTCP && p.pulled.Load():
		if !p.rows.Continues(h, q.ip(), q.at, p.acks.RTT()) {
			egress = acks.Along
		}
	case h.Proto == inet.ProtoTCP:
		egress = p.passer.Egress(h, q.ip(), q.at, p.acks.RTT(), passed{p, q, h.Src})
	}
	switch egress {
	case acks.Along:
		p.lanes[StreamLane].push(q, h.Src)
	case acks.Past:
		p.lanes[DatagramLane].push(q, h.Src)
	}
}

// passed is an ACK of a pod that the Passer holds.
type passed struct {
	p   *peer
	q   *packet
	pod netip.Addr
}

func (a passed) Send() { a.p.lanes[DatagramLane].push(a.q, a.pod) }
func (a passed) Drop() { a.p.t.pools.put(a.q) }
