package tunnel

// Device is a TUN interface. Every packet, in both directions, is preceded by a virtio.Header in little-endian order
// (linux/virtio_net.h), whatever the device behind it can do: a device without offloads reads packets with an all-zero
// header and, on Write, cuts super-segments and completes checksums itself.
type Device interface {
	// Read fills buf with one header and one packet and returns their total length. buf must hold virtio.MaxFrame
	// bytes. It blocks; Close unblocks it with os.ErrClosed.
	Read(buf []byte) (int, error)
	// Write hands one header and one packet to the kernel. The caller has validated the header. buf may be changed by
	// Write, but is not kept. It is called from many goroutines.
	Write(buf []byte) error
	// UDPSegments reports whether Write takes UDP super-segments at no more cost than a packet: only then are
	// datagrams joined to some.
	UDPSegments() bool
	// Pending reports whether Read has something to return without waiting.
	Pending() bool
	Close() error
}
