package socket

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/drain"
	"edgemesh/internal/rawio"
)

const (
	// writeBuffer is the size of each of the two write buffers, in bytes: the security layer fills one while the other is
	// on its way to the socket. A path uses minWritten to writeBuffer of it, by its rate.
	writeBuffer = 128 << 10
	minWritten  = 4 << 10
	// longSegment is the longest that the kernel makes, in bytes.
	longSegment = 64 << 10
	// startWritten is used while the path's rate is not known.
	startWritten = 8 << 10
	// maxReadBuffer is the size of the read buffer of a busy connection, minReadBuffer that of a quiet one, in bytes.
	maxReadBuffer = 256 << 10
	minReadBuffer = 4 << 10
	// smallReads in a row make the read buffer shrink.
	smallReads = 256
)

// Conn puts buffers between a TCP socket and the security layer, which writes records of 16 KiB and reads headers of 5
// bytes: a system call then moves as much as there is, and encryption runs beside it.
//
// Write returns when the bytes are in the buffer; a later Write returns the socket's error. Close drops what is still
// buffered after a short while. Buffers are held only while they are in use.
type Conn struct {
	manet.Conn
	io      io.ReadWriter // Conn, or its descriptor
	onClose func()        // may be nil
	input
	output
	faults  faults
	unacked unacked
}

// input belongs to the goroutine that reads.
type input struct {
	raw        *rawio.Conn // nil: Conn has no descriptor
	readSize   int         // of the read buffer
	lent       *[]byte     // of readBuffers, or nil
	rbuf       []byte      // *lent
	r, w       int         // rbuf[r:w] is unread
	smallCount int
}

// output is between Write and the flusher.
type output struct {
	mu       sync.Mutex  // a leaf: guards the rest but tuner
	changed  sync.Cond   // on mu: pending, flushing, err or closed changed
	pending  []byte      // nil, or a buffer of writeBuffers with bytes to write
	flushing bool        // the flusher runs, as it does while something is pending: a relay has thousands of quiet connections
	drain    drain.Drain // how much pending may hold
	err      error       // sticky error of the socket
	closed   bool
	deadline time.Time
	expiry   *time.Timer
	expired  bool
	tuner    *tuner // of the flusher and its own timer
}

// writeBuffers lends write buffers to connections that have something to write.
//
//nolint:gochecknoglobals // a pool is of use only when it is shared
var writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeBuffer); return &b }}

// closeGrace is how long Close waits for buffered bytes to leave.
const closeGrace = 200 * time.Millisecond

// Buffered puts buffers in front of c. closed, which may be nil, is called once, when c is about to be closed.
func Buffered(c manet.Conn, closed func()) *Conn {
	b := &Conn{Conn: c, onClose: closed, unacked: unacked{every: unackedEvery, silence: MemberSilence}, input: input{readSize: minReadBuffer},
		output: output{tuner: newTuner(c), drain: drain.New(startWritten, minWritten, writeBuffer)}}
	b.changed.L = &b.mu
	b.io = c
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := rawio.New(sc); err == nil {
			b.io, b.raw = raw, raw
		}
	}
	return b
}

func (b *Conn) Read(p []byte) (int, error) {
	if b.r == b.w {
		n, err := b.fill()
		if n == 0 {
			return 0, err
		}
		b.r, b.w = 0, n // an error comes back on the next read
	}
	n := copy(p, b.rbuf[b.r:b.w])
	b.r += n
	if b.r == b.w {
		b.resize()
	}
	return n, nil
}

// fill reads from the socket.
func (b *Conn) fill() (int, error) {
	if b.raw != nil {
		return b.raw.ReadInto(b)
	}
	return b.Conn.Read(b.Lend())
}

// readBuffers lends read buffers of minReadBuffer times 4^i to connections that have something to read: a relay has
// thousands that were busy once.
//
//nolint:gochecknoglobals // a pool is of use only when it is shared
var readBuffers [4]sync.Pool

// sizeClass is i of a size.
func sizeClass(size int) (i int) {
	for ; size > minReadBuffer; size /= 4 {
		i++
	}
	return i
}

// Lend implements rawio.Lender: it returns the read buffer, which is empty.
func (b *Conn) Lend() []byte {
	if b.lent == nil {
		var ok bool
		if b.lent, ok = readBuffers[sizeClass(b.readSize)].Get().(*[]byte); !ok {
			buf := make([]byte, b.readSize)
			b.lent = &buf
		}
		b.rbuf = *b.lent
	}
	return b.rbuf
}

// Return implements rawio.Lender.
func (b *Conn) Return() { b.release() }

func (b *Conn) release() {
	if b.lent != nil {
		readBuffers[sizeClass(len(*b.lent))].Put(b.lent)
		b.lent, b.rbuf = nil, nil
	}
}

// Clean reports whether nothing was lost or overtaken on the path lately, either way, as far as the kernel of this end knows.
// Any goroutine may ask.
func (b *Conn) Clean() bool { return b.tuner.raw != nil && b.faults.none(b.tuner.raw, time.Now()) }

// Peek waits until n bytes can be read, or the deadline, and returns how many can. It may only be called before the first
// Read, with n below 4096.
func (b *Conn) Peek(n int, deadline time.Time) int {
	_ = b.Conn.SetReadDeadline(deadline)
	defer func() { _ = b.Conn.SetReadDeadline(time.Time{}) }()
	for b.w-b.r < n {
		k, err := b.Conn.Read(b.Lend()[b.w:])
		b.w += k
		if err != nil {
			break
		}
	}
	return b.w - b.r
}

// resize adapts the emptied read buffer to what the last read brought.
func (b *Conn) resize() {
	switch {
	case b.w == b.readSize && b.readSize < maxReadBuffer:
		b.release()
		b.readSize *= 4
		b.smallCount = 0
	case b.w > b.readSize/8 || b.readSize == minReadBuffer:
		b.smallCount = 0
	default:
		if b.smallCount++; b.smallCount >= smallReads {
			b.release()
			b.readSize /= 4
			b.smallCount = 0
		}
	}
	b.r, b.w = 0, 0
}

func (b *Conn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := len(p)
	for {
		switch {
		case b.err != nil:
			return total - len(p), b.err
		case b.closed:
			return total - len(p), net.ErrClosed
		case b.expired:
			return total - len(p), os.ErrDeadlineExceeded
		case len(p) == 0:
			return total, nil
		}
		if b.pending == nil {
			b.pending = *writeBuffers.Get().(*[]byte)
		}
		n := min(len(p), b.drain.Limit()-len(b.pending))
		if n <= 0 {
			b.changed.Wait()
			continue
		}
		b.pending = append(b.pending, p[:n]...)
		p = p[n:]
		if !b.flushing {
			b.flushing = true
			go b.flush()
		}
	}
}

// flush writes pending buffers until there is none, or the connection is broken.
func (b *Conn) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.pending) > 0 && b.err == nil {
		out := b.pending
		b.pending = nil
		queue := b.drain.Limit()
		slow := queue < longSegment
		b.changed.Broadcast()
		b.mu.Unlock()
		b.unacked.wrote()
		began := time.Now()
		b.tuner.begin(queue, began)
		n, err := b.put(out, slow)
		out = out[:0]
		writeBuffers.Put(&out)
		now := time.Now()
		b.tuner.end(now)
		b.mu.Lock()
		b.drain.Left(n, now.Sub(began), now)
		b.mu.Unlock()
		b.mu.Lock()
		if err != nil && b.err == nil {
			b.err = err
		}
	}
	b.flushing = false
	b.changed.Broadcast()
}

// put writes out to the socket. To that of a slow path it waits for room before each call: the kernel fills its last segment
// otherwise, which is half a second of 1 Mbit/s.
func (b *Conn) put(out []byte, slow bool) (int, error) {
	if slow && b.raw != nil {
		return b.raw.WriteRoom(out)
	}
	return b.io.Write(out)
}

// Close closes the socket, after what is buffered has been written or closeGrace has passed.
func (b *Conn) Close() error {
	b.mu.Lock()
	first := !b.closed
	if first {
		b.closed = true
		b.unacked.stop()
		if b.expiry != nil {
			b.expiry.Stop()
		}
		b.changed.Broadcast()
		b.mu.Unlock()
		_ = b.Conn.SetWriteDeadline(time.Now().Add(closeGrace)) // a WebSocket's waits for its writer
		b.mu.Lock()
	}
	for b.flushing {
		b.changed.Wait()
	}
	b.mu.Unlock()
	if !first {
		return net.ErrClosed
	}
	if b.onClose != nil {
		b.onClose()
	}
	return b.Conn.Close()
}

// SetDeadline sets both deadlines.
func (b *Conn) SetDeadline(t time.Time) error {
	if err := b.SetWriteDeadline(t); err != nil {
		return err
	}
	return b.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds Write's wait for space in the buffer. The socket itself has no deadline: bytes in the buffer
// stay in order.
func (b *Conn) SetWriteDeadline(t time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = t
	if b.expiry != nil {
		b.expiry.Stop()
		b.expiry = nil
	}
	if b.closed {
		return net.ErrClosed
	}
	if t.IsZero() {
		b.expired = false
		return nil
	}
	wait := time.Until(t)
	b.expired = wait <= 0
	if b.expired {
		b.changed.Broadcast()
		return nil
	}
	b.expiry = time.AfterFunc(wait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.deadline.Equal(t) {
			b.expired = true
			b.changed.Broadcast()
		}
	})
	return nil
}
