package tunnel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeA = tunnel.PeerID("a")
	nodeB = tunnel.PeerID("b")
)

var (
	addrA  = netip.MustParseAddrPort("10.244.1.5:1000")
	addrB  = netip.MustParseAddrPort("10.244.2.6:2000")
	addrA6 = netip.MustParseAddrPort("[fd00:1::5]:1000")
	addrB6 = netip.MustParseAddrPort("[fd00:2::6]:2000")
)

// node is a tunnel with its device and what came out of it.
type node struct {
	*tunnel.Tunnel
	dev *tunneltest.Device

	mu     sync.Mutex
	cond   *sync.Cond
	frames [][]byte
	dead   bool
}

func routes(self tunnel.PeerID) []tunnel.Route {
	return []tunnel.Route{
		{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Peer: nodeA, Self: self == nodeA},
		{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Peer: nodeB, Self: self == nodeB},
		{Prefix: netip.MustParsePrefix("fd00:1::/64"), Peer: nodeA, Self: self == nodeA},
		{Prefix: netip.MustParsePrefix("fd00:2::/64"), Peer: nodeB, Self: self == nodeB},
	}
}

// newNode starts a tunnel; the test's end closes it.
func newNode(t *testing.T, id tunnel.PeerID, under tunnel.Underlay, lim tunnel.Limits, idle func(tunnel.PeerID)) *node {
	t.Helper()
	n := &node{}
	n.cond = sync.NewCond(&n.mu)
	n.dev = tunneltest.NewDevice(func(b []byte) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.frames = append(n.frames, bytes.Clone(b))
		n.cond.Broadcast()
		return nil
	})
	n.Tunnel = tunnel.New(tunnel.Config{
		Device: n.dev, Underlay: under, Limits: lim, Idle: idle,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", id),
	})
	n.SetRoutes(routes(id))
	ended := make(chan error, 1)
	go func() { ended <- n.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-ended; err != nil && !errors.Is(err, tunnel.ErrClosed) { // closed before it ran
			t.Errorf("run: %v", err)
		}
	})
	return n
}

// pair is two nodes on one net, joined by one path for each direction.
func pair(t *testing.T, lim tunnel.Limits) (net *tunneltest.Net, a, b *node, path *tunneltest.Path) {
	t.Helper()
	net = tunneltest.NewNet()
	path = tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeB, path)
	net.SetPath(nodeB, nodeA, path)
	t.Cleanup(net.Wait)
	a = newNode(t, nodeA, net.Underlay(nodeA), lim, nil)
	b = newNode(t, nodeB, net.Underlay(nodeB), lim, nil)
	net.Attach(nodeA, a.Tunnel)
	net.Attach(nodeB, b.Tunnel)
	return net, a, b, path
}

// packets waits until n frames were written to the device and returns their
// packets, without the virtio header.
func (n *node) packets(t *testing.T, count int) [][]byte {
	t.Helper()
	stop := time.AfterFunc(20*time.Second, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dead = true
		n.cond.Broadcast()
	})
	defer stop.Stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.frames) < count && !n.dead {
		n.cond.Wait()
	}
	if len(n.frames) < count {
		t.Fatalf("%d packets arrived, want %d; stats %+v", len(n.frames), count, n.Stats())
	}
	out := make([][]byte, 0, len(n.frames))
	for _, f := range n.frames {
		out = append(out, f[tunnel.VnetHdrLen:])
	}
	return out
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestPacketsCrossBothWays(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	sent := [][]byte{
		tunneltest.UDPPacket(addrA, addrB, []byte("udp 4")),
		tunneltest.TCPPacket(addrA, addrB, make([]byte, 1400)),
		tunneltest.UDPPacket(addrA6, addrB6, []byte("udp 6")),
		tunneltest.TCPPacket(addrA6, addrB6, []byte("tcp 6")),
		tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.ICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1}),
	}
	for i, p := range sent { // one after the other, so that lanes do not mix
		a.dev.Inject(p)
		if got := b.packets(t, i+1)[i]; !bytes.Equal(got, p) {
			t.Errorf("packet %d arrived as % x, want % x", i, got, p)
		}
	}
	back := tunneltest.UDPPacket(addrB, addrA, []byte("back"))
	b.dev.Inject(back)
	if got := a.packets(t, 1)[0]; !bytes.Equal(got, back) {
		t.Errorf("answer arrived as % x, want % x", got, back)
	}
	eventually(t, "a counted five packets", func() bool { return a.Stats().Total.TxPackets == 5 })
	if s := b.Stats(); s.Total.RxPackets != 5 || s.Total.RxBytes != a.Stats().Total.TxBytes || s.Total.Drops.Total() != 0 {
		t.Errorf("stats of b: %+v", s)
	}
}

func TestSuperSegmentCrossesWhole(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	p := tunneltest.TCPPacket(addrA, addrB, make([]byte, 65000))
	// hdr_len as a forwarding kernel gives it: the whole linear part.
	frame := append([]byte{1, 1, 0, 8, 0xb4, 5, 20, 0, 16, 0}, p...)
	a.dev.InjectFrame(frame)
	b.packets(t, 1)
	want := append([]byte{1, 1, 40, 0, 0xb4, 5, 20, 0, 16, 0}, p...)
	if !bytes.Equal(b.frames[0], want) {
		t.Errorf("frame arrived as % x…, want % x…", b.frames[0][:32], want[:32])
	}
}

// TestFirstPacketWaits: what is sent before there is a path arrives once there is one.
func TestFirstPacketWaits(t *testing.T) {
	net, a, b, path := pair(t, tunnel.Limits{WaitTime: time.Minute, RetryMax: time.Hour, RetryMin: time.Hour})
	net.SetPath(nodeA, nodeB, nil)
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("early")))
	eventually(t, "the lane connects", func() bool {
		return a.Stats().Peers[0].Lanes[tunnel.DatagramLane].State == tunnel.LaneConnecting
	})
	net.SetPath(nodeA, nodeB, path)
	eventually(t, "it arrives", func() bool {
		a.PathChanged(nodeB) // does not wait for the retry an hour ahead
		return b.Stats().Total.RxPackets == 1
	})
}

// TestUpgradeDuringFirstOpen: a better path that appears while the first carrier
// is being opened is used, though that attempt knew nothing of it.
func TestUpgradeDuringFirstOpen(t *testing.T) {
	net, a, b, first := pair(t, tunnel.Limits{})
	better := tunneltest.NewPath(64 << 10)
	opening, proceed := net.HoldOpen()
	a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("1")))
	<-opening // with the first path chosen
	net.SetPath(nodeA, nodeB, better)
	a.PathChanged(nodeB)
	close(proceed)
	eventually(t, "two carriers", func() bool { return net.Opened() == 2 })
	eventually(t, "the lane is up", func() bool { return a.Stats().Peers[0].Lanes[tunnel.StreamLane].State == tunnel.LaneUp })
	first.Kill()
	a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("2")))
	b.packets(t, 2)
}

// number is the sequence number that takeover's packets carry.
func number(p []byte) uint64 { return binary.BigEndian.Uint64(p[len(p)-8:]) }

// TestTakeOver moves a flow at random times between paths that live: every
// packet arrives, once and in order.
func TestTakeOver(t *testing.T) {
	const total, window = 20000, 256
	// No time must run out in a test of order, however slow the machine.
	net, a, b, _ := pair(t, tunnel.Limits{
		HoldTime: time.Minute, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute, StreamsPerLane: 1000,
	})
	t.Cleanup(func() {
		for _, err := range net.Errors() {
			t.Errorf("receive: %v", err)
		}
		t.Logf("drops at a: %v", a.Stats().Total.Drops)
	})
	paths := []*tunneltest.Path{tunneltest.NewPath(8 << 10), tunneltest.NewPath(200 << 10), tunneltest.NewPath(3000)}
	rnd := rand.New(rand.NewPCG(1, 2))
	next := 0
	moves := 0
	for i := range total {
		if i == next {
			next += rnd.IntN(400)
			moves++
			old := paths[rnd.IntN(len(paths))]
			net.SetPath(nodeA, nodeB, paths[rnd.IntN(len(paths))])
			if rnd.IntN(2) == 0 { // what is on the old path comes late
				old.Stall()
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, old.Resume)
			}
			a.PathChanged(nodeB)
		}
		data := binary.BigEndian.AppendUint64(make([]byte, rnd.IntN(1000)), uint64(i))
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, data))
		if i%32 == 0 && i > window {
			b.packets(t, i-window) // no more under way than a queue holds
		}
	}
	for i, p := range b.packets(t, total) {
		if number(p) != uint64(i) {
			t.Fatalf("packet %d has number %d", i, number(p))
		}
	}
	if n := net.Opened(); n < 10 {
		t.Errorf("%d moves opened %d carriers only", moves, n)
	}
	t.Logf("%d moves, %d carriers", moves, net.Opened())
}

// TestDeadPathIsLeft: the old path swallows everything; the packets that it had
// not taken go on over the next one, and the receiver does not wait for ever.
func TestDeadPathIsLeft(t *testing.T) {
	for _, how := range []string{"lost", "changed", "killed"} {
		t.Run(how, func(t *testing.T) {
			net, a, b, path := pair(t, tunnel.Limits{WaitTime: time.Minute})
			a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, make([]byte, 8)))
			b.packets(t, 1)
			path.Stall()
			const more = 300 // of 1 kB: the path holds 64
			for i := range more {
				a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, binary.BigEndian.AppendUint64(make([]byte, 1000), uint64(i))))
			}
			better := tunneltest.NewPath(64 << 10)
			net.SetPath(nodeA, nodeB, better)
			switch how {
			case "lost":
				a.PathLost(nodeB)
			case "changed": // the write is stuck, the move resets it
				a.PathChanged(nodeB)
			case "killed":
				path.Kill()
			}
			eventually(t, "the last packet arrives", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				last := b.frames[len(b.frames)-1]
				return number(last) == more-1
			})
			got := b.packets(t, 1)
			if len(got) < more-64 {
				t.Errorf("%d of %d packets arrived", len(got), more)
			}
			for i := 2; i < len(got); i++ {
				if number(got[i]) != number(got[i-1])+1 {
					t.Errorf("packet %d follows %d", number(got[i]), number(got[i-1]))
				}
			}
		})
	}
}

// raw sends frames as a peer's process might, without a tunnel.
type raw struct {
	w   *io.PipeWriter
	end chan error
}

func (n *node) raw(from tunnel.PeerID, lane tunnel.Lane, nonce, epoch, after uint64) *raw {
	r, w := io.Pipe()
	s := &raw{w, make(chan error, 1)}
	go func() {
		err := n.Receive(from, lane, r)
		_ = r.Close()
		s.end <- err
	}()
	h := []byte{1, 0, 0, 28, 1, byte(lane), 0, 0}
	for _, v := range []uint64{nonce, epoch, after} {
		h = binary.BigEndian.AppendUint64(h, v)
	}
	_, _ = w.Write(h)
	return s
}

func (s *raw) packet(b []byte) { s.frame(2, append(make([]byte, tunnel.VnetHdrLen), b...)) }

func (s *raw) frame(typ byte, body []byte) {
	_, _ = s.w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(typ)<<24|uint32(len(body))), body...))
}

// TestNewEpochWaits: frames of a new epoch are held until the old one ends, in
// whatever way it does; another process of the sender waits for nothing.
func TestNewEpochWaits(t *testing.T) {
	pkt := func(s string) []byte { return tunneltest.TCPPacket(addrB, addrA, []byte(s)) }
	for name, end := range map[string]func(*raw){
		"mark":  func(s *raw) { s.frame(3, nil) },
		"eof":   func(s *raw) { _ = s.w.Close() },
		"error": func(s *raw) { _ = s.w.CloseWithError(errors.New("reset")) },
	} {
		t.Run(name, func(t *testing.T) {
			_, a, _, _ := pair(t, tunnel.Limits{HoldTime: time.Hour})
			first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
			first.packet(pkt("first"))
			a.packets(t, 1)
			second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
			sent := make(chan struct{})
			go func() { defer close(sent); second.packet(pkt("third")) }()
			first.packet(pkt("second"))
			end(first)
			<-sent
			var got []string
			for _, p := range a.packets(t, 3) {
				got = append(got, string(p[40:]))
			}
			if got[0] != "first" || got[1] != "second" || got[2] != "third" {
				t.Errorf("order: %q", got)
			}
			reborn := a.raw(nodeB, tunnel.StreamLane, 8, 2, 1) // knows nothing of epoch 1
			_ = reborn
			first.w.Close()
			second.w.Close()
			reborn.w.Close()
		})
	}
	t.Run("late", func(t *testing.T) { // the new one overtakes the old one's HELLO
		_, a, _, _ := pair(t, tunnel.Limits{HoldTime: time.Hour})
		second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
		sent := make(chan struct{})
		go func() { defer close(sent); second.packet(pkt("2")) }()
		first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
		first.packet(pkt("1"))
		first.frame(3, nil)
		<-sent
		if got := a.packets(t, 2); string(got[0][40:]) != "1" || string(got[1][40:]) != "2" {
			t.Errorf("order: %q", got)
		}
		first.w.Close()
		second.w.Close()
	})
	t.Run("bound", func(t *testing.T) { // the old one is silent
		_, a, _, _ := pair(t, tunnel.Limits{HoldTime: time.Millisecond})
		first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
		second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
		second.packet(pkt("2"))
		a.packets(t, 1)
		first.w.Close()
		second.w.Close()
	})
	t.Run("restart", func(t *testing.T) { // the old process' stream still hangs
		_, a, _, _ := pair(t, tunnel.Limits{HoldTime: time.Hour})
		old := a.raw(nodeB, tunnel.StreamLane, 7, 9, 0)
		old.packet(pkt("old"))
		a.packets(t, 1)
		reborn := a.raw(nodeB, tunnel.StreamLane, 8, 1, 0)
		reborn.packet(pkt("new"))
		a.packets(t, 2)
		old.w.Close()
		reborn.w.Close()
	})
}

func TestSpoofingAndForeignAddresses(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	other := netip.MustParseAddrPort("10.244.3.7:3000")
	a.dev.Inject(tunneltest.UDPPacket(other, addrB, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrB, addrB, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrA, other, nil))
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrA, nil))
	a.dev.Inject(tunneltest.UDPPacket(netip.MustParseAddrPort("[fe80::1]:1"), netip.MustParseAddrPort("[ff02::2]:1"), nil)) // noise
	a.dev.Inject([]byte{0x45})
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("good")))
	b.packets(t, 1)
	d := a.Stats().Total.Drops
	if d.Of(tunnel.DropSourceNotOwn) != 2 || d.Of(tunnel.DropNoRoute) != 2 || d.Of(tunnel.DropMalformed) != 1 || d.Total() != 5 {
		t.Errorf("drops on send: %v", d)
	}

	s := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	s.packet(tunneltest.UDPPacket(other, addrA, nil))
	s.packet(tunneltest.UDPPacket(addrA, addrA, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrB, nil))
	s.packet(tunneltest.UDPPacket(addrB, other, nil))
	s.packet(tunneltest.UDPPacket(addrB, addrA, []byte("good")))
	got := a.packets(t, 2) // the first is the answer that 10.244.3.7 cannot be reached
	if len(got) != 2 || got[0][9] != tunneltest.ICMP || !bytes.Equal(got[0][12:16], other.Addr().AsSlice()) || string(got[1][28:]) != "good" {
		t.Errorf("injected: %q", got)
	}
	d = a.Stats().Peers[0].Drops
	if d.Of(tunnel.DropSourceNotPeer) != 2 || d.Of(tunnel.DropDestNotOwn) != 2 || d.Total() != 4 {
		t.Errorf("drops on receive: %v", d)
	}
	s.w.Close()
	if err := <-s.end; err != nil {
		t.Errorf("foreign addresses ended the stream: %v", err)
	}
}

func TestMalformedFramesCloseTheStream(t *testing.T) {
	for name, body := range map[string][]byte{
		"cut":      {0, 0, 0},
		"offload":  append([]byte{1, 0, 0, 0, 0, 0, 255, 0, 16, 0}, tunneltest.UDPPacket(addrB, addrA, nil)...),
		"length":   append(make([]byte, tunnel.VnetHdrLen), append(tunneltest.UDPPacket(addrB, addrA, nil), 0)...),
		"protocol": append(make([]byte, tunnel.VnetHdrLen), make([]byte, 40)...),
	} {
		t.Run(name, func(t *testing.T) {
			_, a, _, _ := pair(t, tunnel.Limits{MalformedPerMinute: 16})
			s := a.raw(nodeB, tunnel.StreamLane, 1, 1, 0)
			for range 16 {
				s.frame(2, body)
			}
			s.packet(tunneltest.TCPPacket(addrB, addrA, nil))
			a.packets(t, 1) // 16 are borne
			s.frame(2, body)
			if err := <-s.end; !errors.Is(err, tunnel.ErrMalformed) {
				t.Errorf("receive ended with %v", err)
			}
			if n := a.Stats().Total.Drops.Total(); n != 17 {
				t.Errorf("%d drops", n)
			}
		})
	}
	t.Run("framing", func(t *testing.T) {
		_, a, _, _ := pair(t, tunnel.Limits{})
		s := a.raw(nodeB, tunnel.StreamLane, 1, 1, 0)
		_, _ = s.w.Write([]byte{2, 255, 255, 255})
		if err := <-s.end; !errors.Is(err, tunnel.ErrMalformed) {
			t.Errorf("receive ended with %v", err)
		}
	})
}

func TestReceiveRefuses(t *testing.T) {
	_, a, _, _ := pair(t, tunnel.Limits{})
	if err := a.Receive("stranger", 0, bytes.NewReader(nil)); !errors.Is(err, tunnel.ErrUnknownPeer) {
		t.Errorf("stranger: %v", err)
	}
	if err := a.Receive(nodeB, 2, bytes.NewReader(nil)); !errors.Is(err, tunnel.ErrBadLane) {
		t.Errorf("lane 2: %v", err)
	}
	hello := append([]byte{1, 0, 0, 28, 1, 1, 0, 0}, make([]byte, 24)...)
	hello[8+15] = 1 // epoch
	if err := a.Receive(nodeB, tunnel.StreamLane, bytes.NewReader(hello)); !errors.Is(err, tunnel.ErrBadLane) {
		t.Errorf("hello of the other lane: %v", err)
	}
	hello[4] = 9
	if err := a.Receive(nodeB, tunnel.DatagramLane, bytes.NewReader(hello)); !errors.Is(err, tunnel.ErrVersion) {
		t.Errorf("version 9: %v", err)
	}
	if err := a.Receive(nodeB, tunnel.DatagramLane, bytes.NewReader([]byte{2, 0, 0, 0})); !errors.Is(err, tunnel.ErrMalformed) {
		t.Errorf("no hello: %v", err)
	}
}

func TestUnreachableIsTold(t *testing.T) {
	net, a, _, _ := pair(t, tunnel.Limits{WaitTime: 10 * time.Millisecond})
	net.SetPath(nodeA, nodeB, nil)
	sent := tunneltest.TCPPacket(addrA, addrB, nil)
	a.dev.Inject(sent)
	got := a.packets(t, 1)[0]
	if got[9] != tunneltest.ICMP || !bytes.Equal(got[12:16], []byte{10, 244, 2, 1}) || !bytes.Equal(got[16:20], addrA.Addr().AsSlice()) ||
		got[20] != 3 || got[21] != 1 || !bytes.Equal(got[28:], sent) {
		t.Errorf("answer: % x", got)
	}
	if sum(got[:20]) != 0xffff || sum(got[20:]) != 0xffff {
		t.Errorf("checksums of % x", got)
	}
	sent = tunneltest.UDPPacket(addrA6, addrB6, []byte("x"))
	a.dev.Inject(sent)
	got = a.packets(t, 2)[1]
	pseudo := append(bytes.Clone(got[8:40]), 0, 0, got[4], got[5], 0, 0, 0, tunneltest.ICMPv6)
	if got[6] != tunneltest.ICMPv6 || got[40] != 1 || got[41] != 3 || !bytes.Equal(got[48:], sent) || sum(append(pseudo, got[40:]...)) != 0xffff {
		t.Errorf("answer: % x", got)
	}
	if n := a.Stats().Peers[0].Drops.Of(tunnel.DropExpired); n != 2 {
		t.Errorf("%d expired", n)
	}
	// An error about an error is not sent, a ping's is.
	a.dev.Inject(tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.ICMP, []byte{3, 1, 0, 0, 0, 0, 0, 0}))
	eventually(t, "it expires", func() bool { return a.Stats().Peers[0].Drops.Of(tunnel.DropExpired) == 3 })
	a.dev.Inject(tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.ICMP, []byte{8, 0, 0, 0, 0, 0, 0, 0}))
	if got := a.packets(t, 3); len(got) != 3 || got[2][28+9] != tunneltest.ICMP || got[2][28+20] != 8 {
		t.Errorf("answers: % x", got[2:])
	}
}

// sum is the RFC 1071 sum, 0xffff over a correct checksum.
func sum(b []byte) uint32 {
	var s uint32
	for i := range b {
		s += uint32(b[i]) << (8 * (1 - i%2))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return s
}

// TestSlowPeerIsBounded: a peer that takes nothing costs a bounded number of
// packets, and not the other peers' time.
func TestSlowPeerIsBounded(t *testing.T) {
	_, a, _, path := pair(t, tunnel.Limits{QueueBytes: 128 << 10})
	path.Stall()
	for range 1000 {
		a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, make([]byte, 1000)))
	}
	s := a.Stats().Peers[0]
	if q := s.Lanes[tunnel.DatagramLane].QueuedBytes; q > 128<<10 || q < 64<<10 {
		t.Errorf("queue holds %d bytes", q)
	}
	if s.Drops.Of(tunnel.DropQueueFull) == 0 {
		t.Errorf("drops: %v", s.Drops)
	}
}

func TestIdlePeerIsLetGo(t *testing.T) {
	net := tunneltest.NewNet()
	path := tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeB, path)
	t.Cleanup(net.Wait)
	told := make(chan tunnel.PeerID, 8)
	a := newNode(t, nodeA, net.Underlay(nodeA), tunnel.Limits{IdleTimeout: 50 * time.Millisecond}, func(p tunnel.PeerID) { told <- p })
	b := newNode(t, nodeB, net.Underlay(nodeB), tunnel.Limits{}, nil)
	net.Attach(nodeA, a.Tunnel)
	net.Attach(nodeB, b.Tunnel)
	for i := range 3 { // and comes back
		a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
		b.packets(t, i+1)
		if p := <-told; p != nodeB {
			t.Errorf("idle: %s", p)
		}
		eventually(t, "the stream ends", func() bool { return b.Stats().Peers[0].Streams == 0 })
		if s := a.Stats().Peers[0]; !s.Idle || s.Lanes[tunnel.DatagramLane].State != tunnel.LaneIdle {
			t.Errorf("stats: %+v", s)
		}
	}
	if n := net.Opened(); n != 3 {
		t.Errorf("%d carriers for 3 spells", n)
	}
	for _, err := range net.Errors() {
		t.Errorf("receive: %v", err)
	}
}

func TestSetRoutesClosesPeersThatLeft(t *testing.T) {
	net, a, b, _ := pair(t, tunnel.Limits{})
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
	b.dev.Inject(tunneltest.UDPPacket(addrB, addrA, []byte("x")))
	a.packets(t, 1)
	b.packets(t, 1)
	// b's blocks change: its carriers stay.
	moved := netip.MustParseAddrPort("10.244.9.1:9")
	for _, n := range []*node{a, b} {
		self := n == b
		n.SetRoutes(append(routes(map[bool]tunnel.PeerID{true: nodeB, false: nodeA}[self]),
			tunnel.Route{Prefix: netip.MustParsePrefix("10.244.9.0/24"), Peer: nodeB, Self: self}))
	}
	a.dev.Inject(tunneltest.UDPPacket(addrA, moved, []byte("x")))
	b.packets(t, 2)
	if n := net.Opened(); n != 2 {
		t.Errorf("%d carriers, want 2", n)
	}
	// b leaves: nothing of it stays, its streams end, its numbers count on.
	a.SetRoutes(routes(nodeA)[:1])
	eventually(t, "streams from b end", func() bool { return len(net.Errors()) == 1 })
	if s := a.Stats(); len(s.Peers) != 0 || s.Total.TxPackets != 2 || s.Total.RxPackets != 1 {
		t.Errorf("stats: %+v", s)
	}
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
	eventually(t, "no route", func() bool { return a.Stats().Total.Drops.Of(tunnel.DropNoRoute) == 1 })
}

func TestRunEndsWithContext(t *testing.T) {
	dev := tunneltest.NewDevice(func([]byte) error { return nil })
	tun := tunnel.New(tunnel.Config{Device: dev, Underlay: tunneltest.NewNet().Underlay("x")})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tun.Run(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := tun.Run(context.Background()); !errors.Is(err, tunnel.ErrClosed) {
		t.Errorf("second run: %v", err)
	}
	if err := tun.Receive(nodeB, 0, bytes.NewReader(nil)); !errors.Is(err, tunnel.ErrClosed) {
		t.Errorf("receive: %v", err)
	}
}
