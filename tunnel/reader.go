package tunnel

import (
	"errors"
	"fmt"
	"io"

	"edgemesh/tunnel/virtio"
)

const (
	// readLen is the size of a busy stream's buffer: several super-segments per Read.
	readLen = 128 << 10
	// roomy is the free space from which on a Read is worthwhile without moving what is in the buffer.
	roomy = 16 << 10
)

// frameReader cuts a stream into frames in place. A stream that waits holds only a small buffer; a busy one borrows a big
// one.
type frameReader struct {
	r          io.Reader
	pools      *pools
	idle       [smallLen]byte
	big        *[]byte // nil while the small one is in use
	buf        []byte  // the one in use
	start, end int     // what was read and not yet returned
	last       int     // bytes of the last Read
	filled     bool    // it filled the buffer
	reads      int     // Reads that brought something
}

func newFrameReader(r io.Reader, ps *pools) *frameReader {
	f := &frameReader{r: r, pools: ps}
	f.buf = f.idle[:]
	return f
}

// next returns the next frame. The body is valid until the next call. Errors: io.EOF after a whole frame,
// io.ErrUnexpectedEOF within one, ErrMalformed for a length that no frame has, or the stream's own.
func (f *frameReader) next() (frameType, []byte, error) {
	for {
		if f.end-f.start >= frameHdrLen {
			t, n := frameHdr(f.buf[f.start:])
			if n > virtio.MaxFrame {
				return 0, nil, fmt.Errorf("frame of %d bytes: %w", n, ErrMalformed)
			}
			whole := frameHdrLen + n
			if f.end-f.start >= whole {
				body := f.buf[f.start+frameHdrLen : f.start+whole : f.start+whole]
				f.start += whole
				return t, body, nil
			}
			f.reserve(whole)
		} else {
			f.reserve(frameHdrLen)
		}
		n, err := f.r.Read(f.buf[f.end:])
		f.end += n
		if n > 0 {
			f.last, f.filled = n, f.end == len(f.buf)
			f.reads++
			continue
		}
		if errors.Is(err, io.EOF) && f.end > f.start {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, nil, err
		}
	}
}

// ready reports whether the next frame is here already.
func (f *frameReader) ready() bool {
	if f.end-f.start < frameHdrLen {
		return false
	}
	_, n := frameHdr(f.buf[f.start:])
	return n <= virtio.MaxFrame && f.end-f.start >= frameHdrLen+n
}

// rest is the buffer from the body that next returned last, n bytes long, to its
// end. It is valid until next has to read.
func (f *frameReader) rest(n int) []byte { return f.buf[f.start-n:] }

// reserve makes room for a Read that may complete a frame of n bytes.
func (f *frameReader) reserve(n int) {
	if f.start == f.end {
		f.start, f.end = 0, 0
		if f.last < smallLen {
			f.release()
		}
	}
	if f.big == nil && (n > len(f.buf) || f.filled) {
		f.big = f.pools.read.Get().(*[]byte)
		f.end = copy(*f.big, f.buf[f.start:f.end])
		f.buf, f.start = *f.big, 0
		return
	}
	if free := len(f.buf) - f.end; f.start+n > len(f.buf) || f.big != nil && free < roomy || free == 0 {
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
	}
}

// release gives the big buffer back; nothing is left in it.
func (f *frameReader) release() {
	if f.big != nil {
		f.pools.read.Put(f.big)
		f.big, f.buf = nil, f.idle[:]
	}
	f.start, f.end, f.filled = 0, 0, false
}
