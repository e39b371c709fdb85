package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPacketsCrossInBothDirections(t *testing.T) {
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
	fair.Eventually(t, patience, "a counted five packets", fair.True(func() bool { return a.Stats().Total.TxPackets == 5 }))
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
	fair.Eventually(t, patience, "the lane connects", fair.True(func() bool {
		peers := a.Stats().Peers // none until the packet was read
		return len(peers) == 1 && peers[0].Lanes[tunnel.DatagramLane].State == tunnel.LaneConnecting
	}))
	net.SetPath(nodeA, nodeB, path)
	fair.Eventually(t, patience, "it arrives", fair.True(func() bool {
		a.PathChanged(nodeB)
		return b.Stats().Total.RxPackets == 1
	}))
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
	fair.Eventually(t, patience, "it expires", fair.True(func() bool { return a.Stats().Peers[0].Drops.Of(tunnel.DropExpired) == 3 }))
	a.dev.Inject(tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.ICMP, []byte{8, 0, 0, 0, 0, 0, 0, 0}))
	if got := a.packets(t, 3); len(got) != 3 || got[2][28+9] != tunneltest.ICMP || got[2][28+20] != 8 {
		t.Errorf("answers: % x", got[2:])
	}
}

// A pod that sends to nobody without end takes no answer from another pod.
func TestUnreachablesAreShared(t *testing.T) {
	a := alone(t, tunnel.Limits{})
	nobody := netip.MustParseAddrPort("10.244.99.9:80")
	for range 3000 {
		a.dev.Inject(tunneltest.UDPPacket(addrA, nobody, []byte("x")))
	}
	other := netip.AddrPortFrom(addrA.Addr().Next(), 7)
	a.dev.Inject(tunneltest.UDPPacket(other, nobody, []byte("x")))
	answers := func(to netip.Addr) (n int) {
		for _, p := range a.packets(t, 0) {
			if bytes.Equal(p[16:20], to.AsSlice()) {
				n++
			}
		}
		return n
	}
	fair.Eventually(t, patience, "the other pod is answered", fair.True(func() bool { return answers(other.Addr()) == 1 }))
	if n := answers(addrA.Addr()); n < 100 || n > 1000 { // 100 a second
		t.Errorf("the flood has %d answers of 3000", n)
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
	var s tunnel.PeerStats
	// The lane may begin late, and take what fits into the carrier from a full queue: the next packets fill it again.
	fair.Eventually(t, patience, "the queue is full", fair.True(func() bool {
		for range 1000 {
			a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, make([]byte, 1000)))
		}
		s = a.Stats().Peers[0]
		q := s.Lanes[tunnel.DatagramLane].QueuedBytes
		if q > 128<<10 {
			t.Errorf("queue holds %d bytes", q)
		}
		return q >= 64<<10
	}))
	if s.Drops.Of(tunnel.DropQueueFull) == 0 {
		t.Errorf("drops: %v", s.Drops)
	}
}

// TestSlowPeerCostsOthersNothing: while one peer takes nothing, and its queue overflows, all that another one is sent arrives, and
// its super-segments stay whole.
func TestSlowPeerCostsOthersNothing(t *testing.T) {
	const nodeC = tunnel.PeerID("c")
	addrC := netip.MustParseAddrPort("10.244.3.7:3000")
	net, a, _, slow := pair(t, tunnel.Limits{QueueBytes: 128 << 10})
	c := newNode(t, nodeC, net.Underlay(nodeC), tunnel.Limits{}, nil)
	net.Attach(nodeC, c.Tunnel)
	fast := tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeC, fast)
	net.SetPath(nodeC, nodeA, fast)
	for id, n := range map[tunnel.PeerID]*node{nodeA: a, nodeC: c} {
		n.SetRoutes(append(routes(id), tunnel.Route{Prefix: netip.MustParsePrefix("10.244.3.0/24"), Peer: nodeC, Self: id == nodeC}))
	}
	slow.Stall()
	const turns, each = 200, 20
	for turn := range turns {
		for range 3 * each {
			a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, make([]byte, 1000)))
		}
		for range each {
			a.dev.Inject(tunneltest.UDPPacket(addrA, addrC, make([]byte, 1000)))
		}
		c.packets(t, (turn+1)*each)
	}
	whole := tunneltest.TCPPacket(addrA, addrC, make([]byte, 60000))
	a.dev.InjectFrame(append([]byte{1, 1, 0, 8, 0xb4, 5, 20, 0, 16, 0}, whole...))
	if got := c.packets(t, turns*each+1); len(got[turns*each]) != len(whole) {
		t.Errorf("a super-segment of %d bytes came as %d first", len(whole), len(got[turns*each]))
	}
	for _, p := range a.Stats().Peers {
		if full := p.Drops.Of(tunnel.DropQueueFull); (full > 0) != (p.Peer == nodeB) {
			t.Errorf("peer %s: %d dropped as its queue was full", p.Peer, full)
		}
	}
}

// TestMarksAreCounted: packets that may be marked are, where others would be dropped
// for delay, and both are notified.
func TestMarksAreCounted(t *testing.T) {
	for _, ecn := range []byte{0, 2} {
		_, a, _, path := pair(t, tunnel.Limits{DelayTarget: time.Millisecond, DelayInterval: time.Millisecond})
		path.Slow(2 * time.Millisecond) // twice the delay that is allowed, between one batch and the next
		var total tunnel.Counters
		fair.Eventually(t, patience, "a packet is marked or dropped", fair.True(func() bool {
			for range 1000 {
				b := tunneltest.UDPPacket(addrA, addrB, make([]byte, 1000))
				b[1] = ecn
				a.dev.Inject(b)
			}
			total = a.Stats().Total
			return total.Marked+total.Drops.Of(tunnel.DropDelay) > 0
		}))
		if marked, dropped := total.Marked, total.Drops.Of(tunnel.DropDelay); (marked > 0) != (ecn != 0) || (dropped > 0) != (ecn == 0) {
			t.Errorf("ECN %d: %d marked, %d dropped for delay", ecn, marked, dropped)
		}
	}
}

// TestManyDeadPeersAreBounded: all of them together do not take the node's memory.
func TestManyDeadPeersAreBounded(t *testing.T) {
	const peers, least, total = 20, 128 << 10, 1 << 20
	net, a, _, _ := pair(t, tunnel.Limits{TotalBytes: total, WaitTime: time.Minute})
	net.SetPath(nodeA, nodeB, nil)
	rs := routes(nodeA)
	dead := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, byte(i), 5}), 1)
	}
	for i := range peers {
		rs = append(rs, tunnel.Route{Prefix: netip.PrefixFrom(dead(i).Addr(), 24), Peer: tunnel.PeerID(dead(i).String())})
	}
	a.SetRoutes(rs)
	for i := range peers {
		for range 400 { // 2 KiB each
			a.dev.Inject(tunneltest.UDPPacket(addrA, dead(i), make([]byte, 1000)))
		}
	}
	held := 0
	for _, p := range a.Stats().Peers {
		held += p.Lanes[tunnel.DatagramLane].QueuedBytes
	}
	if held < total || held > total+peers*least {
		t.Errorf("%d bytes held", held)
	}
}

func TestIdlePeerIsDisconnected(t *testing.T) {
	net := tunneltest.NewNet()
	path := tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeB, path)
	t.Cleanup(net.Wait)
	idle := make(chan tunnel.PeerID, 8)
	a := newNode(t, nodeA, net.Underlay(nodeA), tunnel.Limits{IdleTimeout: 50 * time.Millisecond}, func(p tunnel.PeerID) { idle <- p })
	b := newNode(t, nodeB, net.Underlay(nodeB), tunnel.Limits{}, nil)
	net.Attach(nodeA, a.Tunnel)
	net.Attach(nodeB, b.Tunnel)
	for i := range 3 { // and comes back
		a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
		b.packets(t, i+1)
		if p := <-idle; p != nodeB {
			t.Errorf("idle: %s", p)
		}
		fair.Eventually(t, patience, "the stream ends", fair.True(func() bool { return b.Stats().Peers[0].Streams == 0 }))
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
	fair.Eventually(t, patience, "a counted what it wrote", fair.True(func() bool { return a.Stats().Total.TxPackets == 2 }))
	// b leaves: nothing of it stays, its streams end, its numbers count on.
	a.SetRoutes(routes(nodeA)[:1])
	// That to b ends in order, or with a reset if the writer does not know yet that its last Write is over.
	fair.Eventually(t, patience, "streams from b end", fair.True(func() bool {
		return slices.ContainsFunc(net.Errors(), func(err error) bool { return errors.Is(err, tunnel.ErrClosed) })
	}))
	if s := a.Stats(); len(s.Peers) != 0 || s.Total.TxPackets != 2 || s.Total.RxPackets != 1 {
		t.Errorf("stats: %+v", s)
	}
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
	fair.Eventually(t, patience, "no route", fair.True(func() bool { return a.Stats().Total.Drops.Of(tunnel.DropNoRoute) == 1 }))
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
	if err := tun.Receive(nodeB, 0, tunneltest.NewStream(bytes.NewReader(nil), nil)); !errors.Is(err, tunnel.ErrClosed) {
		t.Errorf("receive: %v", err)
	}
}

// TestQuietLaneStays: changes of path do not make a lane connect that has nothing
// to send; its next packet does.
func TestQuietLaneStays(t *testing.T) {
	net, a, b, _ := pair(t, tunnel.Limits{QuietTime: time.Millisecond})
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
	b.packets(t, 1)
	fair.Eventually(t, patience, "the lane is quiet", fair.True(func() bool { return a.Stats().Peers[0].LastUse > 5*time.Millisecond }))
	better := tunneltest.NewPath(64 << 10)
	net.SetPath(nodeA, nodeB, better)
	a.PathChanged(nodeB)
	a.PathLost(nodeB) // of another carrier than this lane's
	if s := a.Stats().Peers[0].Lanes[tunnel.DatagramLane]; s.State != tunnel.LaneUp || s.Epoch != 1 {
		t.Errorf("quiet lane after a change of path: %+v", s)
	}
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
	b.packets(t, 2)
	fair.Eventually(t, patience, "it moves once it is used", fair.True(func() bool {
		a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("x")))
		return a.Stats().Peers[0].Lanes[tunnel.DatagramLane].Epoch > 1
	}))
}

// TestEmptyCarrierIsNoUse: a carrier without packets that ends does not make an
// idle peer look used.
func TestEmptyCarrierIsNoUse(t *testing.T) {
	a := alone(t, tunnel.Limits{})
	s := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	s.frame(3, nil)
	s.w.Close()
	if err := <-s.end; err != nil {
		t.Fatal(err)
	}
	if p := a.Stats().Peers[0]; !p.Idle {
		t.Errorf("used by a carrier without packets: %+v", p)
	}
}

// The carrier for answers is opened when a peer's carrier for TCP arrives, before there is any: it is ready for the first of them. One
// for datagrams, which may have no answers, has none opened. Without packets it ends as any other.
func TestAnswersAreExpected(t *testing.T) {
	net, a, _, _ := pair(t, tunnel.Limits{IdleTimeout: 2 * time.Second}) // longer than a carrier takes to arrive on a busy machine
	state := func(lane tunnel.Lane) tunnel.LaneState { return a.Stats().Peers[0].Lanes[lane].State }
	d := a.raw(nodeB, tunnel.DatagramLane, 1, 1, 0)
	s := a.raw(nodeB, tunnel.StreamLane, 1, 1, 0)
	fair.Eventually(t, patience, "the carrier for answers", fair.True(func() bool { return net.Opened() > 0 }))
	fair.Eventually(t, patience, "its end", fair.True(func() bool { return state(tunnel.StreamLane) == tunnel.LaneIdle }))
	time.Sleep(200 * time.Millisecond) // sleep: none is opened meanwhile
	if n := net.Opened(); n > 2 || state(tunnel.DatagramLane) != tunnel.LaneIdle {
		t.Errorf("%d carriers were opened, want one in each direction", n)
	}
	for _, x := range []*raw{d, s} {
		_ = x.w.Close()
		if err := <-x.end; err != nil {
			t.Error(err)
		}
	}
}
