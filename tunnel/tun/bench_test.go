package tun

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"edgemesh/tunnel/virtio"
	"edgemesh/tunnel/virtio/virtiotest"

	"golang.org/x/sys/unix"
)

func benchKinds(b *testing.B, f func(b *testing.B, kind string)) {
	for _, kind := range []string{"fast", "portable"} {
		b.Run(kind, func(b *testing.B) { f(b, kind) })
	}
}

// BenchmarkWrite hands the kernel packets for nobody, which it drops soonest.
func BenchmarkWrite(b *testing.B) {
	packet := virtiotest.Super{UDP: true, Size: 1200, Payload: make([]byte, 1200)}
	segment := virtiotest.Super{Size: 1448, TCPOptions: 12, Payload: make([]byte, 64000)}
	packet.Addresses = [32]byte{10, 99, 0, 2, 203, 0, 113, 1}
	segment.Addresses = packet.Addresses
	for name, orig := range map[string][]byte{"packet": packet.Plain(), "super": segment.Frame()} {
		b.Run(name, func(b *testing.B) {
			benchKinds(b, func(b *testing.B, kind string) {
				dev := newNamespace(b).openKind(b, kind)
				frame := bytes.Clone(orig)
				b.SetBytes(int64(len(frame)))
				b.ReportAllocs()
				for b.Loop() {
					copy(frame, orig)
					if err := dev.Write(frame); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkRead includes the system call that sends what is read.
func BenchmarkRead(b *testing.B) {
	benchKinds(b, func(b *testing.B, kind string) {
		ns := newNamespace(b)
		dev := ns.openKind(b, kind)
		var conn net.Conn
		ns.do(b, func() (err error) {
			if err = address("emtest0", "10.99.0.1/24"); err != nil {
				return err
			}
			conn, err = net.Dial("udp", "10.99.0.2:9")
			return err
		})
		defer conn.Close()
		payload, buf := make([]byte, 1200), make([]byte, virtio.MaxFrame)
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := conn.Write(payload); err != nil {
				b.Fatal(err)
			}
			if _, err := dev.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTCP is one flow from kernel to kernel through both devices, without
// anything between them: what they cost, and the most a tunnel could reach.
func BenchmarkTCP(b *testing.B) {
	for _, kinds := range [][2]string{{"fast", "fast"}, {"fast", "portable"}, {"portable", "portable"}} {
		b.Run(kinds[0]+"-"+kinds[1], func(b *testing.B) {
			left, right, _, _ := newPair(b, kinds[0], kinds[1])
			l := right.listen(b, "ipv4")
			done := make(chan struct{})
			go func() {
				defer close(done)
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				buf := make([]byte, 1<<20)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			}()
			c := left.dial(b, l.Addr())
			chunk := make([]byte, 1<<20)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				if _, err := c.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil && !errors.Is(err, unix.ENOTCONN) {
				b.Fatal(err)
			}
			<-done
		})
	}
}
