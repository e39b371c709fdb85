package tunnel

import (
	"sync"
	"time"

	"edgemesh/tunnel/virtio"
)

const (
	// maxHalves and maxHalfBytes bound the halves of packets of one peer that wait for the other one: their number, and
	// the memory that they hold; above it all are dropped. The two halves of a packet leave in one system call, so few
	// wait at a time.
	maxHalves    = 64
	maxHalfBytes = 256 << 10
	// halfLife is how long a half counts, nanoseconds; it is freed within as long again.
	halfLife = int64(time.Second)

	eitherHalf = kindFirst | kindSecond
)

// halves are the halves of packets of one peer that wait for the other one, over all its paths.
type halves struct {
	pools *pools
	now   func() int64
	lost  func() // counts a half that waited without success; it takes no lock

	mu     sync.Mutex // a leaf
	closed bool
	slots  *[maxHalves]half // by id; nil until the first one
	held   int              // memory, bytes
	sweep  *time.Timer      // frees the old ones; nil while none waits
}

// half is a half that waits; an empty slot has no packet.
type half struct {
	p    *packet
	from *DatagramSink
	kind byte
	id   uint16
	at   int64
}

// match returns the half that b belongs to, which is the caller's then; or it keeps a copy of b, which waits for it.
func (h *halves) match(from *DatagramSink, kind byte, id uint16, b []byte) *packet {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if h.slots == nil {
		h.slots = new([maxHalves]half)
	}
	s := &h.slots[id%maxHalves]
	if s.p != nil && s.from == from && s.id == id && s.kind^kind == eitherHalf && now-s.at < halfLife && s.p.n+len(b) <= virtio.MaxPacket {
		p := s.p
		h.held -= p.charge()
		*s = half{}
		return p
	}
	h.drop(s)
	p := h.pools.get(len(b))
	p.n = copy(p.buf, b)
	if h.held+p.charge() > maxHalfBytes {
		h.dropIf(func(*half) bool { return true })
	}
	*s = half{p, from, kind, id, now}
	h.held += p.charge()
	if h.sweep == nil {
		h.sweep = time.AfterFunc(time.Duration(halfLife), h.expire)
	}
	return nil
}

// drop gives up what waits in a slot. The caller holds mu.
func (h *halves) drop(s *half) {
	if s.p == nil {
		return
	}
	h.lost()
	h.held -= s.p.charge()
	h.pools.put(s.p)
	*s = half{}
}

// expire frees the halves that are too old, and comes back for the others.
func (h *halves) expire() {
	before := h.now() - halfLife
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropIf(func(s *half) bool { return s.at <= before })
	h.sweep = nil
	if h.held > 0 {
		h.sweep = time.AfterFunc(time.Duration(halfLife), h.expire)
	}
}

// forget frees the halves of a path that has ended.
func (h *halves) forget(from *DatagramSink) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropIf(func(s *half) bool { return s.from == from })
}

// close frees everything; nothing waits afterwards.
func (h *halves) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.dropIf(func(*half) bool { return true })
	if h.sweep != nil {
		h.sweep.Stop()
	}
}

// dropIf gives up the halves that which picks. The caller holds mu.
func (h *halves) dropIf(which func(*half) bool) {
	if h.slots == nil {
		return
	}
	for i := range h.slots {
		if s := &h.slots[i]; s.p != nil && which(s) {
			h.drop(s)
		}
	}
}
