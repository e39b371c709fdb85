package tunnel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
	"edgemesh/tunnel/virtio"
)

// benchFrame is a packet of the given IP length with its virtio header: a TCP
// super-segment where it is longer than the MTU.
func benchFrame(size int) []byte {
	p := tunneltest.TCPPacket(addrA, addrB, make([]byte, size-40))
	hdr := make([]byte, virtio.HeaderLen)
	if size > 1500 {
		hdr = []byte{1, 1, 40, 0, 0xb4, 5, 20, 0, 16, 0}
	}
	return append(hdr, p...)
}

// source is a device that always has one more packet to read, up to a window
// ahead of what came out at the other end.
type source struct {
	frame  []byte
	total  int
	read   int
	window chan struct{}
	done   chan struct{}
	once   sync.Once
	wrote  atomic.Int64
}

func (s *source) Read(b []byte) (int, error) {
	if s.read == s.total {
		<-s.done
		return 0, os.ErrClosed
	}
	select {
	case s.window <- struct{}{}:
	case <-s.done:
		return 0, os.ErrClosed
	}
	s.read++
	return copy(b, s.frame), nil
}
func (s *source) UDPSegments() bool { return true }
func (s *source) Pending() bool     { return false }
func (s *source) Write(b []byte) error {
	s.wrote.Add(1)
	return nil
}

func (s *source) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// drain is a carrier that takes everything and counts whole frames of one size.
type drain struct {
	s     *source
	size  int
	bytes int
	count int
	full  chan struct{}
}

func (d *drain) Open(context.Context, tunnel.PeerID, tunnel.Lane) (tunnel.Carrier, error) {
	return d, nil
}
func (d *drain) CloseWrite() error    { return nil }
func (d *drain) Reset()               {}
func (d *drain) Lost() bool           { return false }
func (d *drain) RTT() time.Duration   { return 0 }
func (d *drain) Clean() bool          { return false }
func (d *drain) Waited(time.Duration) {}
func (d *drain) Write(p []byte) (int, error) {
	if p[0] == 1 { // HELLO
		return len(p), nil
	}
	for d.bytes += len(p); d.bytes >= d.size; d.bytes -= d.size {
		<-d.s.window
		if d.count++; d.count == d.s.total {
			close(d.full)
		}
	}
	return len(p), nil
}

var benchSizes = []int{64, 1500, 65000}

func BenchmarkSend(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := benchFrame(size)
			s := &source{frame: f, total: b.N, window: make(chan struct{}, 48), done: make(chan struct{})}
			d := &drain{s: s, size: 4 + len(f), full: make(chan struct{})}
			t := tunnel.New(tunnel.Config{
				Device:   s,
				Underlay: d,
				Log:      slog.New(slog.DiscardHandler),
				Limits:   tunnel.Limits{DelayTarget: time.Hour, WaitTime: time.Hour}, // a busy machine drops nothing
			})
			t.SetRoutes(routes(nodeA))
			b.ReportAllocs()
			b.SetBytes(int64(size))
			b.ResetTimer()
			ended := make(chan error, 1)
			go func() { ended <- t.Run(context.Background()) }()
			<-d.full
			b.StopTimer()
			if err := t.Close(); err != nil {
				b.Error(err)
			}
			<-ended
			if n := t.Stats().Total.Drops.Total(); n != 0 {
				b.Errorf("%d drops: %v", n, t.Stats().Total.Drops)
			}
		})
	}
}

// repeat is a stream of n equal frames after a HELLO, in Reads of up to 64 KiB.
type repeat struct {
	hello, frames []byte
	off           int
	left          int
}

func (r *repeat) Reset() {}

func (r *repeat) Read(b []byte) (int, error) {
	if len(r.hello) > 0 {
		n := copy(b, r.hello)
		r.hello = r.hello[n:]
		return n, nil
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.frames[r.off:min(len(r.frames), r.off+r.left)])
	r.off = (r.off + n) % len(r.frames)
	r.left -= n
	return n, nil
}

func BenchmarkReceive(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := benchFrame(size)
			wire := append(binary.BigEndian.AppendUint32(nil, 2<<24|uint32(len(f))), f...)
			h := []byte{1, 0, 0, 28, 1, 0, 0, 0}
			for _, v := range []uint64{1, 1, 0} {
				h = binary.BigEndian.AppendUint64(h, v)
			}
			s := &source{done: make(chan struct{})}
			t := tunnel.New(tunnel.Config{Device: s, Underlay: &drain{}, Log: slog.New(slog.DiscardHandler)})
			t.SetRoutes(routes(nodeB))
			r := &repeat{hello: h, frames: bytes.Repeat(wire, max(1, 65536/len(wire))), left: b.N * len(wire)}
			b.ReportAllocs()
			b.SetBytes(int64(size))
			b.ResetTimer()
			if err := t.Receive(nodeA, tunnel.StreamLane, r); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if n := s.wrote.Load(); n != int64(b.N) {
				b.Errorf("%d of %d packets written; %v", n, b.N, t.Stats().Total.Drops)
			}
			if err := t.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
