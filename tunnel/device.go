package tunnel

// Device is a TUN interface. Every packet, in both directions, is preceded by a
// struct virtio_net_hdr of VnetHdrLen bytes in little-endian order
// (linux/virtio_net.h), whatever the device behind it can do: a device without
// offloads reads packets with an all-zero header and, on Write, segments
// super-segments and completes checksums itself.
type Device interface {
	// Read fills buf with one header and one packet and returns their total
	// length. buf must hold MaxFrame bytes. It blocks; Close unblocks it with
	// os.ErrClosed.
	Read(buf []byte) (int, error)
	// Write hands one header and one packet to the kernel. The caller has
	// validated the header. buf may be changed by Write, but is not kept. It is
	// called from many goroutines.
	Write(buf []byte) error
	Close() error
}

const (
	// VnetHdrLen is the size of struct virtio_net_hdr without num_buffers.
	VnetHdrLen = 10
	// MaxPacket is the largest IP packet: 65535 bytes, IPv4 total length or
	// IPv6 payload length plus header (a super-segment stays below).
	MaxPacket = 65535 + 40
	// MaxFrame is the most a Device reads or writes at once.
	MaxFrame = VnetHdrLen + MaxPacket
)
