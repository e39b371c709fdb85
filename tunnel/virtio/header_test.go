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

func TestValid(t *testing.T) {
	tcp4 := inettest.IPv4(6, nil, append(inettest.TCP(1, 2), make([]byte, 3000)...))
	tcp6 := inettest.IPv6(6, append(inettest.TCP(1, 2), make([]byte, 3000)...))
	udp4 := inettest.IPv4(17, nil, append(inettest.UDP(1, 2), make([]byte, 3000)...))
	icmp := inettest.IPv4(1, nil, make([]byte, 3000))
	frag := inettest.With(inettest.IPv4(6, nil, append(inettest.TCP(1, 2), make([]byte, 3000)...)), 6, 0x20)
	for _, c := range []struct {
		name   string
		packet []byte
		v      Header
		ok     bool
	}{
		{"plain", tcp4, Header{}, true},
		{"plain icmp", icmp, Header{}, true},
		{"tcp checksum", tcp4, Header{Flags: 1, CsumStart: 20, CsumOffset: 16}, true},
		{"udp checksum", udp4, Header{Flags: 1, CsumStart: 20, CsumOffset: 6}, true},
		{"tso4", tcp4, Header{1, GSOTCPv4, 40, 1460, 20, 16}, true},
		{"tso4 ecn", tcp4, Header{1, GSOTCPv4 | GSOECN, 40, 1460, 20, 16}, true},
		{"tso6", tcp6, Header{1, GSOTCPv6, 60, 1440, 40, 16}, true},
		{"uso", udp4, Header{1, GSOUDP, 28, 1472, 20, 6}, true},
		{"one segment", tcp4, Header{1, GSOTCPv4, 40, 60000, 20, 16}, true},

		{"data valid", tcp4, Header{Flags: 2}, false},
		{"unknown flag", tcp4, Header{Flags: 8}, false},
		{"csum without flag", tcp4, Header{CsumStart: 20, CsumOffset: 16}, false},
		{"csum in the ip header", tcp4, Header{Flags: 1, CsumStart: 0, CsumOffset: 16}, false},
		{"csum beyond", tcp4, Header{Flags: 1, CsumStart: 65535, CsumOffset: 16}, false},
		{"csum offset", tcp4, Header{Flags: 1, CsumStart: 20, CsumOffset: 6}, false},
		{"csum of icmp", icmp, Header{Flags: 1, CsumStart: 20, CsumOffset: 2}, false},
		{"csum of a fragment", frag, Header{Flags: 1, CsumStart: 20, CsumOffset: 16}, false},
		{"gso size without gso", tcp4, Header{GSOSize: 1460}, false},
		{"hdr len without gso", tcp4, Header{HdrLen: 40}, false},
		{"ecn alone", tcp4, Header{Flags: 1, GSOType: GSOECN, CsumStart: 20, CsumOffset: 16}, false},
		{"tso without csum", tcp4, Header{0, GSOTCPv4, 40, 1460, 0, 0}, false},
		{"tso4 of ipv6", tcp6, Header{1, GSOTCPv4, 60, 1440, 40, 16}, false},
		{"tso6 of ipv4", tcp4, Header{1, GSOTCPv6, 40, 1440, 20, 16}, false},
		{"tso of udp", udp4, Header{1, GSOTCPv4, 28, 1472, 20, 6}, false},
		{"uso of tcp", tcp4, Header{1, GSOUDP, 40, 1472, 20, 16}, false},
		{"uso with ecn", udp4, Header{1, GSOUDP | GSOECN, 28, 1472, 20, 6}, false},
		{"ufo", udp4, Header{1, 3, 28, 1472, 20, 6}, false},
		{"hdr len short", tcp4, Header{1, GSOTCPv4, 39, 1460, 20, 16}, false},
		{"hdr len beyond", tcp4, Header{1, GSOTCPv4, 65535, 1460, 20, 16}, false},
		{"gso size 0", tcp4, Header{1, GSOTCPv4, 40, 0, 20, 16}, false},
		{"gso size 1", tcp4, Header{1, GSOTCPv4, 40, 1, 20, 16}, false},
		{"uso size 0", udp4, Header{1, GSOUDP, 28, 0, 20, 6}, false},
		{"too many datagrams", udp4, Header{1, GSOUDP, 28, 20, 20, 6}, false},
		{"no payload", inettest.IPv4(6, nil, inettest.TCP(1, 2)), Header{1, GSOTCPv4, 40, 1460, 20, 16}, false},
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
	tcp := func() []byte { return inettest.IPv4(6, nil, append(inettest.TCP(1, 2), make([]byte, 3000)...)) }
	for _, c := range []struct {
		name   string
		packet []byte
		in     Header
		ok     bool
		out    Header
	}{
		{"plain", tcp(), Header{}, true, Header{}},
		{"data valid", tcp(), Header{Flags: 2}, true, Header{}},
		{"checksum, header hint", tcp(), Header{1, 0, 99, 0, 20, 16}, true, Header{1, 0, 0, 0, 20, 16}},
		{"forwarded tso", tcp(), Header{1, GSOTCPv4, 3000, 1460, 20, 16}, true, Header{1, GSOTCPv4, 40, 1460, 20, 16}},
		{"tso, nothing in it", inettest.IPv4(6, nil, inettest.TCP(1, 2)), Header{1, GSOTCPv4, 40, 1460, 20, 16}, true, Header{1, 0, 0, 0, 20, 16}},
		{"finished tso", tcp(), Header{2, GSOTCPv4, 40, 1460, 0, 0}, true, Header{1, GSOTCPv4, 40, 1460, 20, 16}},
		{"inner checksum", inettest.IPv4(4, nil, tcp()), Header{1, 0, 0, 0, 40, 16}, true, Header{}},
		{"inner checksum beyond", inettest.IPv4(4, nil, tcp()), Header{1, 0, 0, 0, 3060, 16}, false, Header{}},
		{"inner tso", inettest.IPv4(4, nil, tcp()), Header{1, GSOTCPv4, 60, 1460, 40, 16}, false, Header{}},
		{"ufo", inettest.IPv4(17, nil, append(inettest.UDP(1, 2), 1)), Header{1, 3, 28, 100, 20, 6}, false, Header{}},
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
	f.Add(wire(Header{1, GSOTCPv4, 40, 1460, 20, 16}), inettest.IPv4(6, nil, append(inettest.TCP(1, 2), make([]byte, 3000)...)))
	f.Add(wire(Header{1, GSOUDP, 48, 100, 40, 6}), inettest.IPv6(17, append(inettest.UDP(1, 2), make([]byte, 3000)...)))
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
