package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestSumIsRFC1071(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.SampledFrom([]byte{0, 1, 0x7f, 0xfe, 0xff})).Draw(t, "bytes")
		if len(b) > 0 && rapid.Bool().Draw(t, "long") {
			b = bytes.Repeat(b, rapid.IntRange(1, 200).Draw(t, "times"))
		}
		got, want := sum(b), naiveSum(b, 0)
		if got != want {
			t.Fatalf("sum of %d bytes = %#x, want %#x", len(b), got, want)
		}
	})
}

// plainFrame is a frame of one packet whose checksum is left to the receiver.
func plainFrame(s super) []byte {
	f := s.frame()
	f[1] = unix.VIRTIO_NET_HDR_GSO_NONE
	return f
}

func TestCompleteChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSuper(t)
		f := plainFrame(s)
		if err := completeChecksum(f); err != nil {
			t.Fatal(err)
		}
		pkt := f[vnetHdrLen:]
		l4 := ipHeaderLen(pkt)
		if s.v6 {
			l4 += s.ipOptions
		}
		if got := naiveSum(pkt[l4:], uint32(pseudo(pkt, l4, s.proto()))); got != 0xffff {
			t.Fatalf("transport sums up to %#x", got)
		}
	})
}

func TestCompleteChecksumOfZero(t *testing.T) {
	s := super{udp: true, payload: []byte{0, 0}}
	f := plainFrame(s)
	sumBefore := sum(f[vnetHdrLen+20:])
	binary.BigEndian.PutUint16(f[vnetHdrLen+28:], ^sumBefore) // now the sum is 0xffff
	if err := completeChecksum(f); err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint16(f[vnetHdrLen+26:]); got != 0xffff {
		t.Fatalf("checksum %#x, want 0xffff: zero would say there is none", got)
	}
}

func TestCompleteChecksumRefuses(t *testing.T) {
	s := super{udp: true, payload: make([]byte, 100)}
	for name, damage := range map[string]func(f []byte){
		"over the source address": func(f []byte) { f[6], f[8] = 0, 12 },
		"inside the IP header":    func(f []byte) { f[6] = 19 },
		"behind the packet":       func(f []byte) { f[7] = 1 },
		"field behind the packet": func(f []byte) { f[8] = 107 },
		"not IP":                  func(f []byte) { f[10] = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			f := plainFrame(s)
			damage(f)
			before := bytes.Clone(f)
			if err := completeChecksum(f); !errors.Is(err, ErrFrame) {
				t.Fatalf("err = %v, want ErrFrame", err)
			}
			if !bytes.Equal(before, f) {
				t.Fatal("a refused frame was changed")
			}
		})
	}
}

func BenchmarkSum(b *testing.B) {
	buf := make([]byte, 1448)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		sum(buf)
	}
}
