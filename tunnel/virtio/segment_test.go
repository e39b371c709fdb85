package virtio_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
	"edgemesh/tunnel/virtio/virtiotest"
)

func drawSuper(t *rapid.T) virtiotest.Super {
	s := virtiotest.Super{
		V6:               rapid.Bool().Draw(t, "v6"),
		UDP:              rapid.Bool().Draw(t, "udp"),
		Size:             rapid.IntRange(virtio.MinTCPSegment, 9000).Draw(t, "size"),
		Flags:            rapid.Byte().Draw(t, "flags"),
		Seq:              rapid.Uint32().Draw(t, "seq"),
		ID:               rapid.Uint16().Draw(t, "id"),
		ECN:              rapid.Bool().Draw(t, "ecn"),
		SPort:            rapid.Uint16().Draw(t, "sport"),
		DPort:            rapid.Uint16().Draw(t, "dport"),
		TCPOptionContent: rapid.Byte().Draw(t, "option"),
	}
	if s.V6 {
		s.IPOptions = rapid.SampledFrom([]int{0, 0, 8, 24, 128}).Draw(t, "extension")
	} else {
		s.IPOptions = rapid.SampledFrom([]int{0, 0, 4, 20, 40}).Draw(t, "options")
	}
	s.TCPOptions = rapid.SampledFrom([]int{0, 12, 40}).Draw(t, "tcp options")
	copy(s.Addresses[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "addresses"))
	n := rapid.IntRange(1, min(65000-s.IPOptions, s.Size*virtio.MaxUDPSegments)).Draw(t, "payload length")
	s.Payload = make([]byte, n)
	x := rapid.Uint32().Draw(t, "payload")
	for i := range s.Payload {
		x = x*1664525 + 1013904223
		s.Payload[i] = byte(x >> 24)
	}
	return s
}

// verify holds one segment against the super-segment it came from and returns its
// payload.
func verify(s virtiotest.Super, seg []byte, index int, last bool) ([]byte, error) {
	if !bytes.Equal(seg[:virtio.HeaderLen], make([]byte, virtio.HeaderLen)) {
		return nil, fmt.Errorf("virtio-net header %x, want zeros", seg[:virtio.HeaderLen])
	}
	pkt := seg[virtio.HeaderLen:]
	l4 := 20 + s.IPOptions
	if s.V6 {
		l4 = 40 + s.IPOptions
		if got := int(binary.BigEndian.Uint16(pkt[4:])); got != len(pkt)-40 {
			return nil, fmt.Errorf("IPv6 payload length %d in a packet of %d bytes", got, len(pkt))
		}
		if !bytes.Equal(pkt[8:40], s.Addresses[:]) {
			return nil, errors.New("addresses changed")
		}
	} else {
		if got := int(binary.BigEndian.Uint16(pkt[2:])); got != len(pkt) {
			return nil, fmt.Errorf("IPv4 length %d in a packet of %d bytes", got, len(pkt))
		}
		if got, want := binary.BigEndian.Uint16(pkt[4:]), s.ID+uint16(index); got != want {
			return nil, fmt.Errorf("identification %d, want %d", got, want)
		}
		if got := virtiotest.Sum(pkt[:l4], 0); got != 0xffff {
			return nil, fmt.Errorf("IPv4 header sums up to %#x", got)
		}
		if !bytes.Equal(pkt[12:20], s.Addresses[:8]) {
			return nil, errors.New("addresses changed")
		}
	}
	if got := virtiotest.Sum(pkt[l4:], uint32(virtiotest.PseudoSum(pkt, l4, s.Proto()))); got != 0xffff {
		return nil, fmt.Errorf("transport sums up to %#x", got)
	}
	if got := binary.BigEndian.Uint32(pkt[l4:]); got != uint32(s.SPort)<<16|uint32(s.DPort) {
		return nil, fmt.Errorf("ports %#x", got)
	}
	if s.UDP {
		if got := int(binary.BigEndian.Uint16(pkt[l4+4:])); got != len(pkt)-l4 {
			return nil, fmt.Errorf("UDP length %d, want %d", got, len(pkt)-l4)
		}
		if binary.BigEndian.Uint16(pkt[l4+inet.UDPChecksum:]) == 0 {
			return nil, errors.New("UDP checksum 0 says there is none")
		}
		return pkt[l4+8:], nil
	}
	if got, want := binary.BigEndian.Uint32(pkt[l4+4:]), s.Seq+uint32(index*s.Size); got != want {
		return nil, fmt.Errorf("sequence number %d, want %d", got, want)
	}
	flags := s.Flags
	if index > 0 {
		flags &^= 0x80
	}
	if !last {
		flags &^= 0x09
	}
	if pkt[l4+13] != flags {
		return nil, fmt.Errorf("TCP flags %#x, want %#x", pkt[l4+13], flags)
	}
	return pkt[l4+20+s.TCPOptions:], nil
}

// split prepares a splitter as a device does it.
func split(s *virtio.Splitter, frame []byte) bool {
	var h inet.Header
	v, ok := virtio.Check(frame, &h)
	return ok && s.Split(frame, v, &h, true)
}

func TestSegmentsMakeTheOriginal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSuper(t)
		var sp virtio.Splitter
		if !split(&sp, s.Frame()) {
			t.Fatal("refused")
		}
		var joined []byte
		count := (len(s.Payload) + s.Size - 1) / s.Size
		for i := range count {
			seg := sp.Next()
			if seg == nil {
				t.Fatalf("%d segments, want %d", i, count)
			}
			payload, err := verify(s, seg, i, i == count-1)
			if err != nil {
				t.Fatalf("segment %d of %d: %v", i, count, err)
			}
			if i < count-1 && len(payload) != s.Size {
				t.Fatalf("segment %d has %d bytes, want %d", i, len(payload), s.Size)
			}
			joined = append(joined, payload...)
		}
		if sp.Next() != nil {
			t.Fatalf("more than %d segments", count)
		}
		if !bytes.Equal(joined, s.Payload) {
			t.Fatal("the segments' payloads are not the original's")
		}
	})
}

// TestPartialSegments: segments whose checksums are left to the far kernel become, once it completes them, those whose
// checksums were completed here.
func TestPartialSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSuper(t)
		var complete, partial virtio.Splitter
		var h inet.Header
		frame := s.Frame()
		v, ok := virtio.Check(frame, &h)
		if !ok || !complete.Split(bytes.Clone(frame), v, &h, true) || !partial.Split(frame, v, &h, false) {
			t.Fatal("refused")
		}
		for want := complete.Next(); want != nil; want = complete.Next() {
			got := bytes.Clone(partial.Next())
			v, ok := virtio.Check(got, &h)
			if !ok || v.Flags != virtio.NeedsChecksum {
				t.Fatalf("virtio-net header %+v, valid %v", v, ok)
			}
			if !virtio.Complete(got) || !bytes.Equal(got[virtio.HeaderLen:], want[virtio.HeaderLen:]) {
				t.Fatalf("completed: %x, want %x", got, want)
			}
		}
	})
}

func TestUndo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := drawSuper(t).Frame()
		orig := bytes.Clone(frame)
		var s virtio.Splitter
		if !split(&s, frame) {
			t.Fatal("refused")
		}
		s.Next()
		s.Undo()
		if !bytes.Equal(frame, orig) {
			t.Fatal("the frame is not what it was")
		}
	})
}

func TestComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSuper(t)
		f := s.Plain()
		if !virtio.Complete(f) {
			t.Fatal("refused")
		}
		var h inet.Header
		pkt := f[virtio.HeaderLen:]
		if err := h.Parse(pkt, 0); err != nil {
			t.Fatal(err)
		}
		if got := virtiotest.Sum(pkt[h.L4:], uint32(virtiotest.PseudoSum(pkt, h.L4, s.Proto()))); got != 0xffff {
			t.Fatalf("transport sums up to %#x", got)
		}
	})
}

func TestCompleteRefuses(t *testing.T) {
	for name, damage := range map[string]damage{
		"over the source address": {flags: -1, csumStart: 0, csumOffset: 12},
		"inside the IP header":    {flags: -1, csumStart: 19, csumOffset: 6},
		"behind the packet":       {flags: -1, csumStart: 276, csumOffset: 6},
		"field behind the packet": {flags: -1, csumStart: 20, csumOffset: 107},
		"unknown flags":           {flags: 9, csumStart: 20, csumOffset: 6},
	} {
		t.Run(name, func(t *testing.T) {
			f := virtiotest.Super{UDP: true, Payload: make([]byte, 100)}.Plain()
			damage.apply(f)
			before := bytes.Clone(f)
			if virtio.Complete(f) {
				t.Fatal("accepted")
			}
			if !bytes.Equal(before, f) {
				t.Fatal("a refused frame was changed")
			}
		})
	}
}

// damage is a wrong virtio-net header; flags below 0 stay.
type damage struct{ flags, csumStart, csumOffset int }

func (d damage) apply(f []byte) {
	v := virtio.Get(f)
	if d.flags >= 0 {
		v.Flags = uint8(d.flags)
	}
	v.CsumStart, v.CsumOffset = uint16(d.csumStart), uint16(d.csumOffset)
	v.Put(f)
}

// Offsets in a frame.
const (
	atFlags, atType, atSize, atCsumStart, atCsumOffset = 0, 1, 4, 6, 8

	atIP         = virtio.HeaderLen
	atIPLength   = atIP + 2
	atIPFragment = atIP + 6
	atTCPOffset  = atIP + 20 + 12
)

func TestSplitRefuses(t *testing.T) {
	tcp4 := virtiotest.Super{Size: 1000, Payload: make([]byte, 3000)}
	tcp6 := virtiotest.Super{V6: true, Size: 1000, Payload: make([]byte, 3000)}
	udp4 := virtiotest.Super{UDP: true, Size: 1000, Payload: make([]byte, 3000)}
	type edit = func(f []byte) []byte
	set := func(at int, v ...byte) edit {
		return func(f []byte) []byte {
			copy(f[at:], v)
			return f
		}
	}
	cut := func(n int) edit { return func(f []byte) []byte { return f[:n] } }
	honestCut := func(n int) edit { // the IP length says so
		return func(f []byte) []byte {
			binary.BigEndian.PutUint16(f[atIPLength:], uint16(n-atIP))
			return f[:n]
		}
	}
	tooMany := byte(3000 / virtio.MaxUDPSegments)
	for _, c := range []struct {
		name string
		from virtiotest.Super
		edit edit
	}{
		{"empty", tcp4, cut(0)},
		{"header only", tcp4, cut(atIP)},
		{"cut in the IP header", tcp4, cut(atIP + 19)},
		{"cut in the TCP header", tcp4, honestCut(atIP + 39)},
		{"no payload", tcp4, honestCut(atIP + 40)},
		{"cut in the payload", tcp4, cut(1000)},
		{"bytes behind the packet", tcp6, func(f []byte) []byte { return append(f, 0) }},
		{"not IP", tcp4, set(atIP, 0x35)},
		{"IPv4 header of 16 bytes", tcp4, set(atIP, 0x44)},
		{"fragment", tcp4, set(atIPFragment, 0x20)},
		{"TCP header of 16 bytes", tcp4, set(atTCPOffset, 0x40)},
		{"TCPV6 in IPv4", tcp4, set(atType, virtio.GSOTCPv6)},
		{"TCPV4 in IPv6", tcp6, set(atType, virtio.GSOTCPv4)},
		{"UDP said to be TCP", udp4, set(atType, virtio.GSOTCPv4)},
		{"UDP with ECN", udp4, set(atType, virtio.GSOUDP|virtio.GSOECN)},
		{"TCP said to be UDP with ECN", tcp4, set(atType, virtio.GSOUDP|virtio.GSOECN)},
		{"UDP fragmentation offload", udp4, set(atType, 3)},
		{"unknown type", tcp4, set(atType, 0x41)},
		{"no type", tcp4, set(atType, virtio.GSONone)},
		{"checksum not requested", tcp4, set(atFlags, 0)},
		{"checksum over the addresses", tcp4, set(atCsumStart, 0)},
		{"checksum elsewhere", tcp4, set(atCsumOffset, 12)},
		{"checksum far behind", tcp6, set(atCsumStart, 0xff, 0xff)},
		{"size 0", tcp4, set(atSize, 0, 0)},
		{"UDP of size 0", udp4, set(atSize, 0, 0)},
		{"TCP of tiny segments", tcp4, set(atSize, virtio.MinTCPSegment-1, 0)},
		{"UDP of too many segments", udp4, set(atSize, tooMany, 0)},
		{"headers too long", virtiotest.Super{V6: true, IPOptions: 504, Size: 1000, Payload: make([]byte, 3000)}, cut(3614)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !split(new(virtio.Splitter), c.from.Frame()) && c.name != "headers too long" {
				t.Fatal("refused although undamaged")
			}
			if split(new(virtio.Splitter), c.edit(c.from.Frame())) {
				t.Fatal("accepted")
			}
		})
	}
}

// FuzzSegment holds that no frame makes the splitter panic, lose payload or emit a packet longer than it says.
func FuzzSegment(f *testing.F) {
	for _, s := range []virtiotest.Super{
		{Size: 1448, TCPOptions: 12, Payload: make([]byte, 20000)},
		{V6: true, Size: 1428, TCPOptions: 12, Payload: make([]byte, 20000), ECN: true, Flags: 0xff},
		{UDP: true, Size: 1200, Payload: make([]byte, 5000)},
		{V6: true, UDP: true, IPOptions: 8, Size: 700, Payload: make([]byte, 1401)},
	} {
		f.Add(s.Frame())
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		orig := bytes.Clone(frame)
		var s virtio.Splitter
		if !split(&s, frame) {
			if !bytes.Equal(orig, frame) {
				t.Fatal("refused, but changed")
			}
			return
		}
		v := virtio.Get(orig)
		hdrLen, size := virtio.HeaderLen+int(v.HdrLen), int(v.GSOSize)
		at := hdrLen
		for seg := s.Next(); seg != nil; seg = s.Next() {
			n := len(seg) - hdrLen
			if n < 1 || n > size || !bytes.Equal(seg[hdrLen:], orig[at:at+n]) {
				t.Fatalf("segment at %d of %d bytes is not the original's", at, n)
			}
			at += n
			var h inet.Header
			pkt := seg[virtio.HeaderLen:]
			if err := h.Parse(pkt, 0); err != nil || h.Version == 4 && virtiotest.Sum(pkt[:h.L4], 0) != 0xffff {
				t.Fatalf("IP header of the segment at %d is bad: %v", at, err)
			}
		}
		if at != len(orig) {
			t.Fatalf("segments end at %d of %d", at, len(orig))
		}
	})
}

func BenchmarkSegment(b *testing.B) {
	for name, s := range map[string]virtiotest.Super{
		"tcp4": {Size: 1448, TCPOptions: 12, Payload: make([]byte, 64000)},
		"udp6": {V6: true, UDP: true, Size: 1200, Payload: make([]byte, 60000)},
	} {
		b.Run(name, func(b *testing.B) {
			orig := s.Frame()
			frame := bytes.Clone(orig)
			b.SetBytes(int64(len(s.Payload)))
			b.ReportAllocs()
			for b.Loop() {
				copy(frame, orig)
				var s virtio.Splitter
				if !split(&s, frame) {
					b.Fatal("refused")
				}
				for seg := s.Next(); seg != nil; seg = s.Next() {
				}
			}
		})
	}
}

func BenchmarkComplete(b *testing.B) {
	orig := virtiotest.Super{UDP: true, Payload: make([]byte, 1400)}.Plain()
	frame := bytes.Clone(orig)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		copy(frame, orig)
		if !virtio.Complete(frame) {
			b.Fatal("refused")
		}
	}
}
