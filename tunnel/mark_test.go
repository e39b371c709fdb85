package tunnel

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/virtio"
	"edgemesh/tunnel/virtio/virtiotest"
)

// super makes a queued TCP super-segment of n payload bytes.
func super(version, n, size int, flags byte) *packet {
	tcp := inettest.TCP(1000, 80)
	tcp[13] = flags
	body := make([]byte, n)
	for i := range body {
		body[i] = byte(i)
	}
	ip := inettest.IPv4(inet.ProtoTCP, nil, append(tcp, body...))
	if version == 6 {
		ip = inettest.IPv6(inet.ProtoTCP, append(tcp, body...))
	} else {
		inet.SetChecksum4(ip)
	}
	var h inet.Header
	if err := h.Parse(ip, 0); err != nil {
		panic(err)
	}
	h.SetPartial(ip)
	p := &packet{buf: make([]byte, fullLen), n: frameHdrLen + virtio.HeaderLen + len(ip)}
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
	virtio.Super(&h, size).Put(p.buf[frameHdrLen:])
	copy(p.ip(), ip)
	return p
}

// checksumsRight verifies a packet whose transport checksum is partial.
func checksumsRight(t *testing.T, p *packet) {
	t.Helper()
	ip := slices.Clone(p.ip())
	var h inet.Header
	if err := h.Parse(ip, 0); err != nil {
		t.Fatalf("not a packet: %v", err)
	}
	if h.Version == 4 && virtiotest.Sum(ip[:h.L4], 0) != 0xffff {
		t.Error("wrong header checksum")
	}
	inet.Complete(ip, h.L4, inet.TCPChecksum)
	if pseudo := virtiotest.PseudoSum(ip, h.L4, h.Proto); virtiotest.Sum(ip[h.L4:], uint32(pseudo)) != 0xffff {
		t.Error("wrong transport checksum")
	}
}

func TestTrim(t *testing.T) {
	const size = 1000
	for _, version := range []int{4, 6} {
		p := super(version, 2*size+300, size, 0x19) // FIN, PSH, ACK
		whole := slices.Clone(p.ip())
		for _, want := range []int{2 * size, size} {
			if !trim(p) {
				t.Fatalf("version %d: not trimmed to %d", version, want)
			}
			var h inet.Header
			ip := p.ip()
			if err := h.Parse(ip, 0); err != nil || !virtio.Get(p.buf[frameHdrLen:]).Valid(&h, ip) {
				t.Fatalf("version %d: %v, %+v", version, err, virtio.Get(p.buf[frameHdrLen:]))
			}
			at := h.L4 + h.L4Len
			if got := len(ip) - at; got != want {
				t.Errorf("version %d: %d bytes of payload, want %d", version, got, want)
			}
			if !bytes.Equal(ip[at:], whole[at:at+want]) {
				t.Error("the payload changed")
			}
			if ip[h.L4+13] != 0x10 {
				t.Errorf("flags %#x: the end of the stream went with the last segment", ip[h.L4+13])
			}
			if typ, n := frameHdr(p.buf); typ != framePacket || frameHdrLen+n != p.n {
				t.Errorf("frame of %d bytes, packet of %d", n, p.n)
			}
			checksumsRight(t, p)
		}
		if v := virtio.Get(p.buf[frameHdrLen:]); v.GSOType != virtio.GSONone {
			t.Errorf("one segment is left, and its type is %d", v.GSOType)
		}
		if trim(p) {
			t.Error("a single segment was trimmed")
		}
	}
	udp := pkt(1, 100)
	if trim(udp) {
		t.Error("what is no super-segment was trimmed")
	}
}

// segments are the packets that a frame stands for, whole.
func segments(t *testing.T, p *packet) (out [][]byte) {
	t.Helper()
	b := slices.Clone(p.buf[frameHdrLen:p.n])
	var h inet.Header
	v, ok := virtio.Check(b, &h)
	if !ok {
		t.Fatalf("not valid: %+v", virtio.Get(b))
	}
	var s virtio.Splitter
	if !s.Split(b, v, &h, true) {
		if !virtio.Complete(b) {
			t.Fatal("its checksum cannot be completed")
		}
		return [][]byte{slices.Clone(b[virtio.HeaderLen:])}
	}
	for f := s.Next(); f != nil; f = s.Next() {
		out = append(out, slices.Clone(f[virtio.HeaderLen:]))
	}
	return out
}

// However a super-segment is cut, its pieces stand for the same packets as the whole.
func TestCut(t *testing.T) {
	const size = 1000
	for _, version := range []int{4, 6} {
		for _, most := range []int{1, 1500, 3100, 20_000, 1 << 20} {
			for _, payload := range []int{size + 1, 2 * size, 30*size + 300} {
				p := super(version, payload, size, 0xf9) // CWR, ECE, URG, PSH, FIN, ACK
				p.ip()[1] = 2
				if version == 4 {
					inet.SetChecksum4(p.ip())
				}
				v := virtio.Get(p.buf[frameHdrLen:])
				v.GSOType |= virtio.GSOECN
				v.Put(p.buf[frameHdrLen:])
				p.flow, p.at = 7, 8
				want, ps := segments(t, p), newPools()
				var got [][]byte
				for piece := cut(ps, p, most); piece != nil; piece = cut(ps, p, most) {
					if n := len(segments(t, piece)); piece.n > most && n > leastPiece || piece.flow != 7 || piece.at != 8 {
						t.Fatalf("a piece of %d bytes, at most %d, %d segments; flow %d, at %d", piece.n, most, n, piece.flow, piece.at)
					}
					got = append(got, segments(t, piece)...)
				}
				got = append(got, segments(t, p)...)
				if !slices.EqualFunc(got, want, bytes.Equal) {
					t.Errorf("version %d, %d bytes, at most %d: %d segments are not the %d of the whole", version, payload, most, len(got), len(want))
				}
			}
		}
	}
	if p := pkt(1, 3000); cut(newPools(), p, 1) != nil {
		t.Error("what is no super-segment was cut")
	}
}

// A flow on a slow path is slowed down by its pieces, not once per super-segment; others get their turn between them.
func TestPieces(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 30 * ms, Interval: 150 * ms}, pieces: pieces{2000, newPools()}}
	var late chain
	for range 10 {
		q.push(super(4, 30000, 1000, 0x10))
	}
	ping := pkt(2, 100)
	ping.flow = 99
	popped, at := 0, -1
	for now := 100 * ms; ; now += 5 * ms {
		p := q.pop(now, &late)
		if p == nil {
			break
		}
		if popped++; popped == 20 {
			q.push(ping)
		}
		if p == ping {
			at = popped
		} else if n := len(segments(t, p)); n > leastPiece {
			t.Fatalf("a piece of %d segments", n)
		}
	}
	if popped != 1+300/leastPiece || q.trimmed < 5 || late.head != nil || q.charged != 0 || q.held.Load() != 0 {
		t.Errorf("%d packets sent, of 300 segments, %d lost a segment, %d bytes still charged", popped, q.trimmed, q.charged)
	}
	if at > 22+2000/1000 {
		t.Errorf("a packet of another flow left as number %d", at)
	}
}

func TestMarkCE(t *testing.T) {
	for _, version := range []int{4, 6} {
		for ecn, want := range []bool{false, true, true, true} {
			p := super(version, 3000, 1000, 0x10)
			ip := p.ip()
			field := func() byte { return ip[1] >> 4 & 3 }
			if version == 4 {
				field = func() byte { return ip[1] & 3 }
				ip[1] = 0xb8 | byte(ecn)
				inet.SetChecksum4(ip)
			} else {
				binary.BigEndian.PutUint16(ip, 0x6b80|uint16(ecn)<<4)
			}
			before := slices.Clone(ip)
			if got := markCE(ip); got != want {
				t.Errorf("version %d, ECN %d: marked %v", version, ecn, got)
			}
			if want && field() != 3 || !want && !bytes.Equal(ip, before) {
				t.Errorf("version %d, ECN %d: became %d", version, ecn, field())
			}
			checksumsRight(t, p)
		}
	}
}

// A standing queue of a flow costs segments, or marks, and no whole super-segment.
func TestDelayTrimsAndMarks(t *testing.T) {
	for _, ect := range []byte{0, 2} {
		q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 30 * ms, Interval: 150 * ms}}
		var late chain
		for range 200 {
			p := super(4, 30000, 1000, 0x10)
			p.ip()[1] = ect
			inet.SetChecksum4(p.ip())
			q.push(p)
		}
		sent := 0
		for now := 100 * ms; ; now += 10 * ms {
			p := q.pop(now, &late)
			if p == nil {
				break
			}
			checksumsRight(t, p)
			sent++
		}
		if sent != 200 || late.head != nil {
			t.Errorf("ECN %d: %d of 200 super-segments sent", ect, sent)
		}
		if marks := q.marked > 5; marks != (ect != 0) {
			t.Errorf("ECN %d: %d marked", ect, q.marked)
		}
		if trims := q.trimmed > 5; trims != (ect == 0) {
			t.Errorf("ECN %d: %d trimmed", ect, q.trimmed)
		}
	}
}
