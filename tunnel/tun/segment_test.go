package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// naiveSum is RFC 1071 word by word, the reference for sum.
func naiveSum(b []byte, start uint32) uint16 {
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

// pseudo is the sum of the pseudo header of a packet whose transport header
// starts at l4.
func pseudo(pkt []byte, l4 int, proto byte) uint16 {
	addrs := pkt[12:20]
	if pkt[0]>>4 == 6 {
		addrs = pkt[8:40]
	}
	return naiveSum(addrs, uint32(proto)+uint32(len(pkt)-l4))
}

// super describes a super-segment to build.
type super struct {
	v6, udp          bool
	ipOptions        int // bytes: IPv4 options, or IPv6 destination options
	tcpOptions       int // bytes
	size             int
	payload          []byte
	flags            byte // of TCP
	seq              uint32
	id               uint16
	ecn              bool
	addresses        [32]byte
	sport, dport     uint16
	tcpOptionContent byte
}

func (s super) proto() byte {
	if s.udp {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// frame builds what the kernel would hand over.
func (s super) frame() []byte {
	var ip []byte
	if s.v6 {
		ip = make([]byte, 40+s.ipOptions)
		ip[0], ip[6], ip[7] = 0x60, s.proto(), 64
		copy(ip[8:40], s.addresses[:])
		if s.ipOptions > 0 {
			ip[6] = unix.IPPROTO_DSTOPTS
			ip[40], ip[41] = s.proto(), byte(s.ipOptions/8-1)
			ip[42], ip[43] = 1, byte(s.ipOptions-4) // PadN
		}
	} else {
		ip = make([]byte, 20+s.ipOptions)
		ip[0], ip[8], ip[9] = 0x45+byte(s.ipOptions/4), 64, s.proto()
		binary.BigEndian.PutUint16(ip[4:], s.id)
		ip[6] = 0x40
		copy(ip[12:20], s.addresses[:])
		for i := 20; i < len(ip); i++ {
			ip[i] = 1 // no operation
		}
	}
	l4 := make([]byte, 8)
	offset := udpChecksum
	if s.udp {
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(s.payload)))
	} else {
		offset = tcpChecksum
		l4 = make([]byte, 20+s.tcpOptions)
		binary.BigEndian.PutUint32(l4[4:], s.seq)
		l4[12], l4[13] = byte(len(l4)/4)<<4, s.flags
		for i := 20; i < len(l4); i++ {
			l4[i] = s.tcpOptionContent
		}
	}
	binary.BigEndian.PutUint16(l4, s.sport)
	binary.BigEndian.PutUint16(l4[2:], s.dport)

	pkt := append(append(append([]byte{}, ip...), l4...), s.payload...)
	if s.v6 {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
	} else {
		binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
		binary.BigEndian.PutUint16(pkt[10:], ^naiveSum(pkt[:len(ip)], 0))
	}
	binary.BigEndian.PutUint16(pkt[len(ip)+offset:], pseudo(pkt, len(ip), s.proto()))

	hdr := make([]byte, vnetHdrLen)
	hdr[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	hdr[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
	switch {
	case s.udp:
		hdr[1] = unix.VIRTIO_NET_HDR_GSO_UDP_L4
	case s.v6:
		hdr[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
	}
	if s.ecn && !s.udp {
		hdr[1] |= unix.VIRTIO_NET_HDR_GSO_ECN
	}
	binary.LittleEndian.PutUint16(hdr[2:], uint16(len(ip)+len(l4)))
	binary.LittleEndian.PutUint16(hdr[4:], uint16(s.size))
	binary.LittleEndian.PutUint16(hdr[6:], uint16(len(ip)))
	binary.LittleEndian.PutUint16(hdr[8:], uint16(offset))
	return append(hdr, pkt...)
}

func drawSuper(t *rapid.T) super {
	s := super{
		v6:               rapid.Bool().Draw(t, "v6"),
		udp:              rapid.Bool().Draw(t, "udp"),
		size:             rapid.IntRange(minTCPSegment, 9000).Draw(t, "size"),
		flags:            rapid.Byte().Draw(t, "flags"),
		seq:              rapid.Uint32().Draw(t, "seq"),
		id:               rapid.Uint16().Draw(t, "id"),
		ecn:              rapid.Bool().Draw(t, "ecn"),
		sport:            rapid.Uint16().Draw(t, "sport"),
		dport:            rapid.Uint16().Draw(t, "dport"),
		tcpOptionContent: rapid.Byte().Draw(t, "option"),
	}
	if s.v6 {
		s.ipOptions = rapid.SampledFrom([]int{0, 0, 8, 24, 128}).Draw(t, "extension")
	} else {
		s.ipOptions = rapid.SampledFrom([]int{0, 0, 4, 20, 40}).Draw(t, "options")
	}
	s.tcpOptions = rapid.SampledFrom([]int{0, 12, 40}).Draw(t, "tcp options")
	copy(s.addresses[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "addresses"))
	n := rapid.IntRange(1, min(65000-s.ipOptions, s.size*maxUDPSegments)).Draw(t, "payload length")
	s.payload = make([]byte, n)
	x := rapid.Uint32().Draw(t, "payload")
	for i := range s.payload {
		x = x*1664525 + 1013904223
		s.payload[i] = byte(x >> 24)
	}
	return s
}

// verify holds one segment against the super-segment it came from and returns its
// payload.
func verify(s super, seg []byte, index int, last bool) ([]byte, error) {
	if !bytes.Equal(seg[:vnetHdrLen], make([]byte, vnetHdrLen)) {
		return nil, fmt.Errorf("virtio-net header %x, want zeros", seg[:vnetHdrLen])
	}
	pkt := seg[vnetHdrLen:]
	l4 := 20 + s.ipOptions
	if s.v6 {
		l4 = 40 + s.ipOptions
		if got := int(binary.BigEndian.Uint16(pkt[4:])); got != len(pkt)-40 {
			return nil, fmt.Errorf("IPv6 payload length %d in a packet of %d bytes", got, len(pkt))
		}
		if !bytes.Equal(pkt[8:40], s.addresses[:]) {
			return nil, errors.New("addresses changed")
		}
	} else {
		if got := int(binary.BigEndian.Uint16(pkt[2:])); got != len(pkt) {
			return nil, fmt.Errorf("IPv4 length %d in a packet of %d bytes", got, len(pkt))
		}
		if got, want := binary.BigEndian.Uint16(pkt[4:]), s.id+uint16(index); got != want {
			return nil, fmt.Errorf("identification %d, want %d", got, want)
		}
		if got := naiveSum(pkt[:l4], 0); got != 0xffff {
			return nil, fmt.Errorf("IPv4 header sums up to %#x", got)
		}
		if !bytes.Equal(pkt[12:20], s.addresses[:8]) {
			return nil, errors.New("addresses changed")
		}
	}
	if got := naiveSum(pkt[l4:], uint32(pseudo(pkt, l4, s.proto()))); got != 0xffff {
		return nil, fmt.Errorf("transport sums up to %#x", got)
	}
	if got := binary.BigEndian.Uint32(pkt[l4:]); got != uint32(s.sport)<<16|uint32(s.dport) {
		return nil, fmt.Errorf("ports %#x", got)
	}
	if s.udp {
		if got := int(binary.BigEndian.Uint16(pkt[l4+4:])); got != len(pkt)-l4 {
			return nil, fmt.Errorf("UDP length %d, want %d", got, len(pkt)-l4)
		}
		if binary.BigEndian.Uint16(pkt[l4+udpChecksum:]) == 0 {
			return nil, errors.New("UDP checksum 0 says there is none")
		}
		return pkt[l4+8:], nil
	}
	if got, want := binary.BigEndian.Uint32(pkt[l4+4:]), s.seq+uint32(index*s.size); got != want {
		return nil, fmt.Errorf("sequence number %d, want %d", got, want)
	}
	flags := s.flags
	if index > 0 {
		flags &^= 0x80
	}
	if !last {
		flags &^= 0x09
	}
	if pkt[l4+13] != flags {
		return nil, fmt.Errorf("TCP flags %#x, want %#x", pkt[l4+13], flags)
	}
	return pkt[l4+20+s.tcpOptions:], nil
}

func TestSegmentsMakeTheOriginal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSuper(t)
		frame := s.frame()
		var sp splitter
		if err := sp.split(frame); err != nil {
			t.Fatalf("split: %v", err)
		}
		var joined []byte
		count := (len(s.payload) + s.size - 1) / s.size
		for i := range count {
			seg := sp.segment()
			if seg == nil {
				t.Fatalf("%d segments, want %d", i, count)
			}
			payload, err := verify(s, seg, i, i == count-1)
			if err != nil {
				t.Fatalf("segment %d of %d: %v", i, count, err)
			}
			if i < count-1 && len(payload) != s.size {
				t.Fatalf("segment %d has %d bytes, want %d", i, len(payload), s.size)
			}
			joined = append(joined, payload...)
		}
		if sp.segment() != nil {
			t.Fatalf("more than %d segments", count)
		}
		if !bytes.Equal(joined, s.payload) {
			t.Fatal("the segments' payloads are not the original's")
		}
	})
}

func TestSplitRefuses(t *testing.T) {
	tcp4 := super{size: 1000, payload: make([]byte, 3000)}
	tcp6 := super{v6: true, size: 1000, payload: make([]byte, 3000)}
	udp4 := super{udp: true, size: 1000, payload: make([]byte, 3000)}
	put16 := binary.BigEndian.PutUint16
	tests := []struct {
		name   string
		from   super
		damage func(f []byte) []byte
	}{
		{"empty", tcp4, func(f []byte) []byte { return f[:0] }},
		{"header only", tcp4, func(f []byte) []byte { return f[:vnetHdrLen] }},
		{"cut in the IP header", tcp4, func(f []byte) []byte { return f[:vnetHdrLen+19] }},
		{"cut in the TCP header", tcp4, func(f []byte) []byte { f = f[:vnetHdrLen+39]; put16(f[12:], 39); return f }},
		{"no payload", tcp4, func(f []byte) []byte { f = f[:vnetHdrLen+40]; put16(f[12:], 40); return f }},
		{"cut in the payload", tcp4, func(f []byte) []byte { return f[:1000] }},
		{"bytes behind the packet", tcp6, func(f []byte) []byte { return append(f, 0) }},
		{"not IP", tcp4, func(f []byte) []byte { f[10] = 0x35; return f }},
		{"IPv4 header of 16 bytes", tcp4, func(f []byte) []byte { f[10] = 0x44; return f }},
		{"TCPV6 in IPv4", tcp4, func(f []byte) []byte { f[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6; return f }},
		{"TCPV4 in IPv6", tcp6, func(f []byte) []byte { f[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4; return f }},
		{"UDP said to be TCP", udp4, func(f []byte) []byte { f[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4; return f }},
		{"UDP with ECN", udp4, func(f []byte) []byte { f[1] |= unix.VIRTIO_NET_HDR_GSO_ECN; return f }},
		{"TCP said to be UDP with ECN", tcp4, func(f []byte) []byte { f[1] = 0x85; return f }},
		{"UDP fragmentation offload", udp4, func(f []byte) []byte { f[1] = unix.VIRTIO_NET_HDR_GSO_UDP; return f }},
		{"unknown type", tcp4, func(f []byte) []byte { f[1] = 0x41; return f }},
		{"checksum not asked for", tcp4, func(f []byte) []byte { f[0] = 0; return f }},
		{"checksum over the addresses", tcp4, func(f []byte) []byte { f[6] = 0; return f }},
		{"checksum elsewhere", tcp4, func(f []byte) []byte { f[8] = 12; return f }},
		{"checksum far behind", tcp6, func(f []byte) []byte { f[6], f[7] = 0xff, 0xff; return f }},
		{"size 0", tcp4, func(f []byte) []byte { f[4], f[5] = 0, 0; return f }},
		{"UDP of size 0", udp4, func(f []byte) []byte { f[4], f[5] = 0, 0; return f }},
		{"TCP of tiny segments", tcp4, func(f []byte) []byte { f[4], f[5] = minTCPSegment-1, 0; return f }},
		{"UDP of too many segments", udp4, func(f []byte) []byte { f[4], f[5] = 3000/maxUDPSegments, 0; return f }},
		{"TCP header of 16 bytes", tcp4, func(f []byte) []byte { f[vnetHdrLen+20+12] = 0x40; return f }},
		{"fragment", tcp4, func(f []byte) []byte { f[vnetHdrLen+6] = 0x20; return f }},
		{"headers too long", super{v6: true, ipOptions: 504, size: 1000, payload: make([]byte, 3000)}, func(f []byte) []byte { return f }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := new(splitter).split(tt.from.frame()); err != nil && tt.name != "headers too long" {
				t.Fatalf("undamaged: %v", err)
			}
			if err := new(splitter).split(tt.damage(tt.from.frame())); !errors.Is(err, ErrFrame) {
				t.Fatalf("split = %v, want ErrFrame", err)
			}
		})
	}
}

// FuzzSegment holds that no frame makes the splitter panic, lose payload or emit
// a packet longer than it says.
func FuzzSegment(f *testing.F) {
	for _, s := range []super{
		{size: 1448, tcpOptions: 12, payload: make([]byte, 20000)},
		{v6: true, size: 1428, tcpOptions: 12, payload: make([]byte, 20000), ecn: true, flags: 0xff},
		{udp: true, size: 1200, payload: make([]byte, 5000)},
		{v6: true, udp: true, ipOptions: 8, size: 700, payload: make([]byte, 1401)},
	} {
		f.Add(s.frame())
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		orig := bytes.Clone(frame)
		var s splitter
		if err := s.split(frame); err != nil {
			if !errors.Is(err, ErrFrame) || !bytes.Equal(orig, frame) {
				t.Fatalf("refused with %v, frame touched: %t", err, !bytes.Equal(orig, frame))
			}
			return
		}
		at := s.hdrLen
		for seg := s.segment(); seg != nil; seg = s.segment() {
			n := len(seg) - s.hdrLen
			if n < 1 || n > s.size || !bytes.Equal(seg[s.hdrLen:], orig[at:at+n]) {
				t.Fatalf("segment at %d of %d bytes is not the original's", at, n)
			}
			at += n
			pkt := seg[vnetHdrLen:]
			if ipHeaderLen(pkt) > len(pkt) || pkt[0]>>4 == 4 && naiveSum(pkt[:ipHeaderLen(pkt)], 0) != 0xffff {
				t.Fatalf("IP header of the segment at %d is bad", at)
			}
		}
		if at != len(orig) {
			t.Fatalf("segments end at %d of %d", at, len(orig))
		}
	})
}

type discard struct{ bytes int }

func (d *discard) Write(p []byte) (int, error) { d.bytes += len(p); return len(p), nil }

func BenchmarkSegment(b *testing.B) {
	for _, s := range []super{
		{size: 1448, tcpOptions: 12, payload: make([]byte, 64000)},
		{v6: true, udp: true, size: 1200, payload: make([]byte, 60000)},
	} {
		name := "tcp4"
		if s.udp {
			name = "udp6"
		}
		b.Run(name, func(b *testing.B) {
			orig := s.frame()
			frame := bytes.Clone(orig)
			var w discard
			b.SetBytes(int64(len(s.payload)))
			b.ReportAllocs()
			for b.Loop() {
				copy(frame, orig)
				if err := writeSegments(&w, frame, vnetHdrLen); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
