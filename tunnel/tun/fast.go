package tun

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"edgemesh/internal/rawio"
	"edgemesh/tunnel/virtio"
)

const clonePath = "/dev/net/tun"

// fast is a TUN with virtio-net headers: frames pass as they are.
type fast struct {
	file     *os.File
	io       *rawio.Conn // on file
	closed   atomic.Bool
	name     string
	offloads Offloads
}

var _ Device = (*fast)(nil)

func openFast(cfg Config) (Device, error) {
	fd, err := unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, explain(err)
	}
	offloads, err := attach(fd, cfg)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	// Only now, because the poller ignores a TUN without an interface.
	file := os.NewFile(uintptr(fd), cfg.Name)
	raw, err := rawio.New(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("poll: %w", err)
	}
	return &fast{file: file, io: raw, name: cfg.Name, offloads: offloads}, nil
}

// Available reports whether this process could open a TUN; it creates none. The error is ErrNoDevice, ErrPermission or the
// kernel's.
func Available() error {
	fd, err := unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return explain(err)
	}
	return unix.Close(fd)
}

// attach attaches fd to the interface, which the kernel creates if there is none.
func attach(fd int, cfg Config) (Offloads, error) {
	features, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES)
	if err != nil {
		return 0, fmt.Errorf("%w: driver features: %w", errNoOffload, err)
	}
	if features&unix.IFF_VNET_HDR == 0 {
		return 0, fmt.Errorf("%w: driver features are %#x", errNoOffload, features)
	}
	ifr, err := unix.NewIfreq(cfg.Name)
	if err != nil {
		return 0, fmt.Errorf("interface name: %w", err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return 0, fmt.Errorf("attach: %w", explain(err))
	}
	// A persistent interface may have kept another size or byte order.
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, virtio.HeaderLen); err != nil {
		return 0, fmt.Errorf("%w: set its size: %w", errNoOffload, err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return 0, fmt.Errorf("%w: set its byte order: %w", errNoOffload, err)
	}
	offloads, err := choose(func(o Offloads) error { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(o)) })
	if err != nil {
		return 0, fmt.Errorf("%w: set offloads: %w", errNoOffload, err)
	}
	persist := 0
	if cfg.Persist {
		persist = 1
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, persist); err != nil {
		return 0, fmt.Errorf("set persist %d: %w", persist, explain(err))
	}
	return offloads, nil
}

func (d *fast) Read(buf []byte) (int, error) {
	if len(buf) < virtio.MaxFrame {
		return 0, io.ErrShortBuffer // the kernel would cut the packet silently
	}
	n, err := d.io.Read(buf)
	return n, d.explain("read", err)
}

// explain makes an error one of a file, with its name.
func (d *fast) explain(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case d.closed.Load():
		err = os.ErrClosed
	}
	return &os.PathError{Op: op, Path: d.name, Err: err}
}

func (d *fast) Write(buf []byte) error {
	if len(buf) <= virtio.HeaderLen {
		return ErrFrame
	}
	// A kernel without USO does not take UDP super-segments.
	if virtio.Get(buf).GSOType == virtio.GSOUDP && !d.UDPSegments() {
		return writeSegments(d.file, buf, 0)
	}
	_, err := d.io.Write(buf)
	return d.explain("write", err)
}

func (d *fast) Close() error {
	d.closed.Store(true)
	return d.file.Close()
}

func (d *fast) Name() string       { return d.name }
func (d *fast) Kind() string       { return "fast" }
func (d *fast) Offloads() Offloads { return d.offloads }
func (d *fast) UDPSegments() bool  { return d.offloads&USO4 != 0 }
func (d *fast) Pending() bool      { return pending(d.file) }
