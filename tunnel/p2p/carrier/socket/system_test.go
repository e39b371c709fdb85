package socket

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/tcptest"
	"edgemesh/test/fair"
)

func TestFallbacks(t *testing.T) {
	full := system{congestion: []string{"cubic"}, udpBuffer: 64 << 10, cpus: 2}
	if got := full.fallbacks(); len(got) != 0 {
		t.Errorf("nothing lacks, and there is %+v", got)
	}
	for _, c := range []struct {
		name, what, effect string
		s                  system
	}{
		{"no BBR", "nosuch", `use "cubic" (nosuch: no such file or directory)`, system{[]string{"nosuch", "cubic"}, 1 << 16, false, 2}},
		{"neither", "nosuch", `(nosuch: no such file or directory)`, system{[]string{"nosuch", "nothing"}, 1 << 16, false, 2}},
		{"small buffers", "udp-buffers", "of 1073741824 bytes", system{[]string{"cubic"}, 1 << 30, false, 2}},
		{"one CPU", "cpus", "one CPU", system{[]string{"cubic"}, 1 << 16, false, 1}},
	} {
		got := c.s.fallbacks()
		if len(got) != 1 || got[0].What != c.what || !strings.Contains(got[0].Effect, c.effect) || got[0].Remedy == "" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// Without BBR, and where it is not permitted, a socket has cubic and works.
func TestCongestionFallsBack(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if err := setCongestion(int(fd), []string{"nosuch", "cubic"}); !errors.Is(err, unix.ENOENT) {
				t.Errorf("the error is %v", err)
			}
		})
	}}
	c, err := d.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); got != "cubic" {
			t.Errorf("congestion control is %q, %v", got, err)
		}
	})
	if tn := newTuner(c); tn.bbr {
		t.Error("the tuner takes it for BBR")
	}
	if _, err := c.Write([]byte("works")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got, err := io.ReadAll(far); string(got) != "works" {
		t.Errorf("%q, %v", got, err)
	}
	far.Close()
}

func TestEnlarge(t *testing.T) {
	err := probe(unix.SOCK_DGRAM, func(fd int) error {
		small, err := enlarge(fd, 1<<30, false)
		if err != nil {
			return err
		}
		if small >= 1<<30 || small < 1<<10 {
			t.Errorf("granted %d", small)
		}
		got, err := enlarge(fd, UDPBuffer, true) // these tests run as root
		if got < UDPBuffer {
			t.Errorf("forced to %d of %d: %v", got, UDPBuffer, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A carrier's socket holds what is repaired of long fast paths, more than the kernel gives by itself; not one with cubic, which
// would fill queues with it.
func TestSendBuffer(t *testing.T) {
	for _, cc := range []string{bbr, "cubic"} {
		err := probe(unix.SOCK_STREAM, func(fd int) error {
			if err := setCongestion(fd, []string{bbr}); err != nil {
				t.Skip("no BBR: ", err)
			}
			if err := setOptions(fd, "tcp", 0, false); err != nil {
				return err
			}
			if cc != bbr {
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<16); err != nil {
					return err
				}
				if err := setCongestion(fd, []string{cc}); err != nil {
					return err
				}
				holdRepairs(fd)
			}
			got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF) // these tests run as root
			if large := got == 2*sendBuffer; large != (cc == bbr) {
				t.Errorf("%s: %d bytes, with overhead", cc, got)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTunerLooksWhileAWriteWaits: also when the peer reads nothing for long, and no longer than the write lasts.
func TestTunerLooksWhileAWriteWaits(t *testing.T) {
	near, _ := tcptest.Pair(t)
	tn := newTuner(near)
	tn.bbr = true
	looked := func() time.Time {
		tn.mu.Lock()
		defer tn.mu.Unlock()
		return tn.looked
	}
	began := time.Now()
	tn.begin(64<<10, began)
	last, looks := began, 0
	fair.Eventually(t, 10*time.Second, "three looks", fair.True(func() bool {
		if at := looked(); at.After(last) {
			last, looks = at, looks+1
		}
		return looks >= 3
	}))
	tn.end(time.Now())
	last = looked()
	time.Sleep(5 * waitEvery) // sleep: it does not look meanwhile
	if at := looked(); at != last {
		t.Errorf("it looks after the write, %v later", at.Sub(last))
	}
}
