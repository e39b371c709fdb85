package tunnel

import (
	"bytes"
	"testing"
)

// hdr builds a header as it is on the wire.
func hdr(v vnetHdr) []byte {
	b := make([]byte, VnetHdrLen)
	v.put(b)
	return b
}

func TestVnetValid(t *testing.T) {
	tcp4 := ip4(6, nil, append(tcpHdr(1, 2), make([]byte, 3000)...))
	tcp6 := ip6(6, append(tcpHdr(1, 2), make([]byte, 3000)...))
	udp4 := ip4(17, nil, append(udpHdr(1, 2), make([]byte, 3000)...))
	icmp := ip4(1, nil, make([]byte, 3000))
	frag := with(ip4(6, nil, append(tcpHdr(1, 2), make([]byte, 3000)...)), 6, 0x20)
	for _, c := range []struct {
		name   string
		packet []byte
		v      vnetHdr
		ok     bool
	}{
		{"plain", tcp4, vnetHdr{}, true},
		{"plain icmp", icmp, vnetHdr{}, true},
		{"tcp checksum", tcp4, vnetHdr{flags: 1, csumStart: 20, csumOffset: 16}, true},
		{"udp checksum", udp4, vnetHdr{flags: 1, csumStart: 20, csumOffset: 6}, true},
		{"tso4", tcp4, vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}, true},
		{"tso4 ecn", tcp4, vnetHdr{1, gsoTCPv4 | gsoECN, 40, 1460, 20, 16}, true},
		{"tso6", tcp6, vnetHdr{1, gsoTCPv6, 60, 1440, 40, 16}, true},
		{"uso", udp4, vnetHdr{1, gsoUDPL4, 28, 1472, 20, 6}, true},
		{"one segment", tcp4, vnetHdr{1, gsoTCPv4, 40, 60000, 20, 16}, true},

		{"data valid", tcp4, vnetHdr{flags: 2}, false},
		{"unknown flag", tcp4, vnetHdr{flags: 8}, false},
		{"csum without flag", tcp4, vnetHdr{csumStart: 20, csumOffset: 16}, false},
		{"csum in the ip header", tcp4, vnetHdr{flags: 1, csumStart: 0, csumOffset: 16}, false},
		{"csum beyond", tcp4, vnetHdr{flags: 1, csumStart: 65535, csumOffset: 16}, false},
		{"csum offset", tcp4, vnetHdr{flags: 1, csumStart: 20, csumOffset: 6}, false},
		{"csum of icmp", icmp, vnetHdr{flags: 1, csumStart: 20, csumOffset: 2}, false},
		{"csum of a fragment", frag, vnetHdr{flags: 1, csumStart: 20, csumOffset: 16}, false},
		{"gso size without gso", tcp4, vnetHdr{gsoSize: 1460}, false},
		{"hdr len without gso", tcp4, vnetHdr{hdrLen: 40}, false},
		{"ecn alone", tcp4, vnetHdr{flags: 1, gsoType: gsoECN, csumStart: 20, csumOffset: 16}, false},
		{"tso without csum", tcp4, vnetHdr{0, gsoTCPv4, 40, 1460, 0, 0}, false},
		{"tso4 of ipv6", tcp6, vnetHdr{1, gsoTCPv4, 60, 1440, 40, 16}, false},
		{"tso6 of ipv4", tcp4, vnetHdr{1, gsoTCPv6, 40, 1440, 20, 16}, false},
		{"tso of udp", udp4, vnetHdr{1, gsoTCPv4, 28, 1472, 20, 6}, false},
		{"uso of tcp", tcp4, vnetHdr{1, gsoUDPL4, 40, 1472, 20, 16}, false},
		{"uso with ecn", udp4, vnetHdr{1, gsoUDPL4 | gsoECN, 28, 1472, 20, 6}, false},
		{"ufo", udp4, vnetHdr{1, 3, 28, 1472, 20, 6}, false},
		{"hdr len short", tcp4, vnetHdr{1, gsoTCPv4, 39, 1460, 20, 16}, false},
		{"hdr len beyond", tcp4, vnetHdr{1, gsoTCPv4, 65535, 1460, 20, 16}, false},
		{"gso size 0", tcp4, vnetHdr{1, gsoTCPv4, 40, 0, 20, 16}, false},
		{"gso size 1", tcp4, vnetHdr{1, gsoTCPv4, 40, 1, 20, 16}, false},
		{"uso size 0", udp4, vnetHdr{1, gsoUDPL4, 28, 0, 20, 6}, false},
		{"too many datagrams", udp4, vnetHdr{1, gsoUDPL4, 28, 20, 20, 6}, false},
		{"no payload", ip4(6, nil, tcpHdr(1, 2)), vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h header
			if r := h.parse(c.packet, 1); r != 0 {
				t.Fatal(r)
			}
			if got := getVnetHdr(hdr(c.v)); got != c.v {
				t.Fatalf("read back as %+v", got)
			}
			if ok := c.v.valid(&h, c.packet); ok != c.ok {
				t.Errorf("valid: %v", ok)
			}
		})
	}
}

func TestNormalize(t *testing.T) {
	tcp := func() []byte { return ip4(6, nil, append(tcpHdr(1, 2), make([]byte, 3000)...)) }
	for _, c := range []struct {
		name   string
		packet []byte
		in     vnetHdr
		reason Reason
		out    vnetHdr
	}{
		{"plain", tcp(), vnetHdr{}, 0, vnetHdr{}},
		{"data valid", tcp(), vnetHdr{flags: 2}, 0, vnetHdr{}},
		{"checksum, header hint", tcp(), vnetHdr{1, 0, 99, 0, 20, 16}, 0, vnetHdr{1, 0, 0, 0, 20, 16}},
		{"forwarded tso", tcp(), vnetHdr{1, gsoTCPv4, 3000, 1460, 20, 16}, 0, vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}},
		{"tso, nothing in it", ip4(6, nil, tcpHdr(1, 2)), vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}, 0, vnetHdr{1, 0, 0, 0, 20, 16}},
		{"finished tso", tcp(), vnetHdr{2, gsoTCPv4, 40, 1460, 0, 0}, 0, vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}},
		{"inner checksum", ip4(4, nil, tcp()), vnetHdr{1, 0, 0, 0, 40, 16}, 0, vnetHdr{}},
		{"inner checksum beyond", ip4(4, nil, tcp()), vnetHdr{1, 0, 0, 0, 3060, 16}, DropBadOffload, vnetHdr{}},
		{"inner tso", ip4(4, nil, tcp()), vnetHdr{1, gsoTCPv4, 60, 1460, 40, 16}, DropBadOffload, vnetHdr{}},
		{"ufo", ip4(17, nil, append(udpHdr(1, 2), 1)), vnetHdr{1, 3, 28, 100, 20, 6}, DropBadOffload, vnetHdr{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h header
			if r := h.parse(c.packet, 1); r != 0 {
				t.Fatal(r)
			}
			b := hdr(c.in)
			if r := normalize(b, &h, c.packet); r != c.reason {
				t.Fatalf("reason %s, want %s", r, c.reason)
			}
			if v := getVnetHdr(b); c.reason == 0 && v != c.out {
				t.Errorf("%+v, want %+v", v, c.out)
			}
		})
	}
}

// TestChecksums: partial, then finished, is what the receiver's kernel sums up to.
func TestChecksums(t *testing.T) {
	for name, p := range map[string][]byte{
		"tcp4":     ip4(6, nil, append(tcpHdr(1, 2), 1, 2, 3)),
		"udp4":     ip4(17, nil, append(udpHdr(1, 2), 1, 2, 3, 4)),
		"tcp6":     ip6(6, append(tcpHdr(1, 2), bytes.Repeat([]byte{0xff}, 60000)...)),
		"udp6 odd": ip6(17, append(udpHdr(1, 2), 0xfe)),
	} {
		var h header
		if r := h.parse(p, 1); r != 0 {
			t.Fatal(r)
		}
		off, _ := csumOffset(&h)
		partialChecksum(p, &h, int(off))
		if !finishChecksum(p, h.l4, int(off)) {
			t.Fatal("refused")
		}
		addrs := p[12:20]
		if h.version == 6 {
			addrs = p[8:40]
		}
		n := len(p) - h.l4
		if c := checksum(sumWords(uint32(h.proto)+uint32(n), addrs), p[h.l4:]); c != 0xffff {
			t.Errorf("%s: sum %#x", name, c)
		}
	}
}

func FuzzVnet(f *testing.F) {
	f.Add(hdr(vnetHdr{1, gsoTCPv4, 40, 1460, 20, 16}), ip4(6, nil, append(tcpHdr(1, 2), make([]byte, 3000)...)))
	f.Add(hdr(vnetHdr{1, gsoUDPL4, 48, 100, 40, 6}), ip6(17, append(udpHdr(1, 2), make([]byte, 3000)...)))
	f.Add(hdr(vnetHdr{flags: 1, csumStart: 40, csumOffset: 16}), ip4(4, nil, ip4(6, nil, tcpHdr(1, 2))))
	f.Fuzz(func(t *testing.T, v, p []byte) {
		var h header
		if len(v) != VnetHdrLen || h.parse(p, 1) != 0 {
			return
		}
		if g := getVnetHdr(v); g.valid(&h, p) {
			if end := int(g.csumStart) + int(g.csumOffset) + 2; g.flags != 0 && (end > len(p) || int(g.csumStart) < 20) {
				t.Fatalf("checksum ends at %d of %d", end, len(p))
			}
			if g.gsoType != 0 && (int(g.hdrLen) >= len(p) || g.gsoSize == 0) {
				t.Fatalf("%+v in %d bytes", g, len(p))
			}
		}
		if normalize(v, &h, p) != 0 {
			return
		}
		once := getVnetHdr(v)
		if !once.valid(&h, p) {
			t.Fatalf("normalized to %+v, which is not valid", once)
		}
		if r := normalize(v, &h, p); r != 0 || getVnetHdr(v) != once {
			t.Fatalf("%s: %+v, then %+v", r, once, getVnetHdr(v))
		}
	})
}
