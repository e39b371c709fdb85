package virtio

import (
	"testing"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/inet/inettest"
)

// wire is a header as it is on the wire.
func wire(v Header) []byte {
	b := make([]byte, HeaderLen)
	v.Put(b)
	return b
}

// tcp and udp are transport headers with the given number of bytes behind them.
func tcp(payload int) []byte { return append(inettest.TCP(1, 2), make([]byte, payload)...) }
func udp(payload int) []byte { return append(inettest.UDP(1, 2), make([]byte, payload)...) }

// Headers that are valid for the packets of the tests.
var (
	tcpChecksum = Header{Flags: NeedsChecksum, CsumStart: 20, CsumOffset: 16}
	udpChecksum = Header{Flags: NeedsChecksum, CsumStart: 20, CsumOffset: 6}

	tso4 = Header{Flags: NeedsChecksum, GSOType: GSOTCPv4, HdrLen: 40, GSOSize: 1460, CsumStart: 20, CsumOffset: 16}
	tso6 = Header{Flags: NeedsChecksum, GSOType: GSOTCPv6, HdrLen: 60, GSOSize: 1440, CsumStart: 40, CsumOffset: 16}
	uso  = Header{Flags: NeedsChecksum, GSOType: GSOUDP, HdrLen: 28, GSOSize: 1472, CsumStart: 20, CsumOffset: 6}
)

// but is a header with something changed.
func (v Header) but(change func(*Header)) Header {
	change(&v)
	return v
}

func TestValid(t *testing.T) {
	tcp4, tcp6 := inettest.IPv4(6, nil, tcp(3000)), inettest.IPv6(6, tcp(3000))
	udp4, icmp := inettest.IPv4(17, nil, udp(3000)), inettest.IPv4(1, nil, make([]byte, 3000))
	fragment := inettest.With(inettest.IPv4(6, nil, tcp(3000)), 6, 0x20)
	for _, c := range []struct {
		name   string
		packet []byte
		v      Header
		ok     bool
	}{
		{"plain", tcp4, Header{}, true},
		{"plain ICMP", icmp, Header{}, true},
		{"TCP checksum", tcp4, tcpChecksum, true},
		{"UDP checksum", udp4, udpChecksum, true},
		{"TSO4", tcp4, tso4, true},
		{"TSO4 with ECN", tcp4, tso4.but(func(v *Header) { v.GSOType |= GSOECN }), true},
		{"TSO6", tcp6, tso6, true},
		{"USO", udp4, uso, true},
		{"one segment", tcp4, tso4.but(func(v *Header) { v.GSOSize = 60000 }), true},

		{"DATA_VALID", tcp4, Header{Flags: 2}, false},
		{"unknown flag", tcp4, Header{Flags: 8}, false},
		{"checksum without its flag", tcp4, tcpChecksum.but(func(v *Header) { v.Flags = 0 }), false},
		{"checksum in the IP header", tcp4, tcpChecksum.but(func(v *Header) { v.CsumStart = 0 }), false},
		{"checksum behind the packet", tcp4, tcpChecksum.but(func(v *Header) { v.CsumStart = 65535 }), false},
		{"checksum of UDP in TCP", tcp4, udpChecksum, false},
		{"checksum of ICMP", icmp, tcpChecksum.but(func(v *Header) { v.CsumOffset = 2 }), false},
		{"checksum of a fragment", fragment, tcpChecksum, false},
		{"GSO size without GSO", tcp4, Header{GSOSize: 1460}, false},
		{"header length without GSO", tcp4, Header{HdrLen: 40}, false},
		{"ECN alone", tcp4, tcpChecksum.but(func(v *Header) { v.GSOType = GSOECN }), false},
		{"TSO without a checksum", tcp4, Header{GSOType: GSOTCPv4, HdrLen: 40, GSOSize: 1460}, false},
		{"TSO4 of IPv6", tcp6, tso6.but(func(v *Header) { v.GSOType = GSOTCPv4 }), false},
		{"TSO6 of IPv4", tcp4, tso4.but(func(v *Header) { v.GSOType = GSOTCPv6 }), false},
		{"TSO of UDP", udp4, uso.but(func(v *Header) { v.GSOType = GSOTCPv4 }), false},
		{"USO of TCP", tcp4, tso4.but(func(v *Header) { v.GSOType = GSOUDP }), false},
		{"USO with ECN", udp4, uso.but(func(v *Header) { v.GSOType |= GSOECN }), false},
		{"UFO", udp4, uso.but(func(v *Header) { v.GSOType = 3 }), false},
		{"header length too short", tcp4, tso4.but(func(v *Header) { v.HdrLen = 39 }), false},
		{"header length behind the packet", tcp4, tso4.but(func(v *Header) { v.HdrLen = 65535 }), false},
		{"TCP segments of 0 bytes", tcp4, tso4.but(func(v *Header) { v.GSOSize = 0 }), false},
		{"TCP segments of 1 byte", tcp4, tso4.but(func(v *Header) { v.GSOSize = 1 }), false},
		{"datagrams of 0 bytes", udp4, uso.but(func(v *Header) { v.GSOSize = 0 }), false},
		{"too many datagrams", udp4, uso.but(func(v *Header) { v.GSOSize = 20 }), false},
		{"no payload", inettest.IPv4(6, nil, tcp(0)), tso4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h inet.Header
			if err := h.Parse(c.packet, 1); err != nil {
				t.Fatal(err)
			}
			if got := Get(wire(c.v)); got != c.v {
				t.Fatalf("read back as %+v", got)
			}
			if ok := c.v.Valid(&h, c.packet); ok != c.ok {
				t.Errorf("valid: %v", ok)
			}
		})
	}
}

func TestNormalize(t *testing.T) {
	plain := func() []byte { return inettest.IPv4(6, nil, tcp(3000)) }
	tunnelled := func() []byte { return inettest.IPv4(4, nil, plain()) }
	inner := tcpChecksum.but(func(v *Header) { v.CsumStart = 40 })
	for _, c := range []struct {
		name   string
		packet []byte
		in     Header
		ok     bool
		out    Header
	}{
		{"plain", plain(), Header{}, true, Header{}},
		{"DATA_VALID", plain(), Header{Flags: 2}, true, Header{}},
		{"checksum, with a hint of the header length", plain(), tcpChecksum.but(func(v *Header) { v.HdrLen = 99 }), true, tcpChecksum},
		{"forwarded TSO", plain(), tso4.but(func(v *Header) { v.HdrLen = 3000 }), true, tso4},
		{"TSO with nothing to cut", inettest.IPv4(6, nil, tcp(0)), tso4, true, tcpChecksum},
		{"TSO with a finished checksum", plain(), Header{Flags: 2, GSOType: GSOTCPv4, HdrLen: 40, GSOSize: 1460}, true, tso4},
		{"checksum of an inner packet", tunnelled(), inner, true, Header{}},
		{"checksum of an inner packet, behind the end", tunnelled(), inner.but(func(v *Header) { v.CsumStart = 3060 }), false, Header{}},
		{"TSO of an inner packet", tunnelled(), tso4.but(func(v *Header) { v.CsumStart = 40 }), false, Header{}},
		{"UFO", inettest.IPv4(17, nil, udp(1)), uso.but(func(v *Header) { v.GSOType = 3 }), false, Header{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h inet.Header
			if err := h.Parse(c.packet, 1); err != nil {
				t.Fatal(err)
			}
			b := wire(c.in)
			if ok := Normalize(b, &h, c.packet); ok != c.ok {
				t.Fatalf("accepted: %v", ok)
			}
			if v := Get(b); c.ok && v != c.out {
				t.Errorf("%+v, want %+v", v, c.out)
			}
		})
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(wire(tso4), inettest.IPv4(6, nil, tcp(3000)))
	f.Add(wire(Header{Flags: NeedsChecksum, GSOType: GSOUDP, HdrLen: 48, GSOSize: 100, CsumStart: 40, CsumOffset: 6}), inettest.IPv6(17, udp(3000)))
	f.Add(wire(Header{Flags: 1, CsumStart: 40, CsumOffset: 16}), inettest.IPv4(4, nil, inettest.IPv4(6, nil, inettest.TCP(1, 2))))
	f.Fuzz(func(t *testing.T, v, p []byte) {
		var h inet.Header
		if len(v) != HeaderLen || h.Parse(p, 1) != nil {
			return
		}
		if g := Get(v); g.Valid(&h, p) {
			if end := int(g.CsumStart) + int(g.CsumOffset) + 2; g.Flags != 0 && (end > len(p) || int(g.CsumStart) < 20) {
				t.Fatalf("checksum ends at %d of %d", end, len(p))
			}
			if g.GSOType != GSONone && (int(g.HdrLen) >= len(p) || g.GSOSize == 0) {
				t.Fatalf("%+v in %d bytes", g, len(p))
			}
		}
		if !Normalize(v, &h, p) {
			return
		}
		once := Get(v)
		if !once.Valid(&h, p) {
			t.Fatalf("normalized to %+v, which is not valid", once)
		}
		if ok := Normalize(v, &h, p); !ok || Get(v) != once {
			t.Fatalf("accepted: %v: %+v, then %+v", ok, once, Get(v))
		}
	})
}
