// Package tunneltest has fakes of what a tunnel stands between: a device, and an
// underlay that joins several tunnels of one process over paths that can be
// stalled and killed. It also builds packets.
package tunneltest

import (
	"os"
	"sync"
	"sync/atomic"

	"edgemesh/tunnel"
	"edgemesh/tunnel/virtio"
)

// Device is a tunnel.Device in memory.
type Device struct {
	in   chan []byte
	done chan struct{}
	once sync.Once
	sink func(frame []byte) error
	wait atomic.Int32 // frames that wait to be read
	// Segments is what UDPSegments says; set it before the tunnel is made.
	Segments bool
}

var _ tunnel.Device = (*Device)(nil)

// NewDevice makes a device; sink gets every frame written to it, header
// included, valid during the call only. It may be called concurrently.
func NewDevice(sink func(frame []byte) error) *Device {
	return &Device{in: make(chan []byte), done: make(chan struct{}), sink: sink}
}

// Inject makes Read return packet behind an all-zero virtio header. It returns
// once the packet is taken, or false when the device was closed.
func (d *Device) Inject(packet []byte) bool {
	return d.InjectFrame(append(make([]byte, virtio.HeaderLen), packet...))
}

// InjectFrame is Inject with a virtio header of the caller's.
func (d *Device) InjectFrame(frame []byte) bool {
	d.wait.Add(1)
	defer d.wait.Add(-1)
	select {
	case d.in <- frame:
		return true
	case <-d.done:
		return false
	}
}

// Read implements tunnel.Device.
func (d *Device) Read(buf []byte) (int, error) {
	select {
	case b := <-d.in:
		return copy(buf, b), nil
	case <-d.done:
		return 0, os.ErrClosed
	}
}

// Write implements tunnel.Device.
func (d *Device) Write(buf []byte) error {
	select {
	case <-d.done:
		return os.ErrClosed
	default:
		return d.sink(buf)
	}
}

// UDPSegments implements tunnel.Device.
func (d *Device) UDPSegments() bool { return d.Segments }

// Pending implements tunnel.Device.
func (d *Device) Pending() bool { return d.wait.Load() > 0 }

// Close implements tunnel.Device.
func (d *Device) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}
