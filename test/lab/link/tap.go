package link

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ringFrames is how many frames the kernel keeps for us while we are not
// scheduled: 200 ms of 500 Mbit/s.
const ringFrames = 8192

// tap is a TAP device that goes away with its descriptor.
type tap struct {
	name  string
	fd    int
	drops uint64 // the kernel's count when the tap was made
}

// openTAP makes a TAP in the thread's namespace. It has no virtio header and
// thereby no offloads.
func openTAP(name string, mtu int) (_ *tap, err error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("tap %q: %w", name, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("tap %s: open /dev/net/tun: %w", name, err)
	}
	t := &tap{name: name, fd: fd}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("tap %s: TUNSETIFF: %w", name, err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	if err := netlink.LinkSetTxQLen(l, ringFrames); err != nil {
		return nil, fmt.Errorf("tap %s: queue length: %w", name, err)
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		return nil, fmt.Errorf("tap %s: mtu %d: %w", name, mtu, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("tap %s: set up: %w", name, err)
	}
	t.drops, err = t.kernelDrops()
	return t, err
}

// kernelDrops returns how many frames the kernel had no room for.
func (t *tap) kernelDrops() (uint64, error) {
	l, err := netlink.LinkByName(t.name)
	if err != nil {
		return 0, fmt.Errorf("tap %s: %w", t.name, err)
	}
	if s := l.Attrs().Statistics; s != nil && s.TxDropped >= t.drops {
		return s.TxDropped - t.drops, nil
	}
	return 0, nil
}

// read returns 0 when nothing is there.
func (t *tap) read(b []byte) (int, error) {
	for {
		n, err := unix.Read(t.fd, b)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		default:
			return 0, fmt.Errorf("tap %s: read: %w", t.name, err)
		}
	}
}

// write says whether the kernel took the frame: it does not while the device is
// down.
func (t *tap) write(b []byte) bool {
	for {
		_, err := unix.Write(t.fd, b)
		if err != unix.EINTR {
			return err == nil
		}
	}
}

func (t *tap) close() { _ = unix.Close(t.fd) }
