package packet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/net/ipv4"

	"edgemesh/internal/upkeep"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// A peer that is starting takes sealed packets a moment later; one that never does is not
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
		t.Errorf("%v after a path of an hour", p)
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

// testLanes keep the datagrams that arrive.
type testLanes struct {
	noLanes
	got     [][]byte
	flushes int
	closed  bool
	drop    bool
}

func (l *testLanes) Datagram(b []byte) {
	if !l.drop {
		l.got = append(l.got, bytes.Clone(b))
	}
}
func (l *testLanes) Flush() { l.flushes++ }
func (l *testLanes) Close() { l.closed = true }

// testConn is a connection to a peer.
type testConn struct {
	network.Conn
	to peer.ID
}

func (c testConn) RemotePeer() peer.ID { return c.to }

func testService() *Service {
	return New(Config{Spawn: func(f func()) bool { go f(); return true }, Log: slog.New(slog.DiscardHandler)})
}

// testFlight is sealed packets beside a connection to p.
func testFlight(s *Service, p peer.ID, on Path) *Flight {
	return s.beside(link{node: s.node, path: on, ctx: context.Background()}, testConn{to: p})
}

// testFrom is where packets come from.
func testFrom() *received { return &received{from: net.UDPAddrFromAddrPort(testHome())} }

func testHome() netip.AddrPort { return netip.MustParseAddrPort("5.5.5.1:4001") }

// newTestPath makes a path with an index that works; false: it has been taken.
func newTestPath(f *Flight, index uint32, lanes Lanes) (*flightPath, bool) {
	x := &flightPath{Flight: f, index: index, release: func() {}, over: wake.NewOne(), woken: wake.NewOne(), timer: time.NewTimer(time.Hour),
		answers: make(chan uint32, 16), of: newFlightPeer(1, lanes, flight.NewMemory(1<<20)), at: address{now: testHome(), works: true}, added: true}
	x.of.join(x, 0)
	return x, f.in.add(x)
}

// keyed gives a path keys, and returns the other end's.
func (x *flightPath) keyed(t testing.TB, key byte) *sealed.Sealer {
	t.Helper()
	secret := bytes.Repeat([]byte{key}, sealed.SecretLen)
	sealer, err := sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret, x.index)
	if err != nil {
		t.Fatal(err)
	}
	if x.opener, err = sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret); err != nil {
		t.Fatal(err)
	}
	return sealer
}

// datagram is a payload of package flight's.
func datagram(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{2}, uint16(len(b))), b...)
}

// receiving is a path with an index, the other end's keys, and the socket's way to it.
func receiving(t testing.TB, index uint32) (*dispatcher, *sealed.Sealer, *testLanes, *testPath, *flightPath) {
	t.Helper()
	s, path, lanes := testService(), &testPath{}, &testLanes{}
	x, ok := newTestPath(testFlight(s, "", path), index, lanes)
	if !ok {
		t.Fatal("the index is taken")
	}
	return &dispatcher{in: &s.in}, x.keyed(t, 7), lanes, path, x
}

// What the peer did not seal does not reach the lanes, whatever index it bears; nor does anything after the end.
func TestForgedPackets(t *testing.T) {
	d, sealer, lanes, path, x := receiving(t, 0x01020304)
	for n := range 100 {
		p := make([]byte, sealed.Overhead+n)
		d.take(p, testFrom())
		binary.BigEndian.PutUint32(p, 0x01020304)
		d.take(p, testFrom())
	}
	d.flush()
	if len(lanes.got) != 0 || lanes.flushes != 0 || path.heard.Load() != 0 {
		t.Errorf("forged packets: the lanes have %d datagrams, %d flushes; heard %d times", len(lanes.got), lanes.flushes, path.heard.Load())
	}
	seal := func(payload string) []byte {
		b, err := sealer.Seal(nil, datagram([]byte(payload)))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := seal("one")
	length := int64(len(one))
	d.take(bytes.Clone(one), testFrom())
	d.take(one, testFrom()) // again
	d.take(seal("two"), testFrom())
	d.flush()
	d.flush()
	if got := fmt.Sprintf("%s", lanes.got); got != "[one two]" || lanes.flushes != 1 || path.received.Load() != 2*length {
		t.Errorf("the lanes have %s after %d flushes; %d bytes received, want [one two], 1 and %d", got, lanes.flushes, path.received.Load(), 2*length)
	}
	late := seal("late")
	d.take(late, testFrom())
	x.end()
	d.flush()
	d.take(late, testFrom())
	d.flush()
	if len(lanes.got) != 3 || !lanes.closed || lanes.flushes != 1 {
		t.Errorf("after the end the lanes have %d datagrams, %d flushes, closed: %v", len(lanes.got), lanes.flushes, lanes.closed)
	}
}

// A challenge, which a probe of the size is, is answered and no datagram; an answer is the search's.
func TestOwnPackets(t *testing.T) {
	d, sealer, lanes, path, x := receiving(t, 9)
	for _, payload := range [][]byte{{kindChallenge, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0}, {kindResponse, 0, 0, 0, 0, 0, 0, 0, 78}} {
		b, err := sealer.Seal(nil, payload)
		if err != nil {
			t.Fatal(err)
		}
		d.take(b, testFrom())
	}
	d.flush()
	if len(x.reply) != 1 || x.reply[0].data != 77 || <-x.answers != 78 || len(lanes.got) != 0 || path.heard.Load() != 1 {
		t.Errorf("answers %v, %d datagrams, heard %d times", x.reply, len(lanes.got), path.heard.Load())
	}
}

func BenchmarkTake(b *testing.B) {
	d, sealer, lanes, _, _ := receiving(b, 5)
	lanes.drop = true
	from, payload, buf := testFrom(), datagram(make([]byte, 1400)), make([]byte, 0, 2000)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		p, err := sealer.Seal(buf, payload)
		if err != nil {
			b.Fatal(err)
		}
		d.take(p, from)
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
