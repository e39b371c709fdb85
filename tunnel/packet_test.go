package tunnel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// ip4 builds an IPv4 packet; words of the header can be changed afterwards.
func ip4(proto byte, options, l4 []byte) []byte {
	b := []byte{byte(0x40 | (5 + len(options)/4)), 0, 0, 0, 0x12, 0x34, 0, 0, 64, proto, 0, 0, 10, 244, 1, 5, 10, 244, 2, 6}
	b = slices.Concat(b, options, l4)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func ip6(next byte, payload []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, next, 64
	src, dst := netip.MustParseAddr("fd00:1::5").As16(), netip.MustParseAddr("fd00:2::6").As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return append(b, payload...)
}

func tcpHdr(sport, dport uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	b[12] = 5 << 4
	return b
}

func udpHdr(sport, dport uint16) []byte { return tcpHdr(sport, dport)[:8] }

func with(b []byte, at int, v ...byte) []byte {
	copy(b[at:], v)
	return b
}

func TestParse(t *testing.T) {
	tcp, udp := tcpHdr(1000, 80), udpHdr(53, 53)
	for _, c := range []struct {
		name   string
		packet []byte
		reason Reason
		proto  uint8
		l4     int
		l4Len  int
	}{
		{"tcp4", ip4(6, nil, tcp), 0, 6, 20, 20},
		{"udp4", ip4(17, nil, udp), 0, 17, 20, 8},
		{"icmp4 empty", ip4(1, nil, nil), 0, 1, 20, 0},
		{"options", ip4(6, []byte{1, 7, 3, 0}, tcp), 0, 6, 24, 20},
		{"router alert", ip4(2, []byte{148, 4, 0, 0}, nil), 0, 2, 24, 0},
		{"tcp options", ip4(6, nil, with(append(tcpHdr(1, 2), 1, 1, 1, 1), 12, 6<<4)), 0, 6, 20, 24},
		{"fragment", with(ip4(6, nil, nil), 6, 0x20, 1), 0, 6, 0, 0},
		{"first fragment", with(ip4(17, nil, udp), 6, 0x20, 0), 0, 17, 0, 0},
		{"do not fragment", with(ip4(17, nil, udp), 6, 0x40, 0), 0, 17, 20, 8},
		{"tcp6", ip6(6, tcp), 0, 6, 40, 20},
		{"no next header", ip6(59, nil), 0, 59, 40, 0},
		{"hop by hop and udp", ip6(0, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udp...)), 0, 17, 48, 8},
		{"AH and tcp", ip6(51, append(append([]byte{6, 4}, make([]byte, 22)...), tcp...)), 0, 6, 64, 20},
		{"fragment 6", ip6(44, []byte{6, 0, 0, 9, 0, 0, 0, 1}), 0, 6, 0, 0},
		{"routing, used up", ip6(43, append([]byte{17, 0, 4, 0, 0, 0, 0, 0}, udp...)), 0, 17, 48, 8},
		{"ESP", ip6(50, make([]byte, 30)), 0, 50, 40, 0},

		{"empty", nil, DropMalformed, 0, 0, 0},
		{"short", make([]byte, 19), DropMalformed, 0, 0, 0},
		{"version 5", with(ip4(6, nil, tcp), 0, 0x55), DropMalformed, 0, 0, 0},
		{"ihl 4", with(ip4(6, nil, tcp), 0, 0x44), DropMalformed, 0, 0, 0},
		{"ihl beyond", with(ip4(1, nil, nil), 0, 0x46), DropMalformed, 0, 0, 0},
		{"longer than its length", append(ip4(6, nil, tcp), 0), DropMalformed, 0, 0, 0},
		{"shorter than its length", ip4(6, nil, tcp)[:39], DropMalformed, 0, 0, 0},
		{"cut tcp", ip4(6, nil, tcp[:19]), DropMalformed, 0, 0, 0},
		{"tcp offset 4", ip4(6, nil, with(tcpHdr(1, 2), 12, 4<<4)), DropMalformed, 0, 0, 0},
		{"tcp offset beyond", ip4(6, nil, with(tcpHdr(1, 2), 12, 6<<4)), DropMalformed, 0, 0, 0},
		{"cut udp", ip4(17, nil, udp[:7]), DropMalformed, 0, 0, 0},
		{"cut option", ip4(6, []byte{7, 5, 0, 0}, tcp), DropMalformed, 0, 0, 0},
		{"option of length 0", ip4(6, []byte{7, 0, 0, 0}, tcp), DropMalformed, 0, 0, 0},
		{"option without length", ip4(6, []byte{1, 1, 1, 7}, tcp), DropMalformed, 0, 0, 0},
		{"loose source route", ip4(6, []byte{131, 3, 4, 0}, tcp), DropSourceRoute, 0, 0, 0},
		{"strict source route", ip4(6, []byte{1, 137, 3, 4}, tcp), DropSourceRoute, 0, 0, 0},
		{"short 6", ip6(59, nil)[:39], DropMalformed, 0, 0, 0},
		{"jumbo", with(ip6(0, append([]byte{6, 0, 194, 4, 0, 1, 0, 0}, tcp...)), 4, 0, 0), DropMalformed, 0, 0, 0},
		{"cut extension", ip6(0, []byte{17, 0, 1}), DropMalformed, 0, 0, 0},
		{"extension beyond", ip6(60, []byte{17, 1, 1, 4, 0, 0, 0, 0}), DropMalformed, 0, 0, 0},
		{"cut AH", ip6(51, []byte{17, 1, 1, 4, 0, 0, 0, 0}), DropMalformed, 0, 0, 0},
		{"cut fragment", ip6(44, []byte{17, 0, 0}), DropMalformed, 0, 0, 0},
		{"segments left", ip6(43, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, udp...)), DropSourceRoute, 0, 0, 0},
		{"endless extensions", ip6(60, slices.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 20)), DropMalformed, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h header
			if r := h.parse(c.packet, 1); r != c.reason {
				t.Fatalf("reason %s, want %s", r, c.reason)
			}
			if c.reason == 0 && (h.proto != c.proto || h.l4 != c.l4 || h.l4Len != c.l4Len) {
				t.Errorf("proto %d, l4 %d+%d, want %d, %d+%d", h.proto, h.l4, h.l4Len, c.proto, c.l4, c.l4Len)
			}
			if c.reason == 0 && (h.lane() == StreamLane) != (c.proto == 6) {
				t.Errorf("lane %d", h.lane())
			}
		})
	}
}

// TestFlow: ports make a flow, except that of fragments, whose later ones have none.
func TestFlow(t *testing.T) {
	flow := func(b []byte) uint32 {
		var h header
		if r := h.parse(b, 99); r != 0 {
			t.Fatal(r)
		}
		return h.flow
	}
	for name, same := range map[string][2][]byte{
		"payload":     {ip4(17, nil, udpHdr(1, 2)), ip4(17, nil, append(udpHdr(1, 2), 5))},
		"fragments":   {with(ip4(17, nil, udpHdr(1, 2)), 6, 0x20, 0), with(ip4(17, nil, udpHdr(3, 4)), 6, 0, 9)},
		"fragments 6": {ip6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}), ip6(44, []byte{17, 0, 0, 80, 0, 0, 0, 1, 5})},
	} {
		if flow(same[0]) != flow(same[1]) {
			t.Errorf("%s: two flows", name)
		}
	}
	for name, differ := range map[string][2][]byte{
		"ports":       {ip4(17, nil, udpHdr(1, 2)), ip4(17, nil, udpHdr(1, 3))},
		"protocol":    {ip4(17, nil, udpHdr(1, 2)), ip4(132, nil, udpHdr(1, 2))},
		"addresses":   {ip4(17, nil, udpHdr(1, 2)), with(ip4(17, nil, udpHdr(1, 2)), 19, 7)},
		"addresses 6": {ip6(17, udpHdr(1, 2)), with(ip6(17, udpHdr(1, 2)), 39, 7)},
		"datagrams":   {with(ip4(17, nil, nil), 4, 0, 1, 0x20, 0), with(ip4(17, nil, nil), 4, 0, 2, 0x20, 0)},
		"datagrams 6": {ip6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}), ip6(44, []byte{17, 0, 0, 1, 0, 0, 0, 2})},
	} {
		if flow(differ[0]) == flow(differ[1]) {
			t.Errorf("%s: one flow", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ip4(6, []byte{131, 3, 4, 0}, tcpHdr(1, 2)))
	f.Add(ip6(0, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udpHdr(1, 2)...)))
	f.Add(ip6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}))
	f.Add(ip6(43, []byte{51, 0, 0, 0, 0, 0, 0, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again header
		r := h.parse(b, 1)
		if r != 0 {
			if r != DropMalformed && r != DropSourceRoute {
				t.Fatalf("reason %s", r)
			}
			return
		}
		if !h.src.IsValid() || !h.dst.IsValid() || h.src.Is4() != (h.version == 4) {
			t.Fatalf("addresses %v %v of version %d", h.src, h.dst, h.version)
		}
		if h.l4+h.l4Len > len(b) || h.fragment != (h.l4 == 0) {
			t.Fatalf("l4 %d+%d of %d bytes, fragment %v", h.l4, h.l4Len, len(b), h.fragment)
		}
		_, _ = h.noise(), answerable(&h, b)
		if again.parse(b, 1); again != h {
			t.Fatalf("%+v, then %+v", h, again)
		}
	})
}
