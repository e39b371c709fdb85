package tunnel

import (
	"sync"

	"edgemesh/tunnel/virtio"
)

const (
	// smallLen holds a packet of the usual MTU with its headers.
	smallLen = 2048
	// mediumLen and largeLen hold the super-segments of slow flows, about a millisecond of their rate each, without the
	// memory of the longest.
	mediumLen = 8 << 10
	largeLen  = 24 << 10
	// fullLen holds any frame.
	fullLen = (maxFrameLen + 4095) &^ 4095
)

// packet is one frame between the device and a carrier. It is pooled.
type packet struct {
	buf  []byte // whole capacity of its size class
	n    int    // bytes of the frame: header, virtio header, packet
	flow uint32
	seq  uint32 // of TCP, the sequence number of the first byte
	data int    // of TCP, bytes of payload; 0: there are none

	again bool    // TCP data sent again, or out of order, while others of its flow wait
	at    int64   // when it was queued, nanoseconds of the tunnel's clock
	next  *packet // in a queue or a chain
	by    *Pulled // which has taken it
}

// frame is the packet as it is on the wire.
func (p *packet) frame() []byte { return p.buf[:p.n] }

// ip is the IP packet alone.
func (p *packet) ip() []byte { return p.buf[frameHdrLen+virtio.HeaderLen : p.n] }

// charge is the memory a packet holds, whatever its length.
func (p *packet) charge() int { return len(p.buf) }

// pools keeps packets of several sizes and the buffers of readers and writers.
type pools struct {
	small, medium, large, full sync.Pool // *packet
	read                       sync.Pool // *[]byte of readLen
	batch                      sync.Pool // *[]byte of batchLen
}

func newPools() *pools {
	packets := func(size int) sync.Pool {
		return sync.Pool{New: func() any { return &packet{buf: make([]byte, size)} }}
	}
	return &pools{
		small:  packets(smallLen),
		medium: packets(mediumLen),
		large:  packets(largeLen),
		full:   packets(fullLen),
		read:   sync.Pool{New: func() any { b := make([]byte, readLen); return &b }},
		batch:  sync.Pool{New: func() any { b := make([]byte, 0, batchLen); return &b }},
	}
}

// get returns the smallest packet that holds n bytes.
func (ps *pools) get(n int) *packet { return ps.of(n).Get().(*packet) }

func (ps *pools) of(n int) *sync.Pool {
	switch {
	case n <= smallLen:
		return &ps.small
	case n <= mediumLen:
		return &ps.medium
	case n <= largeLen:
		return &ps.large
	}
	return &ps.full
}

func (ps *pools) put(p *packet) {
	p.next = nil
	ps.of(len(p.buf)).Put(p)
}
