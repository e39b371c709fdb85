package tunnel

import "sync"

const (
	// smallLen holds a packet of the usual MTU with its headers.
	smallLen = 2048
	// fullLen holds any frame.
	fullLen = (maxFrameLen + 4095) &^ 4095
)

// packet is one frame on its way from the device to a carrier. It is pooled.
type packet struct {
	buf  []byte // whole capacity of its size class
	n    int    // bytes of the frame: header, virtio header, packet
	flow uint32
	at   int64   // when it was queued, nanoseconds of the tunnel's clock
	next *packet // in a queue or a chain
}

// frame is the packet as it goes on the wire.
func (p *packet) frame() []byte { return p.buf[:p.n] }

// ip is the IP packet alone.
func (p *packet) ip() []byte { return p.buf[frameHdrLen+VnetHdrLen : p.n] }

// charge is the memory a packet holds, whatever its length.
func (p *packet) charge() int { return len(p.buf) }

// pools keeps packets of two sizes and the buffers of readers and writers.
type pools struct {
	small, full sync.Pool // *packet
	read        sync.Pool // *[]byte of readLen
	batch       sync.Pool // *[]byte of batchLen
}

func newPools() *pools {
	return &pools{
		small: sync.Pool{New: func() any { return &packet{buf: make([]byte, smallLen)} }},
		full:  sync.Pool{New: func() any { return &packet{buf: make([]byte, fullLen)} }},
		read:  sync.Pool{New: func() any { b := make([]byte, readLen); return &b }},
		batch: sync.Pool{New: func() any { b := make([]byte, 0, batchLen); return &b }},
	}
}

func (ps *pools) getSmall() *packet { return ps.small.Get().(*packet) }
func (ps *pools) getFull() *packet  { return ps.full.Get().(*packet) }

func (ps *pools) put(p *packet) {
	p.next = nil
	if len(p.buf) == smallLen {
		ps.small.Put(p)
	} else {
		ps.full.Put(p)
	}
}
