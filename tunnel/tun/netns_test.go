package tun

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"edgemesh/internal/nstest"
	"edgemesh/tunnel/virtio"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// namespace is a network namespace without a name: it is gone when its last
// descriptor is, however the test ends.
type namespace struct{ fd nstest.Namespace }

func newNamespace(tb testing.TB) namespace {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("SKIPPED: network namespaces need root")
	}
	var ns namespace
	var err error
	onThread(func() {
		if ns.fd, err = nstest.New(); err != nil {
			return
		}
		var lo netlink.Link
		if lo, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(lo)
		}
	})
	if err != nil {
		tb.Fatalf("make a network namespace: %v", err)
	}
	tb.Cleanup(func() { _ = ns.fd.Close() })
	return ns
}

// onThread runs f on an OS thread that ends with it, so that f may change the
// thread as it likes.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// do runs f inside the namespace.
func (ns namespace) do(tb testing.TB, f func() error) {
	tb.Helper()
	var err error
	onThread(func() {
		if err = ns.fd.Set(); err == nil {
			err = f()
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// open opens a device in the namespace and closes it at the end of the test.
func (ns namespace) open(tb testing.TB, cfg Config) Device {
	tb.Helper()
	var dev Device
	ns.do(tb, func() (err error) {
		dev, err = Open(cfg)
		return err
	})
	tb.Cleanup(func() { _ = dev.Close() })
	return dev
}

// address adds an address that can be used immediately.
func address(name, cidr string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	addr.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(link, addr)
}

// side is one end of a pair: a namespace, its device and its addresses.
type side struct {
	namespace
	dev    Device
	v4, v6 net.IP
}

func (s side) ip(family string) net.IP {
	if family == "ipv6" {
		return s.v6
	}
	return s.v4
}

// seen is what a pump carried.
type seen struct {
	mu      sync.Mutex
	longest int          // bytes, with the header
	types   map[byte]int // frames by gso_type, without the ECN bit
	errs    []error      // of Write
}

func (s *seen) frame(f []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, len(f))
	s.types[f[1]&^unix.VIRTIO_NET_HDR_GSO_ECN]++
}

func (s *seen) longestFrame() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

func (s *seen) count(gsoType byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.types[gsoType]
}

const pairMTU = 1500

// openKind opens a device: "fast", "portable", or "no-uso", a fast one on a kernel
// that takes no USO frames.
func (ns namespace) openKind(tb testing.TB, kind string) Device {
	cfg := Config{Name: "emtest0", MTU: pairMTU, Portable: kind == "portable"}
	if kind == "portable" {
		// It must cope with what a fast device has left behind.
		if err := ns.open(tb, Config{Name: "emtest0", Persist: true}).Close(); err != nil {
			tb.Fatal(err)
		}
	}
	dev := ns.open(tb, cfg)
	if kind == "portable" {
		if dev.Kind() != kind || dev.Offloads() != 0 {
			tb.Fatalf("opened %s with offloads %s, want portable without", dev.Kind(), dev.Offloads())
		}
		return dev
	}
	f, ok := dev.(*fast)
	if !ok {
		tb.Fatalf("opened %s, want fast", dev.Kind())
	}
	if kind == "no-uso" {
		f.offloads &^= USO4 | USO6
	}
	return dev
}

// newPair joins two namespaces by their devices. The pump runs until the test ends.
func newPair(tb testing.TB, leftKind, rightKind string) (left, right side, toRight, toLeft *seen) {
	tb.Helper()
	sides := [2]side{
		{namespace: newNamespace(tb), v4: net.IPv4(10, 99, 0, 1), v6: net.ParseIP("fd99::1")},
		{namespace: newNamespace(tb), v4: net.IPv4(10, 99, 0, 2), v6: net.ParseIP("fd99::2")},
	}
	for i, kind := range [2]string{leftKind, rightKind} {
		s := &sides[i]
		s.dev = s.openKind(tb, kind)
		s.do(tb, func() error {
			return errors.Join(address("emtest0", s.v4.String()+"/24"), address("emtest0", s.v6.String()+"/64"))
		})
	}
	left, right = sides[0], sides[1]
	toRight, toLeft = &seen{types: map[byte]int{}}, &seen{types: map[byte]int{}}
	var wg sync.WaitGroup
	wg.Go(func() { pump(left.dev, right.dev, toRight) })
	wg.Go(func() { pump(right.dev, left.dev, toLeft) })
	tb.Cleanup(func() {
		_, _ = left.dev.Close(), right.dev.Close()
		wg.Wait()
		for _, s := range []*seen{toRight, toLeft} {
			if len(s.errs) > 0 {
				tb.Errorf("pump: %v", errors.Join(s.errs...))
			}
		}
	})
	left.reach(tb, right)
	return left, right, toRight, toLeft
}

// reach waits until packets pass in both directions: a new interface takes IPv6 up a moment
// after its address is there. The answer to expect is that nobody listens.
func (s side) reach(tb testing.TB, to side) {
	tb.Helper()
	for _, ip := range []net.IP{to.v4, to.v6} {
		s.do(tb, func() error {
			d := net.Dialer{Timeout: patience}
			c, err := d.Dial("tcp", net.JoinHostPort(ip.String(), "9"))
			if err == nil {
				_ = c.Close()
			} else if !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("reach the other side: %w", err)
			}
			return nil
		})
	}
}

func pump(from, to Device, s *seen) {
	buf := make([]byte, virtio.MaxFrame)
	for {
		copy(buf, "what a longer frame has left")
		n, err := from.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				s.errs = append(s.errs, fmt.Errorf("read: %w", err))
			}
			return
		}
		s.frame(buf[:n])
		if err := to.Write(buf[:n]); err != nil && !errors.Is(err, os.ErrClosed) {
			s.errs = append(s.errs, fmt.Errorf("write a frame of %d bytes, type %d: %w", n, buf[1], err))
		}
	}
}
