// Package tun opens the TUN interface of the tunnel.
//
// Two devices do the same work behind one interface. The fast one requests virtio-net headers of the kernel and offloads
// (linux/if_tun.h, linux/virtio_net.h): one read returns a whole TCP or UDP super-segment of up to 64 KiB, its checksum
// partial, and one write takes it back. The portable one, by songgao/water, sees plain packets only; its reads carry a
// zero header, and its writes cut super-segments and complete checksums in user space. Either end of the tunnel may have
// either device.
//
//	device.go    the interface, and the choice between the two
//	fast.go      the kernel's offloads
//	offload.go   which of them this kernel has
//	portable.go  none of them
//	errors.go    what an operator can do about it
package tun

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// defaultTxQueueLen is how many packets the kernel holds until they are read (a super-segment is one). It is generous,
// because queues are managed behind the reader.
const defaultTxQueueLen = 1000

// Device is an open TUN interface. Frames are a struct virtio_net_hdr of 10
// bytes, little-endian, and one IP packet.
type Device interface {
	// Read fills buf, of at least virtio.MaxFrame bytes, with one frame and returns its length. It blocks; Close
	// unblocks it with os.ErrClosed. If another program deletes the interface, the error is unix.EBADFD.
	Read(buf []byte) (int, error)
	// Write gives one frame to the kernel. It may change buf, and may be called from many goroutines. The error is
	// ErrFrame if the frame contradicts itself, unix.EINVAL if the kernel refuses it, and unix.EIO if the interface is
	// down. The device still works afterwards.
	Write(buf []byte) error
	Close() error
	// Name is the interface's name.
	Name() string
	// Kind is "fast" or "portable".
	Kind() string
	// Offloads are the kinds of frame that Read can return.
	Offloads() Offloads
	// UDPSegments reports whether the kernel takes UDP super-segments from Write; otherwise they are cut here.
	UDPSegments() bool
	// Pending reports whether a frame waits to be read.
	Pending() bool
	// Pause ends Read, also one that waits, with os.ErrDeadlineExceeded from now on; Write works.
	Pause() error
	// Share returns one more descriptor of the same queue: the kernel keeps what nobody reads until that is closed, too.
	Share() (fd int, err error)
}

// Config says which interface to open, and how.
type Config struct {
	Name       string // at most 15 bytes
	MTU        int    // bytes; 0 = leave as it is
	TxQueueLen int    // packets; 0 = 1000
	Persist    bool   // the interface outlives the process, and the next one uses it
	Portable   bool   // do not try the fast device
	Held       int    // the descriptor that Hold or Share returned; 0: none. Open closes it or makes it the device's
	Log        *slog.Logger
}

// Open creates the interface, or attaches to a persistent one with the addresses and routes it has, and sets it up. It
// prefers the fast device. Expect the errors ErrNoDevice, ErrPermission, ErrBusy and ErrNotTUN.
func Open(cfg Config) (Device, error) {
	dev, err := open(cfg, openFast)
	if err != nil {
		return nil, fmt.Errorf("open tun %s: %w", cfg.Name, err)
	}
	if err := setLink(cfg); err != nil {
		_ = dev.Close()
		return nil, fmt.Errorf("open tun %s: %w", cfg.Name, err)
	}
	return dev, nil
}

// open opens the device that fastest does, unless the portable one is configured or the kernel has no offloads.
func open(cfg Config, fastest func(Config) (Device, error)) (Device, error) {
	if cfg.Name == "" || len(cfg.Name) >= unix.IFNAMSIZ {
		drop(cfg.Held)
		return nil, fmt.Errorf("an interface name has 1 to %d bytes", unix.IFNAMSIZ-1)
	}
	if err := removeMultiQueue(cfg.Name); err != nil {
		drop(cfg.Held)
		return nil, err
	}
	if cfg.Portable {
		drop(cfg.Held)
		return openPortable(cfg)
	}
	dev, err := fastest(cfg)
	if errors.Is(err, errNoOffload) {
		if cfg.Log != nil {
			cfg.Log.Warn("the TUN has no offloads: several times the CPU for the same traffic", "name", cfg.Name, "reason", err)
		}
		return openPortable(cfg)
	}
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// Hold attaches a descriptor to the interface called name, so that the kernel keeps its packets until Open reads them. The error is
// ErrBusy while another process has it, errors.ErrUnsupported if there is none that the fast device takes.
func Hold(name string) (fd int, err error) {
	tt, err := lookup(name)
	if err != nil || tt == nil || tt.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
		return 0, cmp.Or(err, errors.ErrUnsupported)
	}
	return attach(name)
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// drop closes a descriptor that is of no use; 0 is none.
func drop(fd int) {
	if fd != 0 {
		_ = unix.Close(fd)
	}
}

// lookup returns the TUN called name, nil if there is no such interface, and
// ErrNotTUN if it is of another kind.
func lookup(name string) (*netlink.Tuntap, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the interface: %w", err)
	}
	tt, ok := link.(*netlink.Tuntap)
	if !ok || tt.Mode == netlink.TUNTAP_MODE_TAP {
		return nil, ErrNotTUN
	}
	return tt, nil
}

func setLink(cfg Config) error {
	link, err := netlink.LinkByName(cfg.Name)
	if err != nil {
		return fmt.Errorf("look up the interface: %w", err)
	}
	if cfg.MTU != 0 && link.Attrs().MTU != cfg.MTU {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return fmt.Errorf("set mtu %d: %w", cfg.MTU, err)
		}
	}
	qlen := cfg.TxQueueLen
	if qlen == 0 {
		qlen = defaultTxQueueLen
	}
	if link.Attrs().TxQLen != qlen {
		if err := netlink.LinkSetTxQLen(link, qlen); err != nil {
			return fmt.Errorf("set txqueuelen %d: %w", qlen, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the interface up: %w", err)
	}
	return nil
}

// removeMultiQueue deletes a persistent interface with several queues, as older agents left it: attaching to it would fail
// with EINVAL. If a process holds it, the error is ErrBusy.
func removeMultiQueue(name string) error {
	tt, err := lookup(name)
	if err != nil || tt == nil || tt.Flags&netlink.TUNTAP_MULTI_QUEUE == 0 {
		return err
	}
	if tt.Queues+tt.DisabledQueues > 0 {
		return ErrBusy
	}
	return Delete(name)
}

// Delete removes the TUN called name, persistent or not. It returns nil if there is none, and ErrNotTUN if the interface is
// of another kind, which it leaves alone.
func Delete(name string) error {
	tt, err := lookup(name)
	if err != nil {
		return fmt.Errorf("delete tun %s: %w", name, err)
	}
	if tt == nil {
		return nil
	}
	if err := netlink.LinkDel(tt); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete tun %s: %w", name, explain(err))
	}
	return nil
}

// pending reports whether something of f can be read now.
func pending(f *os.File) (ready bool) {
	err := control(f, func(fd int) error {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		n, err := unix.Poll(polled, 0)
		ready = err == nil && n == 1 && polled[0].Revents&unix.POLLIN != 0
		return err
	})
	return ready && err == nil
}

// explain puts the remedy before an error of the driver, which stays wrapped.
func explain(err error) error {
	var remedy error
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		remedy = ErrNoDevice
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		remedy = ErrPermission
	case errors.Is(err, unix.EBUSY):
		remedy = ErrBusy
	default:
		return err
	}
	return fmt.Errorf("%w (%w)", remedy, err)
}
