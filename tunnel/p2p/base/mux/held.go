package mux

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-yamux/v5"
)

const (
	typeWindow = 1 // a message that widens a window
	flagSYN    = 1 // of a message that opens a stream

	// heldStep is what is reserved, and given back, at a time.
	heldStep = 256 << 10
	// holdsMuch: a session with more than that to read leaves a part of the memory to those with less, and its windows
	// do not grow.
	holdsMuch = 4 << 20
	// muchPriority: three quarters of the memory are for sessions that hold much.
	muchPriority = 191
	// maxBody is more than any window: at a longer message yamux ends the session.
	maxBody = 1 << 30
	// backlog is how many streams may wait to be accepted: yamux resets what is more.
	backlog = 256
)

// errMemory is why a window does not grow.
var errMemory = errors.New("the peer has too much waiting to be read")

// held is what a session has received and nobody has read, by stream. It is reserved in the scope of its peer, so that
// one peer cannot fill this process's memory, and all together cannot either: what counts is what is there, not what the
// windows would allow, of which nearly all is never used. Where there is no room the stream that holds most is reset.
type held struct {
	span network.ResourceScopeSpan // nil: nothing is reserved
	conn net.Conn                  // below the session

	// Of the messages' reader alone.
	header [headerLen]byte
	have   int    // bytes of header
	body   uint32 // bytes of the message that are still to come

	mu       sync.Mutex // a leaf: guards what follows
	streams  map[uint32]*holder
	early    []uint32 // opened by the peer and not accepted yet, in order
	total    int
	reserved int
	closed   bool
}

// holder is one stream.
type holder struct {
	evict func() // resets the stream; nil: not accepted yet
	n     int    // bytes to read
	ended bool   // reset for what it holds; its owner still has it
}

func newHeld(nc net.Conn, scope network.PeerScope) (*held, error) {
	h := &held{conn: nc, streams: make(map[uint32]*holder)}
	if scope == nil {
		return h, nil
	}
	var err error
	h.span, err = scope.BeginSpan()
	return h, err
}

// parse follows the messages in b, which arrive in this order. It returns what is to be closed for want of memory.
func (h *held) parse(b []byte) (end func()) {
	for len(b) > 0 {
		if h.body > 0 {
			n := min(int(h.body), len(b))
			h.body -= uint32(n) //nolint:gosec // at most body
			b = b[n:]
			continue
		}
		n := copy(h.header[h.have:], b)
		h.have += n
		b = b[n:]
		if h.have < headerLen {
			return end
		}
		h.have = 0
		kind, flags := h.header[1], binary.BigEndian.Uint16(h.header[2:])
		id := binary.BigEndian.Uint32(h.header[4:])
		if kind == typeData {
			h.body = min(binary.BigEndian.Uint32(h.header[8:]), maxBody)
		}
		if kind > typeWindow {
			continue
		}
		if flags&flagSYN != 0 {
			h.opened(id)
		}
		if f := h.add(id, int(h.body)); f != nil {
			end = f
		}
	}
	return end
}

// opened notes a stream that the peer opens.
func (h *held) opened(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.early) < backlog && h.streams[id] == nil {
		h.streams[id] = &holder{}
		h.early = append(h.early, id)
	}
}

// own notes how to end a stream that has an owner now. Streams are accepted in order: those before it never will be.
func (h *held) own(stream uint32, evict func(), accepted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for accepted = accepted && h.streams[stream] != nil; accepted && len(h.early) > 0; {
		id := h.early[0]
		h.early = h.early[1:]
		if id == stream {
			break
		}
		h.forget(id)
	}
	if h.streams[stream] == nil {
		h.streams[stream] = &holder{}
	}
	h.streams[stream].evict = evict
}

// add counts n bytes for a stream. Those of no stream are discarded by yamux.
func (h *held) add(id uint32, n int) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.streams[id]
	if at == nil || at.ended || n == 0 || h.closed {
		return nil
	}
	at.n += n
	h.total += n
	if h.span == nil || h.total <= h.reserved {
		return nil
	}
	more := h.total - h.reserved + heldStep
	priority := network.ReservationPriorityAlways
	if h.total > holdsMuch {
		priority = muchPriority
	}
	if h.span.ReserveMemory(more, priority) == nil {
		h.reserved += more
		return nil
	}
	return h.worst()
}

// worst returns what resets the stream that holds most, or ends the session if all have been reset.
func (h *held) worst() (end func()) {
	var most *holder
	for _, o := range h.streams {
		if o.evict != nil && !o.ended && (most == nil || o.n > most.n) {
			most = o
		}
	}
	if most == nil {
		return func() { _ = h.conn.Close() }
	}
	most.ended = true // what it holds is there until its owner lets it go
	return most.evict
}

// read takes back n bytes that a stream's owner has read.
func (h *held) read(id uint32, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := h.streams[id]; at != nil {
		n = min(n, at.n) // what came before the stream had its number was not counted
		at.n -= n
		h.release(n)
	}
}

// left takes back all that a stream holds: its owner has let it go.
func (h *held) left(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(id)
}

// forget expects mu held, as release does.
func (h *held) forget(id uint32) {
	if at := h.streams[id]; at != nil {
		delete(h.streams, id)
		h.release(at.n)
	}
}

func (h *held) release(n int) {
	h.total -= n
	if spare := h.reserved - h.total - heldStep; h.span != nil && !h.closed && spare >= 4*heldStep {
		h.span.ReleaseMemory(spare)
		h.reserved -= spare
	}
}

// close gives back everything.
func (h *held) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed = true; h.span != nil {
		h.span.Done()
	}
}

// windows answers yamux's questions about memory: windows are not reserved, but do not grow where there is no room for
// what they would let in now.
type windows struct{ *held }

var _ yamux.MemoryManager = windows{}

// ReserveMemory implements yamux.MemoryManager.
func (w windows) ReserveMemory(size int, priority uint8) error {
	if priority == network.ReservationPriorityAlways || w.span == nil {
		return nil // a new stream: resources bound their number
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.total > holdsMuch || w.closed {
		return errMemory
	}
	if err := w.span.ReserveMemory(size, priority); err != nil {
		return err
	}
	w.span.ReleaseMemory(size)
	return nil
}

// ReleaseMemory implements yamux.MemoryManager.
func (windows) ReleaseMemory(int) {}

// Done implements yamux.MemoryManager.
func (windows) Done() {}
