package inet

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"edgemesh/tunnel/inet/inettest"
)

// slowSum is RFC 1071 word by word, the reference for Sum.
func slowSum(b []byte, start uint32) uint16 {
	s := start
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		s = s>>16 + s&0xffff
	}
	return uint16(s>>16 + s&0xffff)
}

func TestSumIsRFC1071(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.SampledFrom([]byte{0, 1, 0x7f, 0xfe, 0xff})).Draw(t, "bytes")
		if len(b) > 0 && rapid.Bool().Draw(t, "long") {
			b = bytes.Repeat(b, rapid.IntRange(1, 200).Draw(t, "times"))
		}
		got, want := Sum(b), slowSum(b, 0)
		if got != want {
			t.Fatalf("sum of %d bytes = %#x, want %#x", len(b), got, want)
		}
	})
}

// TestPartialThenComplete: what the two steps write is what the receiver's kernel sums up to.
func TestPartialThenComplete(t *testing.T) {
	for name, p := range map[string][]byte{
		"tcp4":     inettest.IPv4(ProtoTCP, nil, append(inettest.TCP(1, 2), 1, 2, 3)),
		"udp4":     inettest.IPv4(ProtoUDP, nil, append(inettest.UDP(1, 2), 1, 2, 3, 4)),
		"tcp6":     inettest.IPv6(ProtoTCP, append(inettest.TCP(1, 2), bytes.Repeat([]byte{0xff}, 60000)...)),
		"udp6 odd": inettest.IPv6(ProtoUDP, append(inettest.UDP(1, 2), 0xfe)),
	} {
		var h Header
		if err := h.Parse(p, 1); err != nil {
			t.Fatal(err)
		}
		h.SetPartial(p)
		off, _ := h.ChecksumOffset()
		if !Complete(p, h.L4, off) {
			t.Fatal("refused")
		}
		addresses := p[12:20]
		if h.Version == 6 {
			addresses = p[8:40]
		}
		pseudo := slowSum(addresses, uint32(h.Proto)+uint32(len(p)-h.L4))
		if c := slowSum(p[h.L4:], uint32(pseudo)); c != 0xffff {
			t.Errorf("%s: sum %#x", name, c)
		}
	}
}

func TestSetLength(t *testing.T) {
	for name, p := range map[string][]byte{
		"tcp4": inettest.IPv4(ProtoTCP, nil, append(inettest.TCP(1, 2), make([]byte, 100)...)),
		"udp4": inettest.IPv4(ProtoUDP, nil, append(inettest.UDP(1, 2), make([]byte, 100)...)),
		"udp6": inettest.IPv6(ProtoUDP, append(inettest.UDP(1, 2), make([]byte, 100)...)),
	} {
		var h, again Header
		if err := h.Parse(p, 1); err != nil {
			t.Fatal(err)
		}
		p = p[:len(p)-30]
		h.SetLength(p)
		if err := again.Parse(p, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if h.Version == 4 && slowSum(p[:20], 0) != 0xffff {
			t.Errorf("%s: header checksum %x", name, p[10:12])
		}
		if n := int(binary.BigEndian.Uint16(p[h.L4+4:])); h.Proto == ProtoUDP && n != len(p)-h.L4 {
			t.Errorf("%s: UDP length %d, want %d", name, n, len(p)-h.L4)
		}
	}
}

func TestCompleteOfZero(t *testing.T) {
	p := []byte{0xff, 0xff, 0, 0} // sums up to 0xffff
	if Complete(p, 0, 3) {
		t.Error("a field behind the end was accepted")
	}
	if !Complete(p, 0, 2) || binary.BigEndian.Uint16(p[2:]) != 0xffff {
		t.Errorf("checksum %x, want ffff: zero would say there is none", p[2:])
	}
}

func BenchmarkSum(b *testing.B) {
	buf := make([]byte, 1448)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		Sum(buf)
	}
}
