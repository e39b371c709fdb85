// # The wire
//
// A carrier is a sequence of frames. Integers of a frame are big-endian; the virtio header stays as the kernel has it,
// little-endian.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	|     type      |           length of the body, bytes           |
//	+---------------+-----------------------------------------------+
//	|                             body …                            |
//
// HELLO (1) is the first frame of a carrier, and only that:
//
//	+---------------+---------------+-------------------------------+
//	|  version (1)  |     lane      |         reserved (0)          |
//	+---------------+---------------+-------------------------------+
//	|             nonce of the sending process (8 bytes)            |
//	+---------------------------------------------------------------+
//	|                epoch of this carrier (8 bytes)                |
//	+---------------------------------------------------------------+
//	|  epoch of the carrier before it, 0 when there was none (8)    |
//	+---------------------------------------------------------------+
//
// PACKET (2) is one struct virtio_net_hdr (10 bytes, without num_buffers) and one IP packet, which may be a super-segment
// of up to 64 KiB.
//
// MARK (3), empty body, is the last frame of a carrier that another one follows.
//
// A longer HELLO body is accepted, so that fields can be added. Frames of an unknown type are malformed.
//
// Beside a carrier, where its path takes them, go datagrams, each a packet or half of one:
//
//	+------+----------------------------+
//	| kind |          IP packet         |
//	+------+--------------+-------------+
//	| kind |   id (2)     | half of one |
//	+------+--------------+-------------+
//
// Kind is a set of bits: 1 when the transport checksum is partial (NEEDS_CSUM of the virtio header, whose other fields
// follow from that), 2 in the first half of a packet, 4 in the second. Halves of one id belong together. A super-segment is
// cut: a datagram never is one.
package tunnel

import (
	"encoding/binary"
	"fmt"

	"edgemesh/tunnel/epoch"
	"edgemesh/tunnel/virtio"
)

type frameType uint8

const (
	frameHello  frameType = 1
	framePacket frameType = 2
	frameMark   frameType = 3
)

const (
	frameHdrLen  = 4
	helloLen     = 28
	helloMax     = 1024 // room for later fields
	frameVersion = 1
	// maxFrameLen is the longest frame on the wire, header included.
	maxFrameLen = frameHdrLen + virtio.MaxFrame
	// minPacketBody is a virtio header and the shortest IP header.
	minPacketBody = virtio.HeaderLen + 20
)

// putFrameHdr writes the header of a frame with n bytes of body.
func putFrameHdr(b []byte, t frameType, n int) {
	binary.BigEndian.PutUint32(b, uint32(t)<<24|uint32(n))
}

// frameHdr reads a header; b holds frameHdrLen bytes.
func frameHdr(b []byte) (t frameType, n int) {
	v := binary.BigEndian.Uint32(b)
	return frameType(v >> 24), int(v & 0xffffff)
}

// hello introduces a carrier to the receiver.
type hello struct {
	lane    Lane
	carrier epoch.Carrier
}

// appendHello appends the whole frame.
func appendHello(b []byte, h hello) []byte {
	b = append(b, byte(frameHello), 0, 0, helloLen, frameVersion, byte(h.lane), 0, 0)
	b = binary.BigEndian.AppendUint64(b, h.carrier.Nonce)
	b = binary.BigEndian.AppendUint64(b, h.carrier.Epoch)
	return binary.BigEndian.AppendUint64(b, h.carrier.After)
}

// parseHello reads a HELLO's body. The error is ErrVersion or ErrMalformed.
func parseHello(b []byte) (hello, error) {
	if len(b) < 1 {
		return hello{}, fmt.Errorf("empty hello: %w", ErrMalformed)
	}
	if b[0] != frameVersion {
		return hello{}, fmt.Errorf("version %d: %w", b[0], ErrVersion)
	}
	if len(b) < helloLen {
		return hello{}, fmt.Errorf("hello of %d bytes: %w", len(b), ErrMalformed)
	}
	c := epoch.Carrier{
		Nonce: binary.BigEndian.Uint64(b[4:]),
		Epoch: binary.BigEndian.Uint64(b[12:]),
		After: binary.BigEndian.Uint64(b[20:]),
	}
	if c.Epoch == 0 || c.After >= c.Epoch {
		return hello{}, fmt.Errorf("hello with epoch %d after %d: %w", c.Epoch, c.After, ErrMalformed)
	}
	return hello{Lane(b[1]), c}, nil
}
