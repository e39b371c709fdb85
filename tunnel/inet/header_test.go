package inet

import (
	"errors"
	"slices"
	"testing"

	. "edgemesh/tunnel/inet/inettest" //nolint:staticcheck // its builders make tables readable
)

func TestParse(t *testing.T) {
	tcp, udp := TCP(1000, 80), UDP(53, 53)
	for _, c := range []struct {
		name   string
		packet []byte
		proto  uint8
		l4     int // offset
		l4Len  int
	}{
		{"tcp4", IPv4(ProtoTCP, nil, tcp), ProtoTCP, 20, 20},
		{"udp4", IPv4(ProtoUDP, nil, udp), ProtoUDP, 20, 8},
		{"icmp4 empty", IPv4(ProtoICMP, nil, nil), ProtoICMP, 20, 0},
		{"options", IPv4(ProtoTCP, []byte{1, 7, 3, 0}, tcp), ProtoTCP, 24, 20},
		{"router alert", IPv4(2, []byte{148, 4, 0, 0}, nil), 2, 24, 0},
		{"tcp options", IPv4(ProtoTCP, nil, With(append(TCP(1, 2), 1, 1, 1, 1), 12, 6<<4)), ProtoTCP, 20, 24},
		{"fragment", With(IPv4(ProtoTCP, nil, nil), 6, 0x20, 1), ProtoTCP, 0, 0},
		{"first fragment", With(IPv4(ProtoUDP, nil, udp), 6, 0x20, 0), ProtoUDP, 0, 0},
		{"do not fragment", With(IPv4(ProtoUDP, nil, udp), 6, 0x40, 0), ProtoUDP, 20, 8},
		{"tcp6", IPv6(ProtoTCP, tcp), ProtoTCP, 40, 20},
		{"no next header", IPv6(59, nil), 59, 40, 0},
		{"hop by hop and udp", IPv6(ipv6HopByHop, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udp...)), ProtoUDP, 48, 8},
		{"AH and tcp", IPv6(ipv6AH, append(append([]byte{6, 4}, make([]byte, 22)...), tcp...)), ProtoTCP, 64, 20},
		{"fragment 6", IPv6(ipv6Fragment, []byte{6, 0, 0, 9, 0, 0, 0, 1}), ProtoTCP, 0, 0},
		{"routing, used up", IPv6(ipv6Routing, append([]byte{17, 0, 4, 0, 0, 0, 0, 0}, udp...)), ProtoUDP, 48, 8},
		{"ESP", IPv6(50, make([]byte, 30)), 50, 40, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Header
			if err := h.Parse(c.packet, 1); err != nil {
				t.Fatal(err)
			}
			if h.Proto != c.proto || h.L4 != c.l4 || h.L4Len != c.l4Len {
				t.Errorf("protocol %d at %d+%d, want %d at %d+%d", h.Proto, h.L4, h.L4Len, c.proto, c.l4, c.l4Len)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tcp, udp := TCP(1000, 80), UDP(53, 53)
	for _, c := range []struct {
		name   string
		packet []byte
		want   error
	}{
		{"empty", nil, ErrMalformed},
		{"short", make([]byte, 19), ErrMalformed},
		{"version 5", With(IPv4(ProtoTCP, nil, tcp), 0, 0x55), ErrMalformed},
		{"ihl 4", With(IPv4(ProtoTCP, nil, tcp), 0, 0x44), ErrMalformed},
		{"ihl beyond", With(IPv4(ProtoICMP, nil, nil), 0, 0x46), ErrMalformed},
		{"longer than its length", append(IPv4(ProtoTCP, nil, tcp), 0), ErrMalformed},
		{"shorter than its length", IPv4(ProtoTCP, nil, tcp)[:39], ErrMalformed},
		{"cut tcp", IPv4(ProtoTCP, nil, tcp[:19]), ErrMalformed},
		{"tcp offset 4", IPv4(ProtoTCP, nil, With(TCP(1, 2), 12, 4<<4)), ErrMalformed},
		{"tcp offset beyond", IPv4(ProtoTCP, nil, With(TCP(1, 2), 12, 6<<4)), ErrMalformed},
		{"cut udp", IPv4(ProtoUDP, nil, udp[:7]), ErrMalformed},
		{"cut option", IPv4(ProtoTCP, []byte{7, 5, 0, 0}, tcp), ErrMalformed},
		{"option of length 0", IPv4(ProtoTCP, []byte{7, 0, 0, 0}, tcp), ErrMalformed},
		{"option without length", IPv4(ProtoTCP, []byte{1, 1, 1, 7}, tcp), ErrMalformed},
		{"loose source route", IPv4(ProtoTCP, []byte{131, 3, 4, 0}, tcp), ErrSourceRoute},
		{"strict source route", IPv4(ProtoTCP, []byte{1, 137, 3, 4}, tcp), ErrSourceRoute},
		{"short 6", IPv6(59, nil)[:39], ErrMalformed},
		{"jumbo", With(IPv6(ipv6HopByHop, append([]byte{6, 0, 194, 4, 0, 1, 0, 0}, tcp...)), 4, 0, 0), ErrMalformed},
		{"cut extension", IPv6(ipv6HopByHop, []byte{17, 0, 1}), ErrMalformed},
		{"extension beyond", IPv6(ipv6DestOpts, []byte{17, 1, 1, 4, 0, 0, 0, 0}), ErrMalformed},
		{"cut AH", IPv6(ipv6AH, []byte{17, 1, 1, 4, 0, 0, 0, 0}), ErrMalformed},
		{"cut fragment", IPv6(ipv6Fragment, []byte{17, 0, 0}), ErrMalformed},
		{"segments left", IPv6(ipv6Routing, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, udp...)), ErrSourceRoute},
		{"options behind a fragment header", IPv6(ipv6Fragment, append([]byte{60, 0, 0, 1, 0, 0, 0, 1}, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, udp...)...)), ErrExtension},
		{"route behind a fragment header", IPv6(ipv6Fragment, append([]byte{43, 0, 0, 0, 0, 0, 0, 1}, append([]byte{17, 0, 4, 1, 0, 0, 0, 0}, udp...)...)), ErrExtension},
		{"options in a later fragment", IPv6(ipv6Fragment, []byte{0, 0, 0, 80, 0, 0, 0, 1, 5}), ErrExtension},
		{"a fragment of a fragment", IPv6(ipv6Fragment, append([]byte{44, 0, 0, 0, 0, 0, 0, 1}, []byte{17, 0, 0, 1, 0, 0, 0, 2}...)), ErrExtension},
		{"AH behind options and a fragment header", IPv6(ipv6DestOpts, append([]byte{44, 0, 1, 4, 0, 0, 0, 0}, []byte{51, 0, 0, 1, 0, 0, 0, 2}...)), ErrExtension},
		{"endless extensions", IPv6(ipv6DestOpts, slices.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 20)), ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Header
			if err := h.Parse(c.packet, 1); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestFlow: ports make a flow, except that of fragments, whose later ones have none.
func TestFlow(t *testing.T) {
	flow := func(b []byte) uint32 {
		var h Header
		if err := h.Parse(b, 99); err != nil {
			t.Fatal(err)
		}
		return h.Flow
	}
	for name, same := range map[string][2][]byte{
		"payload":     {IPv4(ProtoUDP, nil, UDP(1, 2)), IPv4(ProtoUDP, nil, append(UDP(1, 2), 5))},
		"fragments":   {With(IPv4(ProtoUDP, nil, UDP(1, 2)), 6, 0x20, 0), With(IPv4(ProtoUDP, nil, UDP(3, 4)), 6, 0, 9)},
		"fragments 6": {IPv6(ipv6Fragment, []byte{17, 0, 0, 1, 0, 0, 0, 1}), IPv6(ipv6Fragment, []byte{17, 0, 0, 80, 0, 0, 0, 1, 5})},
	} {
		if flow(same[0]) != flow(same[1]) {
			t.Errorf("%s: two flows", name)
		}
	}
	for name, differ := range map[string][2][]byte{
		"ports":       {IPv4(ProtoUDP, nil, UDP(1, 2)), IPv4(ProtoUDP, nil, UDP(1, 3))},
		"protocol":    {IPv4(ProtoUDP, nil, UDP(1, 2)), IPv4(132, nil, UDP(1, 2))},
		"addresses":   {IPv4(ProtoUDP, nil, UDP(1, 2)), With(IPv4(ProtoUDP, nil, UDP(1, 2)), 19, 7)},
		"addresses 6": {IPv6(17, UDP(1, 2)), With(IPv6(17, UDP(1, 2)), 39, 7)},
		"datagrams":   {With(IPv4(ProtoUDP, nil, nil), 4, 0, 1, 0x20, 0), With(IPv4(ProtoUDP, nil, nil), 4, 0, 2, 0x20, 0)},
		"datagrams 6": {IPv6(ipv6Fragment, []byte{17, 0, 0, 1, 0, 0, 0, 1}), IPv6(ipv6Fragment, []byte{17, 0, 0, 1, 0, 0, 0, 2})},
	} {
		if flow(differ[0]) == flow(differ[1]) {
			t.Errorf("%s: one flow", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(IPv4(ProtoTCP, []byte{131, 3, 4, 0}, TCP(1, 2)))
	f.Add(IPv6(ipv6HopByHop, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, UDP(1, 2)...)))
	f.Add(IPv6(ipv6Fragment, []byte{17, 0, 0, 1, 0, 0, 0, 1}))
	f.Add(IPv6(ipv6Routing, []byte{51, 0, 0, 0, 0, 0, 0, 1}))
	f.Add(IPv6(ipv6Fragment, []byte{43, 0, 0, 1, 0, 0, 0, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		if err := h.Parse(b, 1); err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrSourceRoute) && !errors.Is(err, ErrExtension) {
				t.Fatalf("error %v", err)
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
