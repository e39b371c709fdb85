package inet

import (
	"slices"
	"testing"

	"edgemesh/tunnel/inet/inettest"
)

func TestParse(t *testing.T) {
	tcp, udp := inettest.TCP(1000, 80), inettest.UDP(53, 53)
	for _, c := range []struct {
		name   string
		packet []byte
		err    error
		proto  uint8
		l4     int
		l4Len  int
	}{
		{"tcp4", inettest.IPv4(6, nil, tcp), nil, 6, 20, 20},
		{"udp4", inettest.IPv4(17, nil, udp), nil, 17, 20, 8},
		{"icmp4 empty", inettest.IPv4(1, nil, nil), nil, 1, 20, 0},
		{"options", inettest.IPv4(6, []byte{1, 7, 3, 0}, tcp), nil, 6, 24, 20},
		{"router alert", inettest.IPv4(2, []byte{148, 4, 0, 0}, nil), nil, 2, 24, 0},
		{"tcp options", inettest.IPv4(6, nil, inettest.With(append(inettest.TCP(1, 2), 1, 1, 1, 1), 12, 6<<4)), nil, 6, 20, 24},
		{"fragment", inettest.With(inettest.IPv4(6, nil, nil), 6, 0x20, 1), nil, 6, 0, 0},
		{"first fragment", inettest.With(inettest.IPv4(17, nil, udp), 6, 0x20, 0), nil, 17, 0, 0},
		{"do not fragment", inettest.With(inettest.IPv4(17, nil, udp), 6, 0x40, 0), nil, 17, 20, 8},
		{"tcp6", inettest.IPv6(6, tcp), nil, 6, 40, 20},
		{"no next header", inettest.IPv6(59, nil), nil, 59, 40, 0},
		{"hop by hop and udp", inettest.IPv6(0, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udp...)), nil, 17, 48, 8},
		{"AH and tcp", inettest.IPv6(51, append(append([]byte{6, 4}, make([]byte, 22)...), tcp...)), nil, 6, 64, 20},
		{"fragment 6", inettest.IPv6(44, []byte{6, 0, 0, 9, 0, 0, 0, 1}), nil, 6, 0, 0},
		{"routing, used up", inettest.IPv6(43, append([]byte{17, 0, 4, 0, 0, 0, 0, 0}, udp...)), nil, 17, 48, 8},
		{"ESP", inettest.IPv6(50, make([]byte, 30)), nil, 50, 40, 0},

		{"empty", nil, ErrMalformed, 0, 0, 0},
		{"short", make([]byte, 19), ErrMalformed, 0, 0, 0},
		{"version 5", inettest.With(inettest.IPv4(6, nil, tcp), 0, 0x55), ErrMalformed, 0, 0, 0},
		{"ihl 4", inettest.With(inettest.IPv4(6, nil, tcp), 0, 0x44), ErrMalformed, 0, 0, 0},
		{"ihl beyond", inettest.With(inettest.IPv4(1, nil, nil), 0, 0x46), ErrMalformed, 0, 0, 0},
		{"longer than its length", append(inettest.IPv4(6, nil, tcp), 0), ErrMalformed, 0, 0, 0},
		{"shorter than its length", inettest.IPv4(6, nil, tcp)[:39], ErrMalformed, 0, 0, 0},
		{"cut tcp", inettest.IPv4(6, nil, tcp[:19]), ErrMalformed, 0, 0, 0},
		{"tcp offset 4", inettest.IPv4(6, nil, inettest.With(inettest.TCP(1, 2), 12, 4<<4)), ErrMalformed, 0, 0, 0},
		{"tcp offset beyond", inettest.IPv4(6, nil, inettest.With(inettest.TCP(1, 2), 12, 6<<4)), ErrMalformed, 0, 0, 0},
		{"cut udp", inettest.IPv4(17, nil, udp[:7]), ErrMalformed, 0, 0, 0},
		{"cut option", inettest.IPv4(6, []byte{7, 5, 0, 0}, tcp), ErrMalformed, 0, 0, 0},
		{"option of length 0", inettest.IPv4(6, []byte{7, 0, 0, 0}, tcp), ErrMalformed, 0, 0, 0},
		{"option without length", inettest.IPv4(6, []byte{1, 1, 1, 7}, tcp), ErrMalformed, 0, 0, 0},
		{"loose source route", inettest.IPv4(6, []byte{131, 3, 4, 0}, tcp), ErrSourceRoute, 0, 0, 0},
		{"strict source route", inettest.IPv4(6, []byte{1, 137, 3, 4}, tcp), ErrSourceRoute, 0, 0, 0},
		{"short 6", inettest.IPv6(59, nil)[:39], ErrMalformed, 0, 0, 0},
		{"jumbo", inettest.With(inettest.IPv6(0, append([]byte{6, 0, 194, 4, 0, 1, 0, 0}, tcp...)), 4, 0, 0), ErrMalformed, 0, 0, 0},
		{"cut extension", inettest.IPv6(0, []byte{17, 0, 1}), ErrMalformed, 0, 0, 0},
		{"extension beyond", inettest.IPv6(60, []byte{17, 1, 1, 4, 0, 0, 0, 0}), ErrMalformed, 0, 0, 0},
		{"cut AH", inettest.IPv6(51, []byte{17, 1, 1, 4, 0, 0, 0, 0}), ErrMalformed, 0, 0, 0},
		{"cut fragment", inettest.IPv6(44, []byte{17, 0, 0}), ErrMalformed, 0, 0, 0},
		{"segments left", inettest.IPv6(43, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, udp...)), ErrSourceRoute, 0, 0, 0},
		{"endless extensions", inettest.IPv6(60, slices.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 20)), ErrMalformed, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Header
			if r := h.Parse(c.packet, 1); r != c.err {
				t.Fatalf("%v, want %v", r, c.err)
			}
			if c.err == nil && (h.Proto != c.proto || h.L4 != c.l4 || h.L4Len != c.l4Len) {
				t.Errorf("proto %d, l4 %d+%d, want %d, %d+%d", h.Proto, h.L4, h.L4Len, c.proto, c.l4, c.l4Len)
			}
		})
	}
}

// TestFlow: ports make a flow, except that of fragments, whose later ones have none.
func TestFlow(t *testing.T) {
	flow := func(b []byte) uint32 {
		var h Header
		if r := h.Parse(b, 99); r != nil {
			t.Fatal(r)
		}
		return h.Flow
	}
	for name, same := range map[string][2][]byte{
		"payload":     {inettest.IPv4(17, nil, inettest.UDP(1, 2)), inettest.IPv4(17, nil, append(inettest.UDP(1, 2), 5))},
		"fragments":   {inettest.With(inettest.IPv4(17, nil, inettest.UDP(1, 2)), 6, 0x20, 0), inettest.With(inettest.IPv4(17, nil, inettest.UDP(3, 4)), 6, 0, 9)},
		"fragments 6": {inettest.IPv6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}), inettest.IPv6(44, []byte{17, 0, 0, 80, 0, 0, 0, 1, 5})},
	} {
		if flow(same[0]) != flow(same[1]) {
			t.Errorf("%s: two flows", name)
		}
	}
	for name, differ := range map[string][2][]byte{
		"ports":       {inettest.IPv4(17, nil, inettest.UDP(1, 2)), inettest.IPv4(17, nil, inettest.UDP(1, 3))},
		"protocol":    {inettest.IPv4(17, nil, inettest.UDP(1, 2)), inettest.IPv4(132, nil, inettest.UDP(1, 2))},
		"addresses":   {inettest.IPv4(17, nil, inettest.UDP(1, 2)), inettest.With(inettest.IPv4(17, nil, inettest.UDP(1, 2)), 19, 7)},
		"addresses 6": {inettest.IPv6(17, inettest.UDP(1, 2)), inettest.With(inettest.IPv6(17, inettest.UDP(1, 2)), 39, 7)},
		"datagrams":   {inettest.With(inettest.IPv4(17, nil, nil), 4, 0, 1, 0x20, 0), inettest.With(inettest.IPv4(17, nil, nil), 4, 0, 2, 0x20, 0)},
		"datagrams 6": {inettest.IPv6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}), inettest.IPv6(44, []byte{17, 0, 0, 1, 0, 0, 0, 2})},
	} {
		if flow(differ[0]) == flow(differ[1]) {
			t.Errorf("%s: one flow", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(inettest.IPv4(6, []byte{131, 3, 4, 0}, inettest.TCP(1, 2)))
	f.Add(inettest.IPv6(0, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, inettest.UDP(1, 2)...)))
	f.Add(inettest.IPv6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}))
	f.Add(inettest.IPv6(43, []byte{51, 0, 0, 0, 0, 0, 0, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		r := h.Parse(b, 1)
		if r != nil {
			if r != ErrMalformed && r != ErrSourceRoute {
				t.Fatalf("error %v", r)
			}
			return
		}
		if !h.Src.IsValid() || !h.Dst.IsValid() || h.Src.Is4() != (h.Version == 4) {
			t.Fatalf("addresses %v %v of version %d", h.Src, h.Dst, h.Version)
		}
		if h.L4+h.L4Len > len(b) || h.Fragment != (h.L4 == 0) {
			t.Fatalf("l4 %d+%d of %d bytes, fragment %v", h.L4, h.L4Len, len(b), h.Fragment)
		}
		if again.Parse(b, 1); again != h {
			t.Fatalf("%+v, then %+v", h, again)
		}
	})
}
