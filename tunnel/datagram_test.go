package tunnel_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
	"edgemesh/tunnel/virtio"
)

// datagramPair is a pair with an underlay that takes datagrams of up to size bytes.
func datagramPair(t *testing.T, size int) (a, b *node, d *taker) {
	t.Helper()
	_, a, b, _ = pair(t, tunnel.Limits{})
	d = newTaker(t, a, nodeA, b, nodeB)
	d.room = size
	d.upForDatagrams()
	return a, b, d
}

// pattern is data in which every place looks different.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8*31)
	}
	return b
}

func TestDatagramsCarryAllButTCP(t *testing.T) {
	a, b, d := datagramPair(t, 1400)
	udp := tunneltest.UDPPacket(addrA, addrB, pattern(1000))
	ping := tunneltest.Packet(addrA6.Addr(), addrB6.Addr(), tunneltest.ICMPv6, pattern(64))
	tcp := tunneltest.TCPPacket(addrA, addrB, pattern(900))
	for _, p := range [][]byte{udp, ping, tcp} {
		a.dev.Inject(p)
	}
	got := b.packets(t, 3)
	for _, want := range [][]byte{udp, ping, tcp} {
		if !slices.ContainsFunc(got, func(p []byte) bool { return bytes.Equal(p, want) }) {
			t.Errorf("a packet of protocol %d and %d bytes did not arrive as it was", want[9], len(want))
		}
	}
	if n, longest := d.datagrams(); n != 2 || longest != len(udp)+1 {
		t.Errorf("%d datagrams, the longest of %d bytes; want 2 and %d", n, longest, len(udp)+1)
	}
	if s := b.Stats(); s.Total.RxPackets != 3 || s.Total.RxBytes != uint64(len(udp)+len(ping)+len(tcp)) || s.Total.Drops.Total() != 0 {
		t.Errorf("counted %+v", s.Total)
	}
}

func TestLongPacketIsSplitInTwo(t *testing.T) {
	for _, swap := range []bool{false, true} {
		a, b, d := datagramPair(t, 1200)
		var first []byte
		d.pass = func(p []byte) [][]byte {
			switch {
			case !swap:
				return [][]byte{p}
			case first == nil:
				first = p
				return nil
			}
			both := [][]byte{p, first}
			first = nil
			return both
		}
		var want [][]byte
		for n := 1172; n < 2300; n += 97 {
			want = append(want, tunneltest.UDPPacket(addrA, addrB, pattern(n)))
		}
		for _, p := range want {
			a.dev.Inject(p)
		}
		for i, p := range b.packets(t, len(want)) {
			if !bytes.Equal(p, want[i]) {
				t.Errorf("swapped %v: packet %d of %d bytes arrived otherwise (%d)", swap, i, len(want[i]), len(p))
			}
		}
		if n, longest := d.datagrams(); n != 2*len(want) || longest > 1200 {
			t.Errorf("%d datagrams, the longest of %d bytes, for %d packets", n, longest, len(want))
		}
	}
}

// A packet one half of which is lost is lost alone, and counted.
func TestLostHalf(t *testing.T) {
	a, b, d := datagramPair(t, 1200)
	n := 0
	d.pass = func(p []byte) [][]byte {
		if n++; n == 3 || n == 8 { // a first and a second half
			return nil
		}
		return [][]byte{p}
	}
	var want [][]byte
	for i := range 70 { // more than there are places for halves
		p := tunneltest.UDPPacket(addrA, addrB, append(pattern(1400), byte(i)))
		a.dev.Inject(p)
		if i != 1 && i != 3 {
			want = append(want, p)
		}
	}
	for i, p := range b.packets(t, len(want)) {
		if !bytes.Equal(p, want[i]) {
			t.Fatalf("packet %d is another one", i)
		}
	}
	fair.Eventually(t, patience, "both are counted", fair.True(func() bool { return b.Stats().Total.Drops.Of(tunnel.DropHalf) == 2 }))
}

// What does not fit two datagrams goes as a frame, as everything does where none fits.
func TestTooLongForDatagrams(t *testing.T) {
	a, b, d := datagramPair(t, 700)
	long := tunneltest.UDPPacket(addrA, addrB, pattern(1400))
	short := tunneltest.UDPPacket(addrA, addrB, pattern(1300))
	a.dev.Inject(long)
	a.dev.Inject(short)
	got := b.packets(t, 2)
	for _, want := range [][]byte{long, short} {
		if !slices.ContainsFunc(got, func(p []byte) bool { return bytes.Equal(p, want) }) {
			t.Errorf("%d bytes did not arrive as they were", len(want))
		}
	}
	if n, _ := d.datagrams(); n != 2 {
		t.Errorf("%d datagrams, want the two of the short one", n)
	}
	d.set(func() { d.room = 0 })
	a.dev.Inject(long)
	b.packets(t, 3)
	if n, _ := d.datagrams(); n != 2 || a.Stats().Total.Drops.Total() != 0 {
		t.Errorf("%d datagrams, drops %v", n, a.Stats().Total.Drops)
	}
}

// uso is a UDP super-segment as the kernel hands it over.
func uso(v6 bool, data []byte, seg int) []byte {
	p, l4 := tunneltest.UDPPacket(addrA, addrB, data), 20
	if v6 {
		p, l4 = tunneltest.UDPPacket(addrA6, addrB6, data), 40
	}
	le := binary.LittleEndian
	h := make([]byte, virtio.HeaderLen)
	h[0], h[1] = 1, 5
	le.PutUint16(h[2:], uint16(l4+8))
	le.PutUint16(h[4:], uint16(seg))
	le.PutUint16(h[6:], uint16(l4))
	le.PutUint16(h[8:], 6)
	return append(h, p...)
}

func TestSuperSegmentIsCut(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{1472, 1200} {
			a, b, _ := datagramPair(t, size)
			data := pattern(7*1400 + 300)
			a.dev.InjectFrame(uso(v6, data, 1400))
			var got []byte
			hdr := 28
			if v6 {
				hdr = 48
			}
			for i, p := range b.packets(t, 8) {
				if len(p)-hdr != min(1400, len(data)-i*1400) {
					t.Fatalf("packet %d has %d bytes", i, len(p))
				}
				got = append(got, p[hdr:]...)
				if !v6 && binary.BigEndian.Uint16(p[4:]) != uint16(i) {
					t.Errorf("packet %d has the identification %x", i, p[4:6])
				}
			}
			if !bytes.Equal(got, data) {
				t.Errorf("v6 %v, size %d: the data is another", v6, size)
			}
			for i, f := range b.frames {
				checkPartial(t, f, i)
			}
		}
	}
}

// checkPartial says whether the frame of a UDP packet leaves the right checksum to
// the kernel.
func checkPartial(t *testing.T, f []byte, i int) {
	t.Helper()
	p, l4, sum := f[virtio.HeaderLen:], 20, uint32(tunneltest.UDP)
	if p[0]>>4 == 6 {
		l4 = 40
	}
	for j := l4 - 8; j < l4; j += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[j:]))
	}
	if l4 == 40 {
		for j := 8; j < 32; j += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[j:]))
		}
	}
	sum += uint32(len(p) - l4)
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	if got := uint32(binary.BigEndian.Uint16(p[l4+6:])); f[0] != 1 || got != sum {
		t.Errorf("frame %d: flags %d, partial checksum %#x, want %#x", i, f[0], got, sum)
	}
	if n := int(binary.BigEndian.Uint16(p[l4+4:])); n != len(p)-l4 {
		t.Errorf("frame %d: UDP length %d of %d", i, n, len(p)-l4)
	}
}

func TestMalformedDatagrams(t *testing.T) {
	quarantined := make(chan string, 1)
	net := tunneltest.NewNet()
	n := startNode(t, nodeB, tunnel.Config{
		Underlay:   net.Underlay(nodeB),
		Quarantine: func(_ tunnel.PeerID, _ time.Duration, why string) { quarantined <- why },
	})
	s := n.Datagrams(nodeA)
	udp := tunneltest.UDPPacket(addrA, addrB, []byte("hello"))
	bad := map[string][]byte{
		"empty":                {},
		"unknown kind":         append([]byte{8}, udp...),
		"both halves":          append([]byte{6, 0, 1}, udp...),
		"half without a part":  {2, 0, 1},
		"not IP":               {0, 1, 2, 3},
		"cut":                  append([]byte{0}, udp[:len(udp)-1]...),
		"checksum of nothing":  append([]byte{1}, tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.ICMP, make([]byte, 8))...),
		"longer than it says":  append(append([]byte{0}, udp...), 0),
		"UDP header cut":       append([]byte{0}, tunneltest.Packet(addrA.Addr(), addrB.Addr(), tunneltest.UDP, make([]byte, 4))...),
		"halves not one whole": nil,
	}
	for what, b := range bad {
		before := n.Stats().Total.Drops
		if b == nil {
			s.Datagram([]byte{2, 0, 9, 0x45, 0, 0})
			s.Datagram([]byte{4, 0, 9, 1, 2, 3})
		} else {
			s.Datagram(bytes.Clone(b))
		}
		s.Flush()
		after := n.Stats().Total.Drops
		if after.Total() != before.Total()+1 {
			t.Errorf("%s: drops went from %v to %v", what, before, after)
		}
	}
	foreign := tunneltest.UDPPacket(addrB, addrB, nil)
	away := tunneltest.UDPPacket(addrA, addrA, nil)
	s.Datagram(append([]byte{0}, foreign...))
	s.Datagram(append([]byte{0}, away...))
	if d := n.Stats().Total.Drops; d.Of(tunnel.DropSourceNotPeer) != 1 || d.Of(tunnel.DropDestNotOwn) != 1 {
		t.Errorf("foreign addresses: %v", d)
	}
	for range 20 {
		s.Datagram(nil)
	}
	if why := <-quarantined; why == "" {
		t.Error("quarantined without a reason")
	}
	s.Flush()
	s.Close()
	if len(n.frames) != 0 {
		t.Errorf("%d frames reached the device", len(n.frames))
	}
}

// A sink made before the peer has a route, and one whose peer left and came back,
// deliver all the same.
func TestSinkOutlivesItsPeer(t *testing.T) {
	net := tunneltest.NewNet()
	n := newNode(t, nodeB, net.Underlay(nodeB), tunnel.Limits{}, nil)
	all := routes(nodeB)
	n.SetRoutes(nil)
	s := n.Datagrams(nodeA)
	udp := append([]byte{0}, tunneltest.UDPPacket(addrA, addrB, []byte("hello"))...)
	for i := range 3 {
		s.Datagram(bytes.Clone(udp))
		s.Flush()
		if got := len(n.frames); got != i {
			t.Fatalf("%d frames without a route, round %d", got, i)
		}
		n.SetRoutes(all)
		s.Datagram(bytes.Clone(udp))
		s.Flush()
		if got := len(n.frames); got != i+1 {
			t.Fatalf("%d frames with a route, round %d; %v", got, i, n.Stats().Total.Drops)
		}
		n.SetRoutes(nil)
	}
	s.Close()
}
