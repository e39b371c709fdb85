package tunnel

import (
	"errors"
	"os"
	"time"
)

// maxReadErrors in a row end Run: the device is not coming back.
const maxReadErrors = 20

// A device with several queues has these methods, too. Each queue is read by a
// goroutine of its own; a flow's packets are all in one.
type queued interface {
	Queues() int
	ReadQueue(i int, buf []byte) (int, error)
}

// readDevice reads all queues until the device is closed or one of them fails.
func (t *Tunnel) readDevice() error {
	q, ok := t.cfg.Device.(queued)
	if !ok || q.Queues() < 2 {
		return t.readQueue(t.cfg.Device.Read)
	}
	ended := make(chan error)
	for i := range q.Queues() {
		go func() {
			ended <- t.readQueue(func(b []byte) (int, error) { return q.ReadQueue(i, b) })
		}()
	}
	err := <-ended
	t.shut() // unblocks the others
	for range q.Queues() - 1 {
		err = errors.Join(err, <-ended)
	}
	return err
}

// readQueue is the one reader of a queue. It never blocks on a peer.
func (t *Tunnel) readQueue(read func([]byte) (int, error)) error {
	p := t.pools.get(fullLen)
	defer func() { t.pools.put(p) }()
	failed := 0
	for {
		n, err := read(p.buf[frameHdrLen:])
		if err != nil {
			if errors.Is(err, os.ErrClosed) || t.ctx.Err() != nil {
				return nil
			}
			if failed++; failed >= maxReadErrors {
				return err
			}
			t.log.Warn("read from the device", "err", err)
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

// send takes the packet just read on its way and returns a full-sized buffer
// for the next one, p itself where it is free again.
func (t *Tunnel) send(p *packet) *packet {
	if p.n < frameHdrLen+minPacketBody {
		t.lost.drop(DropMalformed)
		return p
	}
	var h header
	ip := p.ip()
	if r := h.parse(ip, t.seed); r != 0 {
		t.lost.drop(r)
		return p
	}
	o, r := t.table.Load().admitSend(&h)
	if r != 0 {
		if h.noise() {
			return p
		}
		t.lost.drop(r)
		if r == DropNoRoute {
			t.unreachable(ip)
		}
		return p
	}
	if r := normalize(p.buf[frameHdrLen:], &h, ip); r != 0 {
		o.peer.counters.drop(r)
		return p
	}
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
	q, free := p, p
	if p.n <= largeLen { // do not hold 64 KiB for less than half of it
		q = t.pools.get(p.n)
		q.n = copy(q.buf, p.frame())
	} else {
		free = t.pools.get(fullLen)
	}
	q.flow, q.at = h.flow, t.now()
	o.peer.acks.sent(&h, q.ip(), q.at)
	o.peer.used(q.at)
	o.peer.lanes[h.lane()].push(q)
	return free
}
