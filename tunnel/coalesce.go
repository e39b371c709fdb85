package tunnel

import (
	"bytes"
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// maxJoined bounds the packets of a super-segment made here: UDP_MAX_SEGMENTS of older kernels.
const maxJoined = 64

// coalescer joins consecutive UDP packets of one flow into super-segments: one Write, and one pass through the kernel, for
// many packets.
type coalescer struct {
	join  bool // the device takes UDP super-segments
	buf   *packet
	n     int // bytes of virtio header and packet; 0: empty
	h     inet.Header
	count int
	seg   int  // payload of each packet but the last
	ended bool // nothing may follow the last one
}

// add takes an admitted packet. If it cannot be joined to the packets before it, flush is called first.
func (c *coalescer) add(ps *pools, h *inet.Header, pkt []byte, partial bool, flush func()) {
	if c.n > 0 {
		if c.fits(h, pkt, partial) {
			payload := pkt[h.L4+8:]
			c.n += copy(c.buf.buf[c.n:], payload)
			c.count++
			c.ended = len(payload) < c.seg
			return
		}
		flush()
	}
	if c.buf == nil {
		c.buf = ps.get(fullLen)
	}
	v := virtio.Header{}
	if partial {
		v, _ = virtio.Partial(h)
	}
	v.Put(c.buf.buf)
	c.n = virtio.HeaderLen + copy(c.buf.buf[virtio.HeaderLen:], pkt)
	c.h, c.count, c.seg = *h, 1, 0
	c.ended = !c.join || !partial || !joinable(h, pkt)
	if !c.ended {
		c.seg = len(pkt) - h.L4 - 8
		c.ended = c.seg == 0
	}
}

// joinable reports whether a packet is UDP right behind IP, with nothing behind the data.
func joinable(h *inet.Header, pkt []byte) bool {
	return h.Proto == inet.ProtoUDP && h.Bare() && int(binary.BigEndian.Uint16(pkt[h.L4+4:])) == len(pkt)-h.L4
}

// fits reports whether pkt is the next packet of the super-segment.
func (c *coalescer) fits(h *inet.Header, pkt []byte, partial bool) bool {
	if c.ended || !partial || !joinable(h, pkt) || h.Version != c.h.Version || c.count == maxJoined {
		return false
	}
	n := len(pkt) - h.L4 - 8
	if n <= 0 || n > c.seg || c.n-virtio.HeaderLen+n > 65535 {
		return false
	}
	first := c.buf.buf[virtio.HeaderLen:c.n]
	return h.Joins(first, pkt, c.count) && bytes.Equal(first[h.L4:h.L4+4], pkt[h.L4:h.L4+4]) // ports
}

// frame returns what was joined, for one Write of the device; nil: nothing.
func (c *coalescer) frame() []byte {
	if c.n == 0 {
		return nil
	}
	b := c.buf.buf[:c.n]
	c.n = 0
	if c.count > 1 {
		virtio.Super(&c.h, c.seg).Put(b)
		c.h.SetLength(b[virtio.HeaderLen:])
	}
	return b
}

// headers is the length of a joined packet's headers, bytes.
func (c *coalescer) headers() int { return c.h.L4 + 8 }

// release returns the buffer, which is empty, to its pool.
func (c *coalescer) release(ps *pools) {
	if c.buf != nil {
		ps.put(c.buf)
		c.buf = nil
	}
}
