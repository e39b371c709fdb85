package packet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// A peer that is starting takes datagrams a moment later; one that never does is not
// bothered.
func TestOfferPauses(t *testing.T) {
	pause, at, soon := time.Duration(0), time.Duration(0), 0
	for range 20 {
		pause = offerPause(pause, time.Millisecond)
		if at += pause; at <= time.Second {
			soon++
		}
	}
	if soon < 3 || pause != lastPause {
		t.Errorf("%d offers in the first second, at last one every %v", soon, pause)
	}
	if p := offerPause(pause, time.Hour); p != firstPause {
		t.Errorf("%v after a session of an hour", p)
	}
}

// testPath counts what it is told.
type testPath struct{ received, heard atomic.Int64 }

func (*testPath) Peer() string         { return "b" }
func (*testPath) Addr() string         { return "" }
func (*testPath) Sent(int)             {}
func (p *testPath) Received(bytes int) { p.received.Add(int64(bytes)) }
func (p *testPath) Heard()             { p.heard.Add(1) }
func (*testPath) Carried() uint64      { return 0 }
func (*testPath) Narrowed()            {}
func (*testPath) Waited(time.Duration) {}
func (*testPath) Broken(string)        {}

// testSink keeps what it gets.
type testSink struct {
	got     [][]byte
	flushes int
	closed  bool
	drop    bool
}

func (s *testSink) Datagram(b []byte) {
	if !s.drop {
		s.got = append(s.got, bytes.Clone(b))
	}
}
func (s *testSink) Flush() { s.flushes++ }
func (s *testSink) Close() { s.closed = true }

// receiving is a session that receives with an index, the sender's end of its keys, and the socket's way to it.
// sendingOn is the sending direction of a session that sends nothing.
func sendingOn(s *Service, p Path) *sending {
	return &sending{link: link{node: s.node, path: p, ctx: context.Background()}}
}

func receiving(t testing.TB, index uint32) (*dispatcher, *sealed.Sealer, *testSink, *testPath, *receiver) {
	t.Helper()
	secret := bytes.Repeat([]byte{7}, sealed.SecretLen)
	sealer, err := sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret, index)
	if err != nil {
		t.Fatal(err)
	}
	opener, err := sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Spawn: func(f func()) bool { go f(); return true }, Log: slog.New(slog.DiscardHandler)})
	path, sink := &testPath{}, &testSink{}
	r := newReceiver(sendingOn(s, path), "")
	r.index, r.opener, r.sink = index, opener, sink
	if !s.in.add(r) {
		t.Fatal("the index is taken")
	}
	return &dispatcher{in: &s.in}, sealer, sink, path, r
}

// What the peer did not seal does not reach the sink, whatever index it bears; nor does anything after the end.
func TestForgedPackets(t *testing.T) {
	d, sealer, sink, path, r := receiving(t, 0x01020304)
	for n := range 100 {
		p := make([]byte, sealed.Overhead+n)
		d.take(p, nil)
		binary.BigEndian.PutUint32(p, 0x01020304)
		d.take(p, nil)
	}
	d.flush()
	if len(sink.got) != 0 || sink.flushes != 0 || path.heard.Load() != 0 {
		t.Errorf("forged packets: the sink has %d datagrams, %d flushes; heard %d times", len(sink.got), sink.flushes, path.heard.Load())
	}
	seal := func(payload string) []byte {
		b, err := sealer.Seal(nil, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := seal("one")
	length := int64(len(one))
	d.take(bytes.Clone(one), nil)
	d.take(one, nil) // again
	d.take(seal("two"), nil)
	d.take(seal(""), nil) // nothing in it
	d.flush()
	d.flush()
	if got := fmt.Sprintf("%s", sink.got); got != "[one two]" || sink.flushes != 1 || path.received.Load() != 2*length {
		t.Errorf("the sink has %s after %d flushes; %d bytes received, want [one two], 1 and %d", got, sink.flushes, path.received.Load(), 2*length)
	}
	late := seal("late")
	d.in.remove(r)
	d.take(late, nil)
	d.flush()
	if len(sink.got) != 2 || !sink.closed {
		t.Errorf("after the end the sink has %d datagrams, closed: %v", len(sink.got), sink.closed)
	}
}

// A packet of the receiver's own is told from a datagram.
func TestOwnPackets(t *testing.T) {
	d, sealer, sink, path, r := receiving(t, 9)
	b, err := sealer.Seal(nil, []byte{kindProbe, 0, 0, 0, 77, 0, 0})
	if err != nil {
		t.Fatal(err)
	}
	d.take(b, nil)
	d.flush()
	if id := <-r.arrived; id != 77 || len(sink.got) != 0 || path.heard.Load() != 1 {
		t.Errorf("a probe: id %d, %d datagrams, heard %d times", id, len(sink.got), path.heard.Load())
	}
}

func BenchmarkTake(b *testing.B) {
	d, sealer, sink, _, _ := receiving(b, 5)
	sink.drop = true
	payload, buf := make([]byte, 1400), make([]byte, 0, 2000)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		p, err := sealer.Seal(buf, payload)
		if err != nil {
			b.Fatal(err)
		}
		d.take(p, nil)
		d.flush()
	}
}

// counter is a taker.
type counter struct {
	got       [][]byte
	forwarded [][]byte
	ends      int
}

func (c *counter) take(b []byte, _ *received) { c.got = append(c.got, bytes.Clone(b)) }
func (c *counter) flush()                     { c.ends++ }

func (c *counter) forward(b []byte, each int, _ *net.UDPAddr) {
	for ; len(b) > 0; b = b[min(each, len(b)):] {
		c.forwarded = append(c.forwarded, bytes.Clone(b[:min(each, len(b))]))
	}
}

// A train of both sorts is taken apart, whether or not the kernel joined it.
func TestSharedSocket(t *testing.T) {
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	gone := false
	k := &counter{}
	s, err := newSocket(l, k, new(upkeep.Wire), func() { gone = true })
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUDP("udp4", nil, l.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var train []byte
	for i := range 20 {
		p := bytes.Repeat([]byte{byte(i)}, 100)
		if i%3 == 0 {
			p[0] = 0x40
		}
		train = append(train, p[:100-i/19*50]...) // the last one is shorter
	}
	if _, _, err := c.WriteMsgUDP(train, segmentControl(nil, 100), nil); err != nil {
		t.Fatal(err)
	}
	ms := make([]ipv4.Message, 4)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1452)}, make([]byte, 128)
	}
	var quics []int
	for len(quics) < 7 {
		n, err := s.ReadBatch(ms, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms[:n] {
			if from, ok := m.Addr.(*net.UDPAddr); !ok || from.Port != c.LocalAddr().(*net.UDPAddr).Port || m.N != 100 {
				t.Errorf("%d bytes from %v", m.N, m.Addr)
			}
			quics = append(quics, int(m.Buffers[0][1]))
		}
	}
	if fmt.Sprint(quics) != "[0 3 6 9 12 15 18]" {
		t.Errorf("QUIC gets packets %v", quics)
	}
	_, _ = c.Write([]byte{0x40})
	if n, err := s.ReadBatch(ms, 0); n != 1 || err != nil || ms[0].N != 1 {
		t.Errorf("a single packet: %d, %v, %d bytes", n, err, ms[0].N)
	}
	if len(k.got) != 13 || len(k.got[12]) != 50 || k.got[12][0] != 19 || k.ends == 0 {
		t.Errorf("%d others, %d ends", len(k.got), k.ends)
	}
	train = nil // runs of two channels, a sealed packet, QUIC's, and a header cut short
	for _, first := range []byte{0x80, 0x80, 0xbf, 1, 0xbf, 0x40} {
		train = append(train, bytes.Repeat([]byte{first}, 100)...)
	}
	if _, _, err := c.WriteMsgUDP(append(train, 0x80), segmentControl(nil, 100), nil); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte{0x40})
	for quics := 0; quics < 2; {
		n, err := s.ReadBatch(ms, 0)
		if err != nil {
			t.Fatal(err)
		}
		quics += n
	}
	var firsts []byte
	for _, b := range k.forwarded {
		firsts = append(firsts, b[0])
	}
	if fmt.Sprintf("%x", firsts) != "8080bfbf80" || len(k.forwarded[4]) != 1 || len(k.got) != 14 {
		t.Errorf("%x to forward, %d sealed", firsts, len(k.got))
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.ReadBatch(ms, 0)
		ended <- err
	}()
	s.Close()
	if err := <-ended; err == nil || !gone {
		t.Errorf("after Close: %v, told %v", err, gone)
	}
}

// TestOtherKinds: payloads of kinds that former versions send mean nothing, nor do those that none knows. The path was heard.
func TestOtherKinds(t *testing.T) {
	d, sealer, sink, path, r := receiving(t, 9)
	for kind := kindArrived + 1; kind < 256; kind++ {
		for n := 1; n <= 9; n += 4 {
			b, err := sealer.Seal(nil, []byte{byte(kind), 0, 0, 0, 1, 0, 0, 0, 2}[:n])
			if err != nil {
				t.Fatal(err)
			}
			d.take(b, nil)
		}
	}
	d.flush()
	if len(sink.got) != 0 || len(r.arrived) != 0 || len(r.over) != 0 {
		t.Errorf("%d datagrams, %d probes, ends: %d", len(sink.got), len(r.arrived), len(r.over))
	}
	if path.heard.Load() == 0 || path.received.Load() != 0 {
		t.Errorf("heard %d times, %d bytes for the owner", path.heard.Load(), path.received.Load())
	}
}
