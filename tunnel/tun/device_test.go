package tun

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"edgemesh/tunnel/virtio"
	"edgemesh/tunnel/virtio/virtiotest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func kinds(t *testing.T, f func(t *testing.T, portable bool)) {
	for _, portable := range []bool{false, true} {
		name := "fast"
		if portable {
			name = "portable"
		}
		t.Run(name, func(t *testing.T) { f(t, portable) })
	}
}

func TestCloseUnblocksRead(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		dev := ns.open(t, Config{Name: "emtest0", Portable: portable})
		result := make(chan error)
		go func() {
			buf := make([]byte, virtio.MaxFrame)
			for { // the kernel's own router solicitations come first
				if _, err := dev.Read(buf); err != nil {
					result <- err
					return
				}
			}
		}()
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, os.ErrClosed) {
			t.Fatalf("Read = %v, want os.ErrClosed", err)
		}
		if err := dev.Write(virtiotest.Super{Payload: []byte{1}}.Plain()); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("Write = %v, want os.ErrClosed", err)
		}
	})
}

// Pending is true while a packet of the kernel waits to be read, and false of a device that is closed.
func TestPending(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		dev := ns.open(t, Config{Name: "emtest0", Portable: portable})
		ns.do(t, func() error { return address("emtest0", "10.9.0.1/24") })
		buf := make([]byte, virtio.MaxFrame)
		for dev.Pending() { // the kernel's own router solicitations
			if _, err := dev.Read(buf); err != nil {
				t.Fatal(err)
			}
		}
		ns.do(t, func() error {
			c, err := net.Dial("udp4", "10.9.0.2:9")
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("x"))
			return err
		})
		if !dev.Pending() {
			t.Error("a packet waits")
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		if dev.Pending() {
			t.Error("closed")
		}
	})
}

// What is sent between the last read of one device and the first of the next stays in the queue, in order, where the next has it already:
// shared by the device before, or held since that closed. A queue of an interface that is gone is of no use, and does no harm.
func TestPacketsBetweenDevices(t *testing.T) {
	ns := newNamespace(t)
	cfg := Config{Name: "emtest0", Persist: true}
	dev := ns.open(t, cfg)
	ns.do(t, func() error { return address("emtest0", "10.9.0.1/24") })
	if _, err := Hold("emtest0"); err == nil {
		t.Error("held while a device has it")
	}
	buf := make([]byte, virtio.MaxFrame)
	sent := byte(0)
	send := func() {
		sent++
		ns.do(t, func() error {
			c, err := net.Dial("udp4", "10.9.0.2:9")
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte{sent})
			return err
		})
	}
	reads := func(want ...byte) {
		t.Helper()
		for len(want) > 0 {
			n, err := dev.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if buf[virtio.HeaderLen]>>4 != 4 {
				continue // the kernel's own
			}
			if got := buf[n-1]; got != want[0] {
				t.Fatalf("read %d, want %v", got, want)
			}
			want = want[1:]
		}
	}
	take := func(held int, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Held = held
		dev = ns.open(t, cfg)
	}
	send()
	reads(1)
	held, err := dev.Share()
	if perr := dev.Pause(); perr != nil {
		t.Fatal(perr)
	}
	send()
	if _, err := dev.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("paused: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	send()
	take(held, err)
	reads(2, 3)

	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	ns.do(t, func() (err error) { held, err = Hold("emtest0"); return err })
	send()
	take(held, nil)
	reads(4)

	if held, err = dev.Share(); err != nil {
		t.Fatal(err)
	}
	ns.do(t, func() error { return Delete("emtest0") })
	_ = dev.Close()
	take(held, nil)
	ns.do(t, func() error { return address("emtest0", "10.9.0.1/24") })
	send()
	reads(5)
	ns.do(t, func() error {
		if _, err := Hold("emtest1"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("an interface that is not there: %v", err)
		}
		return nil
	})
}

func TestShortBuffersAndFrames(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		dev := newNamespace(t).open(t, Config{Name: "emtest0", Portable: portable})
		if _, err := dev.Read(make([]byte, virtio.MaxFrame-1)); !errors.Is(err, io.ErrShortBuffer) {
			t.Errorf("Read into a short buffer = %v", err)
		}
		for _, n := range []int{0, 1, virtio.HeaderLen} {
			if err := dev.Write(make([]byte, n)); !errors.Is(err, ErrFrame) {
				t.Errorf("Write of %d bytes = %v, want ErrFrame", n, err)
			}
		}
		bad := virtiotest.Super{Size: 1000, Payload: make([]byte, 3000)}.Frame()
		bad[6], bad[7] = 0xff, 0xff // the checksum starts behind the packet
		if err := dev.Write(bad); !errors.Is(err, ErrFrame) && !errors.Is(err, unix.EINVAL) {
			t.Errorf("Write of a bad frame = %v", err)
		}
		good := virtiotest.Super{Size: 1000, Payload: make([]byte, 3000)}.Frame()
		if err := dev.Write(good); err != nil {
			t.Errorf("Write after a bad frame = %v", err)
		}
	})
}

func TestLinkSettings(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		ns.open(t, Config{Name: "emtest0", MTU: 1399, TxQueueLen: 77, Portable: portable})
		ns.do(t, func() error {
			link, err := netlink.LinkByName("emtest0")
			if err != nil {
				return err
			}
			a := link.Attrs()
			if a.MTU != 1399 || a.TxQLen != 77 || a.Flags&net.FlagUp == 0 {
				t.Errorf("mtu %d, txqueuelen %d, %v; want 1399, 77, up", a.MTU, a.TxQLen, a.Flags)
			}
			return nil
		})
	})
}

// A persistent interface keeps its index, address and routes from one process to
// the next, whichever device each of them opens.
func TestPersistent(t *testing.T) {
	ns := newNamespace(t)
	cfg := Config{Name: "emtest0", MTU: 1500, Persist: true}
	index := -1
	for _, portable := range []bool{false, false, true, true, false} {
		cfg.Portable = portable
		dev := ns.open(t, cfg)
		if portable == (dev.Offloads() != 0) {
			t.Fatalf("portable %t has offloads %s", portable, dev.Offloads())
		}
		ns.do(t, func() error {
			link, err := netlink.LinkByName("emtest0")
			if err != nil {
				return err
			}
			if index < 0 {
				index = link.Attrs().Index
				return errors.Join(address("emtest0", "10.99.0.1/24"), address("emtest0", "fd99::1/64"))
			}
			if link.Attrs().Index != index {
				t.Errorf("index %d, want %d: it is another interface", link.Attrs().Index, index)
			}
			return nil
		})
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		ns.do(t, func() error {
			link, err := netlink.LinkByName("emtest0")
			if err != nil {
				return err
			}
			for family, want := range map[int]string{netlink.FAMILY_V4: "10.99.0.0/24", netlink.FAMILY_V6: "fd99::/64"} {
				routes, err := netlink.RouteList(link, family)
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst.String() == want }) {
					t.Errorf("routes after Close: %v, want %s among them", routes, want)
				}
			}
			return nil
		})
	}
	ns.do(t, func() error { return Delete("emtest0") })
	ns.do(t, func() error {
		if _, err := netlink.LinkByName("emtest0"); !errors.As(err, new(netlink.LinkNotFoundError)) {
			t.Errorf("after Delete: %v", err)
		}
		return Delete("emtest0")
	})
}

// Another program may have left the interface with headers of its own.
func TestTakesUpForeignHeaders(t *testing.T) {
	ns := newNamespace(t)
	cfg := Config{Name: "emtest0", Persist: true}
	size := func(dev Device, set int) (got int) {
		raw, err := dev.(*fast).file.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			if set != 0 {
				if err := unix.IoctlSetPointerInt(int(fd), unix.TUNSETVNETHDRSZ, set); err != nil {
					t.Error(err)
				}
			}
			v, err := unix.IoctlGetUint32(int(fd), unix.TUNGETVNETHDRSZ)
			if err != nil {
				t.Error(err)
			}
			got = int(v)
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	dev := ns.open(t, cfg)
	if got := size(dev, 12); got != 12 {
		t.Fatalf("header size %d, want 12 to begin with", got)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if got := size(ns.open(t, cfg), 0); got != virtio.HeaderLen {
		t.Errorf("header size %d, want %d", got, virtio.HeaderLen)
	}
}

func TestNotPersistent(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		// Also when an earlier process wanted it to persist.
		if err := ns.open(t, Config{Name: "emtest0", Persist: true}).Close(); err != nil {
			t.Fatal(err)
		}
		if err := ns.open(t, Config{Name: "emtest0", Portable: portable}).Close(); err != nil {
			t.Fatal(err)
		}
		ns.do(t, func() error {
			if _, err := netlink.LinkByName("emtest0"); !errors.As(err, new(netlink.LinkNotFoundError)) {
				t.Errorf("after Close: %v", err)
			}
			return nil
		})
	})
}

func multiQueue(t *testing.T, ns namespace) *netlink.Tuntap {
	t.Helper()
	mq := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: "emtest0"},
		Mode:      netlink.TUNTAP_MODE_TUN,
		Flags:     netlink.TUNTAP_MULTI_QUEUE | netlink.TUNTAP_NO_PI,
		Queues:    2,
	}
	ns.do(t, func() error { return netlink.LinkAdd(mq) })
	t.Cleanup(func() { closeAll(mq) })
	return mq
}

func closeAll(mq *netlink.Tuntap) {
	for _, f := range mq.Fds {
		_ = f.Close()
	}
}

func TestMultiQueueLeftover(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		mq := multiQueue(t, ns)
		ns.do(t, func() error {
			if _, err := Open(Config{Name: "emtest0", Portable: portable}); !errors.Is(err, ErrBusy) {
				t.Errorf("held by another: %v, want ErrBusy", err)
			}
			return nil
		})
		closeAll(mq)
		ns.open(t, Config{Name: "emtest0", Portable: portable})
	})
}

func TestOpenRefuses(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		ns.open(t, Config{Name: "held0"})
		ns.do(t, func() error {
			return errors.Join(
				netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge0"}}),
				netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP}),
			)
		})
		for name, want := range map[string]error{
			"held0": ErrBusy, "bridge0": ErrNotTUN, "tap0": ErrNotTUN, "": nil, "sixteen-bytes-00": nil,
		} {
			ns.do(t, func() error {
				dev, err := Open(Config{Name: name, Portable: portable})
				if err == nil {
					_ = dev.Close()
				}
				if err == nil || want != nil && !errors.Is(err, want) {
					t.Errorf("Open %q = %v, want %v", name, err, want)
				}
				if err != nil && !strings.HasPrefix(err.Error(), "open tun "+name) {
					t.Errorf("%q does not name the interface", err)
				}
				return nil
			})
		}
		ns.do(t, func() error {
			if err := Delete("bridge0"); !errors.Is(err, ErrNotTUN) {
				t.Errorf("Delete of a bridge = %v, want ErrNotTUN", err)
			}
			_, err := netlink.LinkByName("bridge0")
			return err
		})
	})
}

func TestNoDriver(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		ns.do(t, func() error {
			// The mount namespace is the thread's own, and ends with it.
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("none", "/dev/net", "tmpfs", 0, ""); err != nil {
				return err
			}
			if _, err := Open(Config{Name: "emtest0", Portable: portable}); !errors.Is(err, ErrNoDevice) {
				t.Errorf("Open = %v, want ErrNoDevice", err)
			}
			return nil
		})
	})
}

func TestNotPermitted(t *testing.T) {
	kinds(t, func(t *testing.T, portable bool) {
		ns := newNamespace(t)
		ns.do(t, func() error {
			// Raw: only this thread gives up root, and it ends with the function.
			const nobody = 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				return errno
			}
			if _, err := Open(Config{Name: "emtest0", Portable: portable}); !errors.Is(err, ErrPermission) {
				t.Errorf("Open = %v, want ErrPermission", err)
			}
			return nil
		})
	})
}

func TestOffloadSteps(t *testing.T) {
	const all = Checksum | TSO4 | TSO6 | TSOECN | USO4 | USO6
	for _, tt := range []struct {
		knows Offloads
		want  string
	}{
		{all, "csum,tso4,tso6,tso-ecn,uso4,uso6"},
		{all &^ (USO4 | USO6), "csum,tso4,tso6,tso-ecn"}, // before Linux 6.2
		{Checksum | TSO4 | TSO6, "csum,tso4,tso6"},
		{Checksum, "csum"},
	} {
		got, err := choose(func(o Offloads) error {
			if o&^tt.knows != 0 {
				return unix.EINVAL
			}
			return nil
		})
		if err != nil || got != tt.knows || got.String() != tt.want {
			t.Errorf("a kernel with %s gives %s, %v", tt.want, got, err)
		}
	}
	if got, err := choose(func(Offloads) error { return unix.ENOTTY }); !errors.Is(err, unix.ENOTTY) || got.String() != "none" {
		t.Errorf("a kernel without offloads gives %s, %v", got, err)
	}
}

func TestFallsBack(t *testing.T) {
	ns := newNamespace(t)
	var log bytes.Buffer
	refused := func(Config) (Device, error) { return nil, errNoOffload }
	ns.do(t, func() error {
		dev, err := open(Config{Name: "emtest0", Log: slog.New(slog.NewTextHandler(&log, nil))}, refused)
		if err != nil {
			return err
		}
		defer dev.Close()
		if dev.Kind() != "portable" {
			t.Errorf("opened %s, want portable", dev.Kind())
		}
		return nil
	})
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), errNoOffload.Error()) {
		t.Errorf("log: %q, want one line with the reason", log.String())
	}
}
