package tunnel

import (
	"bytes"
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// maxJoined bounds the packets of a super-segment that is made here: UDP_MAX_SEGMENTS
// of older kernels.
const maxJoined = 64

// coalescer joins the UDP packets of one flow that come one behind the other to
// super-segments: one Write, and one way through the kernel, for many packets.
type coalescer struct {
	join  bool // the device takes UDP super-segments
	buf   *packet
	n     int // bytes of virtio header and packet; 0: empty
	h     inet.Header
	count int
	seg   int  // payload of each packet but the last
	ended bool // nothing fits behind the last one
}

// add takes a packet that was admitted. If it cannot be joined to what is there,
// flush comes first.
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

// joinable reports whether a packet is plain: UDP right behind IP, and nothing
// behind the data.
func joinable(h *inet.Header, pkt []byte) bool {
	return h.Proto == inet.ProtoUDP && (h.Version == 4 && h.L4 == 20 || h.Version == 6 && h.L4 == 40) &&
		int(binary.BigEndian.Uint16(pkt[h.L4+4:])) == len(pkt)-h.L4
}

// fits reports whether pkt is the next one of the super-segment: all that a kernel
// which cuts it again takes from the first is the same.
func (c *coalescer) fits(h *inet.Header, pkt []byte, partial bool) bool {
	if c.ended || !partial || !joinable(h, pkt) || h.Version != c.h.Version || c.count == maxJoined {
		return false
	}
	n := len(pkt) - h.L4 - 8
	if n <= 0 || n > c.seg || c.n-virtio.HeaderLen+n > 65535 {
		return false
	}
	first := c.buf.buf[virtio.HeaderLen:c.n]
	if h.Version == 6 {
		return bytes.Equal(first[:4], pkt[:4]) && bytes.Equal(first[6:44], pkt[6:44])
	}
	// With "don't fragment" the identification means nothing (RFC 6864).
	const df = 0x40
	id := binary.BigEndian.Uint16(first[4:]) + uint16(c.count)
	return bytes.Equal(first[:2], pkt[:2]) && bytes.Equal(first[6:10], pkt[6:10]) && bytes.Equal(first[12:24], pkt[12:24]) &&
		(pkt[6]&df != 0 || binary.BigEndian.Uint16(pkt[4:]) == id)
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

// release gives the buffer back; it is empty.
func (c *coalescer) release(ps *pools) {
	if c.buf != nil {
		ps.put(c.buf)
		c.buf = nil
	}
}
