package decide

import (
	"net/netip"
	"testing"

	"edgemesh/tunnel/inet"
)

// TestForwardedPackets: each kind has right checksums and lengths, is read again, and says nothing under another key.
func TestForwardedPackets(t *testing.T) {
	key := NewSecret()
	for _, ends := range [][2]string{{"10.244.1.254", "10.244.2.254"}, {"fd00:1::fffe", "fd00:2::fffe"}} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		for kind := range kinds {
			for _, size := range []int{0, 1280, 1500} {
				number := uint32(77)<<slotBits | 3
				b := forwarded(key, kind, src, dst, number, size)
				if kind != kindSYN && size > 0 && len(b) != size {
					t.Errorf("kind %d: %d bytes, want %d", kind, len(b), size)
				}
				var h inet.Header
				if err := h.Parse(b, 0); err != nil {
					t.Fatalf("kind %d: %v", kind, err)
				}
				pseudo := h.PseudoSum(b) + uint64(len(b)-h.L4)
				if kind == kindEcho && src.Is4() {
					pseudo = 0
				}
				if sum := inet.Checksum(pseudo, b[h.L4:]); sum != 0 {
					t.Errorf("kind %d from %s: checksum is off by %#x", kind, src, sum)
				}
				p, err := parseForwarded(b)
				if err != nil || p.kind != kind || p.number != number || p.from != src || p.V6 != src.Is6() || string(p.tag) != string(forwardedTag(key, p.V6, kind, number)) {
					t.Errorf("kind %d from %s, %d bytes: %+v, %v", kind, src, size, p, err)
				}
				if string(p.tag) == string(forwardedTag(NewSecret(), p.V6, kind, number)) || string(p.tag) == string(forwardedTag(key, p.V6, kind, number+1)) {
					t.Errorf("kind %d: forged", kind)
				}
			}
		}
	}
}

func FuzzParseForwarded(f *testing.F) {
	key := NewSecret()
	for kind := range kinds {
		f.Add(forwarded(key, kind, netip.MustParseAddr("10.244.1.254"), netip.MustParseAddr("10.244.2.254"), 9, 0))
		f.Add(forwarded(key, kind, netip.MustParseAddr("fd00:1::fffe"), netip.MustParseAddr("fd00:2::fffe"), 9, 0))
	}
	mine := NewSecret()
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseForwarded(b)
		if err != nil {
			return
		}
		if p.answers != "" && p.to.IsValid() {
			return // it is looked at only if it is of what was sent
		}
		if !p.from.IsValid() || len(p.tag) != tagSize || p.kind < 0 || p.kind >= kinds {
			t.Errorf("%+v", p)
		}
		if string(p.tag) == string(forwardedTag(mine, p.V6, p.kind, p.number)) {
			t.Errorf("forged: %+v", p)
		}
	})
}

// TestProbeWithReport: what a gateway probe says of forwarded ones is read again; without the flag, as of older releases, there is nothing.
func TestProbeWithReport(t *testing.T) {
	for _, addr := range []string{"10.244.2.254", "fd00:2::fffe"} {
		want := Message{typ: typeAnswer, flags: flagTakes | flagBusy, slot: 1, session: 3, seq: 9, report: report{netip.MustParseAddr(addr).As16(), [kinds]uint32{1, 2, 3, 1 << 31}}}
		got, err := Parse(want.seal(NewSecret(), smallProbe-headers6))
		if err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
		if len(want.seal(NewSecret(), smallProbe-headers6)) != smallProbe-headers6 {
			t.Error("a small probe is larger with it")
		}
		short := Message{typ: typeAnswer, seq: 9}.seal(NewSecret(), 0)
		if short[5] = flagTakes; len(short) >= probeHeader+16+4*kinds+probeMAC {
			t.Fatal("not short")
		}
		if _, err := Parse(short); err == nil {
			t.Error("a report that is cut")
		}
	}
}
