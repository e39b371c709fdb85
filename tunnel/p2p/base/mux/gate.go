package mux

import (
	"sync"
	"time"

	"edgemesh/internal/drain"
	"edgemesh/internal/wake"
)

const (
	// headerLen is the length of yamux's header: version, type, flags (2), stream
	// ID (4), length (4), big-endian. Type 0 is data.
	headerLen = 12
	typeData  = 0

	// A stream may have minQueue to maxQueue bytes in yamux's queue; it begins
	// with startQueue.
	minQueue   = 4 << 10
	startQueue = 16 << 10
	maxQueue   = 128 << 10
	// A message has up to shortMessage bytes with its header, one TLS record, unless
	// the path takes longQueue in a few milliseconds. Inside of a circuit it is shorter
	// by what surrounds it.
	shortMessage = 16 << 10
	longQueue    = maxQueue
)

// place is one stream in the queue.
type place struct {
	id      uint32
	room    wake.One // there may be room
	queued  int
	waiting bool
}

// gate knows what each stream of one session has in yamux's queue.
type gate struct {
	mu     sync.Mutex        // a leaf: guards what follows, and queued and waiting of its places
	queued map[uint32]*place // those with something in the queue
	total  int
	drain  drain.Drain
	short  int // bytes of data in a short message
}

// newGate returns the gate of a session around whose messages are so many more bytes of
// another session's.
func newGate(around int) *gate {
	return &gate{queued: make(map[uint32]*place), drain: drain.New(startQueue, minQueue, maxQueue),
		short: shortMessage - headerLen - around}
}

// enter counts up to n bytes for s and returns how many; 0 means that s has to
// wait for a token on s.room.
func (g *gate) enter(s *place, n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.drain.Limit()
	if n = min(n, limit); limit < longQueue {
		n = min(n, g.short)
	}
	if s.queued > 0 && s.queued+n > limit {
		s.waiting = true
		return 0
	}
	s.waiting = false
	if s.queued == 0 {
		g.queued[s.id] = s
	}
	s.queued += n
	g.total += n
	return n
}

// leave takes back n bytes of a stream. began says when they were written to the
// connection; zero: they were not.
func (g *gate) leave(id uint32, n int, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.queued[id]
	if s == nil || n == 0 {
		return
	}
	s.queued -= n
	g.total -= n
	if s.queued == 0 {
		delete(g.queued, id)
	}
	if !began.IsZero() {
		now := time.Now()
		g.drain.Left(n, now.Sub(began), now)
	}
	if s.waiting && s.queued <= g.drain.Limit()/2 {
		s.waiting = false
		s.room.Wake()
	}
}
