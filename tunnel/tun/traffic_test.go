package tun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/tunnel/virtio"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const patience = 60 * time.Second // for a condition that is met in milliseconds

// counter reads one counter of /proc/net/snmp in the namespace.
func (ns namespace) counter(tb testing.TB, group, name string) (value int) {
	tb.Helper()
	ns.do(tb, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if fields[0] != group+":" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			for i, n := range names {
				if n == name {
					value, err = strconv.Atoi(fields[i])
					return err
				}
			}
		}
		return fmt.Errorf("no counter %s %s", group, name)
	})
	return value
}

func (s side) listen(tb testing.TB, family string) net.Listener {
	tb.Helper()
	var l net.Listener
	s.do(tb, func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: s.ip(family)})
		return err
	})
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

func (s side) dial(tb testing.TB, addr net.Addr) net.Conn {
	tb.Helper()
	var c net.Conn
	s.do(tb, func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err = new(net.Dialer).DialContext(ctx, addr.Network(), addr.String())
		return err
	})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// bulk sends data from one side to the other over TCP and compares what arrives.
func bulk(from, to side, family string, tb testing.TB, data []byte) {
	tb.Helper()
	l := to.listen(tb, family)
	got := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		h := sha256.New()
		n, err := io.Copy(h, c)
		if err == nil && (n != int64(len(data)) || [32]byte(h.Sum(nil)) != sha256.Sum256(data)) {
			err = fmt.Errorf("received %d bytes that differ from the %d sent", n, len(data))
		}
		got <- err
	}()
	c := from.dial(tb, l.Addr())
	_ = c.SetDeadline(time.Now().Add(patience))
	_, werr := c.Write(data)
	cerr := c.(*net.TCPConn).CloseWrite()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	if err := errors.Join(werr, cerr, <-got); err != nil {
		tb.Fatalf("%s: %v", family, err)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TCP arrives whole, and super-segments unsplit. The receiving kernel judges the checksums.
func TestTCP(t *testing.T) {
	data := random(16 << 20)
	for family, gsoType := range map[string]byte{"ipv4": unix.VIRTIO_NET_HDR_GSO_TCPV4, "ipv6": unix.VIRTIO_NET_HDR_GSO_TCPV6} {
		t.Run(family, func(t *testing.T) {
			left, right, toRight, _ := newPair(t, "fast", "fast")
			bulk(left, right, family, t, data)
			if supers, longest := toRight.count(gsoType), toRight.longestFrame(); supers == 0 || longest <= virtio.HeaderLen+8*pairMTU {
				t.Errorf("%d super-segments, longest frame %d bytes: offloads do not work", supers, longest)
			}
			right.noBadChecksums(t)
		})
	}
}

// TestFallback holds that a device without offloads exchanges TCP, bursts of UDP and fragments with a fast one: its writer
// cuts super-segments and completes checksums.
func TestFallback(t *testing.T) {
	data := random(16 << 20)
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			fast, portable, _, toFast := newPair(t, "fast", "portable")
			bulk(fast, portable, family, t, data)
			bulk(portable, fast, family, t, data)
			for gsoType, name := range map[byte]string{unix.VIRTIO_NET_HDR_GSO_TCPV4: "IPv4", unix.VIRTIO_NET_HDR_GSO_TCPV6: "IPv6"} {
				if n := toFast.count(gsoType); n != 0 {
					t.Errorf("%d super-segments of %s from a portable device", n, name)
				}
			}
			if longest := toFast.longestFrame(); longest > virtio.HeaderLen+pairMTU {
				t.Errorf("longest frame %d bytes from a portable device", longest)
			}
			segments(t, fast, portable, family)
			segments(t, portable, fast, family)
			fragments(t, fast, portable, family)
			fragments(t, portable, fast, family)
			fast.noBadChecksums(t)
			portable.noBadChecksums(t)
		})
	}
}

// noBadChecksums wants the kernel to have found no wrong checksum in what arrived.
func (s side) noBadChecksums(tb testing.TB) {
	tb.Helper()
	for _, protocol := range []string{"Tcp", "Udp"} {
		if n := s.counter(tb, protocol, "InCsumErrors"); n != 0 {
			tb.Errorf("%d %s packets arrived with a bad checksum", n, protocol)
		}
	}
}

// sendSegmented sends data with UDP_SEGMENT (udp(7)): one system call, many
// datagrams of size bytes.
func sendSegmented(c net.Conn, size int, data []byte) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
	}); err != nil {
		return err
	}
	if serr != nil {
		return fmt.Errorf("set UDP_SEGMENT: %w", serr)
	}
	_, err = c.Write(data)
	return err
}

func (s side) listenUDP(tb testing.TB, family string) *net.UDPConn {
	tb.Helper()
	var c *net.UDPConn
	s.do(tb, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: s.ip(family)})
		return err
	})
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(patience))
	return c
}

// received is the number of packets the kernel took from the device: a
// super-segment counts once.
func (ns namespace) received(tb testing.TB) (packets uint64) {
	tb.Helper()
	ns.do(tb, func() error {
		link, err := netlink.LinkByName("emtest0")
		if err == nil {
			packets = link.Attrs().Statistics.RxPackets
		}
		return err
	})
	return packets
}

// segments sends a burst of UDP datagrams in one system call and compares those that arrive.
func segments(t *testing.T, from, to side, family string) {
	t.Helper()
	const size, total = 1200, 40*1200 + 7
	data := random(total)
	l := to.listenUDP(t, family)
	if err := sendSegmented(from.dial(t, l.LocalAddr()), size, data); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	for at := 0; at < total; at += size {
		n, err := l.Read(buf)
		if err != nil {
			t.Fatalf("after %d bytes: %v", at, err)
		}
		if want := data[at:min(at+size, total)]; !bytes.Equal(buf[:n], want) {
			t.Fatalf("datagram at %d: %d bytes that differ from the %d sent", at, n, len(want))
		}
	}
}

// A burst of UDP datagrams passes as one frame where the kernels know USO, and is written as one packet where the receiving
// one does; elsewhere it arrives as the datagrams it stands for.
func TestUDPSegments(t *testing.T) {
	for _, kind := range []string{"fast", "no-uso"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			t.Run(kind+"/"+family, func(t *testing.T) {
				left, right, toRight, _ := newPair(t, "fast", kind)
				before := right.received(t)
				segments(t, left, right, family)
				supers := toRight.count(unix.VIRTIO_NET_HDR_GSO_UDP_L4)
				if uso := left.dev.Offloads()&USO4 != 0; uso != (supers == 1) {
					t.Errorf("%d super-segments, offloads %s", supers, left.dev.Offloads())
				}
				if n, whole := right.received(t)-before, supers == 1 && kind == "fast"; whole != (n == 1) {
					t.Errorf("%d packets written for %d super-segments", n, supers)
				}
				right.noBadChecksums(t)
			})
		}
	}
}

// fragments sends datagrams of 60000 bytes: 41 fragments that arrive together, more than a short queue holds.
func fragments(t *testing.T, from, to side, family string) {
	t.Helper()
	data := random(60000)
	l := to.listenUDP(t, family)
	c := from.dial(t, l.LocalAddr())
	buf := make([]byte, 65536)
	for range 10 {
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		n, err := l.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf[:n], data) {
			t.Fatalf("%d bytes arrived that differ from the %d sent", n, len(data))
		}
	}
}

func TestUDPFragments(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			left, right, _, _ := newPair(t, "fast", "fast")
			fragments(t, left, right, family)
		})
	}
}
