package tunnel

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/virtio"
)

// joiner is a device that takes UDP super-segments and keeps what is written.
type joiner struct{ frames [][]byte }

func (j *joiner) Read([]byte) (int, error) { return 0, os.ErrClosed }
func (j *joiner) Close() error             { return nil }
func (j *joiner) UDPSegments() bool        { return true }
func (j *joiner) Pending() bool            { return false }
func (j *joiner) Write(b []byte) error {
	j.frames = append(j.frames, bytes.Clone(b))
	return nil
}

func joined(t testing.TB) (*Tunnel, *joiner, *DatagramSink) {
	t.Helper()
	dev := &joiner{}
	tun := New(Config{Device: dev, Log: slog.New(slog.DiscardHandler)})
	tun.SetRoutes([]Route{
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Peer: "p"},
		{Prefix: netip.MustParsePrefix("fd00::/16"), Peer: "p"},
		{Prefix: netip.MustParsePrefix("192.168.0.0/16"), Self: true},
		{Prefix: netip.MustParsePrefix("fe00::/16"), Self: true},
	})
	t.Cleanup(func() { tun.Close() })
	return tun, dev, tun.Datagrams("p")
}

// flowPacket is packet number i of one of the flows, its checksum partial.
func flowPacket(v6 bool, flow, i, n int) []byte {
	data := bytes.Repeat([]byte{byte(i)}, n)
	l4 := append(inettest.UDP(uint16(1000+flow), 53), data...)
	binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	var p []byte
	h := inet.Header{Version: 4, Proto: inet.ProtoUDP, L4: 20}
	if v6 {
		p = inettest.IPv6(17, l4)
		copy(p[8:], netip.MustParseAddr("fd00::1").AsSlice())
		copy(p[24:], netip.MustParseAddr("fe00::1").AsSlice())
		h = inet.Header{Version: 6, Proto: inet.ProtoUDP, L4: 40}
	} else {
		p = inettest.IPv4(17, nil, l4)
		copy(p[12:], []byte{10, 0, 0, 1, 192, 168, 0, 1})
		binary.BigEndian.PutUint16(p[4:], uint16(i))
	}
	h.SetLength(p)
	return p
}

// expand returns the packets that frames stand for.
func expand(t *testing.T, tun *Tunnel, frames [][]byte) (out [][]byte) {
	t.Helper()
	for _, f := range frames {
		var h inet.Header
		if err := h.Parse(f[virtio.HeaderLen:], 0); err != nil || !virtio.Get(f).Valid(&h, f[virtio.HeaderLen:]) {
			t.Fatalf("a frame of %d bytes is not valid: %v, %+v", len(f), err, virtio.Get(f))
		}
		p := tun.pools.get(fullLen)
		p.n = frameHdrLen + copy(p.buf[frameHdrLen:], f)
		var l pieceList
		if l.begin(2000); !l.cut(p) {
			t.Fatal("not cut")
		}
		for d := l.next(2000, 2000, nil); d != nil; d = l.next(2000, 2000, nil) {
			if d[0] != kindPartial {
				t.Errorf("kind %d", d[0])
			}
			out = append(out, d[1:])
		}
	}
	return out
}

func TestJoin(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		tun, dev, s := joined(t)
		var want [][]byte
		send := func(p []byte) {
			want = append(want, p)
			s.Datagram(append([]byte{kindPartial}, p...))
		}
		for i := range 10 {
			send(flowPacket(v6, 1, i, 1200))
		}
		send(flowPacket(v6, 1, 10, 300)) // shorter: the last of its super-segment
		send(flowPacket(v6, 1, 11, 300)) // begins the next
		send(flowPacket(v6, 1, 12, 400)) // longer: the next
		send(flowPacket(v6, 2, 13, 400)) // of another flow
		send(flowPacket(v6, 2, 14, 0))   // without data
		send(flowPacket(v6, 2, 15, 400))
		if !v6 {
			p := flowPacket(v6, 2, 90, 400) // fragments may be made on its path: not the next identification
			send(p)
		} else {
			p := flowPacket(v6, 2, 0, 400)
			p[7]-- // hop limit
			send(p)
		}
		s.Flush()
		if got := expand(t, tun, dev.frames); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("v6 %v: %d packets, want %d", v6, len(got), len(want))
		}
		if n := len(dev.frames); n != 7 {
			t.Errorf("v6 %v: %d writes, want 7", v6, n)
		}
		if c := tun.Stats().Total; c.RxPackets != uint64(len(want)) || c.RxBytes != total(want) {
			t.Errorf("v6 %v: counted %d packets of %d bytes, want %d of %d", v6, c.RxPackets, c.RxBytes, len(want), total(want))
		}
	}
}

func total(ps [][]byte) (n uint64) {
	for _, p := range ps {
		n += uint64(len(p))
	}
	return n
}

// Whatever is mixed, flows keep their order and nothing is lost or changed.
func TestJoinRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tun, dev, s := joined(t)
		var want [][]byte
		for i := range 200 {
			p := flowPacket(rnd.IntN(8) == 0, rnd.IntN(2)+rnd.IntN(10)/9*7, i, 1400-rnd.IntN(5)/4*rnd.IntN(1300))
			want = append(want, p)
			s.Datagram(append([]byte{kindPartial}, p...))
			if rnd.IntN(100) == 0 {
				s.Flush()
			}
		}
		s.Flush()
		if got := expand(t, tun, dev.frames); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("%d packets, want %d", len(got), len(want))
		}
		for _, f := range dev.frames {
			if len(f) > virtio.HeaderLen+65535 {
				t.Fatalf("a frame of %d bytes", len(f))
			}
		}
	}
}

// A packet whose checksum is finished is nothing a kernel would cut: it goes alone.
func TestFinishedChecksumsAreNotJoined(t *testing.T) {
	_, dev, s := joined(t)
	for i := range 5 {
		s.Datagram(append([]byte{0}, flowPacket(false, 1, i, 100)...))
	}
	s.Flush()
	if len(dev.frames) != 5 || dev.frames[0][0] != 0 {
		t.Errorf("%d writes, flags %d", len(dev.frames), dev.frames[0][0])
	}
}

func FuzzDatagram(f *testing.F) {
	p := flowPacket(false, 1, 1, 50)
	f.Add(append([]byte{0}, p...), append([]byte{1}, p...))
	f.Add(append([]byte{2, 0, 1}, p[:30]...), append([]byte{4, 0, 1}, p[30:]...))
	f.Add(append([]byte{1}, flowPacket(true, 1, 1, 50)...), append([]byte{1}, flowPacket(true, 1, 2, 40)...))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		tun, dev, s := joined(t)
		for _, d := range [][]byte{a, b, a, a, b} {
			s.Datagram(bytes.Clone(d))
		}
		s.Flush()
		s.Close()
		for _, fr := range dev.frames {
			var h inet.Header
			ip := fr[virtio.HeaderLen:]
			if err := h.Parse(ip, tun.seed); err != nil || !virtio.Get(fr).Valid(&h, ip) {
				t.Fatalf("not valid: %x", fr)
			}
			if r := tun.table.Load().admitReceive(tun.peer("p"), &h); r != 0 {
				t.Fatalf("not admitted: %v", r)
			}
		}
		c := tun.Stats().Total
		if c.RxPackets+c.Drops.Total() > 5+5 {
			t.Fatalf("counted %+v", c)
		}
	})
}

// BenchmarkDatagrams takes one packet through both directions, without device, queue and socket.
func BenchmarkDatagrams(b *testing.B) {
	for name, size := range map[string]int{"whole": 1472, "halves": 1200} {
		b.Run(name, func(b *testing.B) {
			tun, _, s := joined(b)
			dev := &nowhere{}
			tun.cfg.Device = dev
			var l pieceList
			p := flowPacket(false, 1, 1, 1372)
			binary.BigEndian.PutUint16(p[6:], 0x4000)
			f := append((&[virtio.HeaderLen]byte{1, 0, 0, 0, 0, 0, 20, 0, 6, 0})[:], p...)
			pkt := tun.pools.get(smallLen)
			pkt.n = frameHdrLen + copy(pkt.buf[frameHdrLen:], f)
			b.ReportAllocs()
			b.SetBytes(int64(len(p)))
			for i := 0; b.Loop(); i++ {
				if l.begin(size); !l.cut(pkt) {
					b.Fatal("not cut")
				}
				for d := l.next(size, size, nil); d != nil; d = l.next(size, size, nil) {
					s.Datagram(d)
				}
				if i%32 == 31 {
					s.Flush()
				}
			}
			s.Flush()
			if dev.bytes == 0 {
				b.Error("nothing arrived")
			}
		})
	}
}

type nowhere struct{ bytes int }

func (n *nowhere) Read([]byte) (int, error) { return 0, os.ErrClosed }
func (n *nowhere) Close() error             { return nil }
func (n *nowhere) UDPSegments() bool        { return true }
func (n *nowhere) Pending() bool            { return false }
func (n *nowhere) Write(b []byte) error {
	n.bytes += len(b)
	return nil
}
