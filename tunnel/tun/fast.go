package tun

import (
	"cmp"
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
	fd := cfg.Held
	if fd != 0 && !holds(fd, cfg.Name) { // another program deleted the interface, or it is a portable one's
		drop(fd)
		fd = 0
	}
	if fd == 0 {
		var err error
		if fd, err = attach(cfg.Name); err != nil {
			return nil, err
		}
	}
	offloads, err := prepare(fd, cfg.Persist)
	if err != nil {
		drop(fd)
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

// attach returns a descriptor of the interface, which the kernel creates if there is none.
func attach(name string) (fd int, err error) {
	if fd, err = unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return 0, explain(err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = 0
		}
	}()
	features, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES)
	if err != nil {
		return fd, fmt.Errorf("%w: driver features: %w", errNoOffload, err)
	}
	if features&unix.IFF_VNET_HDR == 0 {
		return fd, fmt.Errorf("%w: driver features are %#x", errNoOffload, features)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fd, fmt.Errorf("interface name: %w", err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fd, fmt.Errorf("attach: %w", explain(err))
	}
	return fd, nil
}

// control calls f with the file's descriptor, whose mode File.Fd would change.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the descriptor: %w", err)
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) }) //nolint:gosec // a descriptor
	return cmp.Or(cerr, err)
}

// holds reports whether a descriptor is of a queue of the interface called name, with virtio-net headers.
func holds(fd int, name string) bool {
	ifr, err := unix.NewIfreq(name)
	return err == nil && unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr) == nil && ifr.Name() == name && ifr.Uint16()&unix.IFF_VNET_HDR != 0
}

// prepare sets what the frames of an attached descriptor are.
func prepare(fd int, lasting bool) (Offloads, error) {
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
	if lasting {
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

// Share implements Device.
func (d *fast) Share() (fd int, err error) {
	err = control(d.file, func(own int) (err error) {
		fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return fd, d.explain("share", err)
}

func (d *fast) Pause() error       { return d.file.SetReadDeadline(past) }
func (d *fast) Name() string       { return d.name }
func (d *fast) Kind() string       { return "fast" }
func (d *fast) Offloads() Offloads { return d.offloads }
func (d *fast) UDPSegments() bool  { return d.offloads&USO4 != 0 }
func (d *fast) Pending() bool      { return pending(d.file) }
