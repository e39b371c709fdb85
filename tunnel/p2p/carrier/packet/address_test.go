package packet

import (
	"net/netip"
	"testing"
	"time"
)

// A path moves to where the newest packet came from, once that address has answered, and sends it little until then.
func TestAddress(t *testing.T) {
	home, port, other := netip.MustParseAddrPort("5.5.5.1:400"), netip.MustParseAddrPort("5.5.5.1:401"), netip.MustParseAddrPort("5.5.6.1:400")
	begin := time.Unix(1000, 0)
	working := func() *address {
		a := newAddress(home, 7, begin)
		if to, data, ok, _ := a.ask(50, begin); !ok || to != home || data != 7 {
			t.Fatalf("the first challenge: %v %v %v", to, data, ok)
		}
		if works, moved, _ := a.answered(8); works || moved {
			t.Fatal("another answer counts")
		}
		if a.heard(port, 100, true, 9, begin) {
			t.Fatal("an address that does not work yet has moved")
		}
		if works, moved, line := a.answered(7); !works || moved || line {
			t.Fatalf("answered: %v %v %v", works, moved, line)
		}
		return &a
	}
	for _, c := range []struct {
		name string
		to   netip.AddrPort
		line bool
	}{{"port", port, false}, {"host", other, true}} {
		a := working()
		if a.heard(c.to, 60, false, 9, begin) {
			t.Errorf("%s: a late packet moves the path", c.name)
		}
		if !a.heard(c.to, 60, true, 9, begin) || a.now != home {
			t.Errorf("%s: the newest packet: %+v", c.name, a)
		}
		if works, moved, line := a.answered(7); works || moved || line {
			t.Errorf("%s: the answer to an old challenge counts", c.name)
		}
		if works, moved, line := a.answered(9); !works || !moved || line != c.line || a.now != c.to {
			t.Errorf("%s: works %v, moved %v, line %v, %+v", c.name, works, moved, line, a)
		}
	}
	// Three times what came from there, and no longer than challengeTime.
	a := working()
	a.heard(other, 60, true, 9, begin)
	sent, failed := 0, false
	for d := time.Duration(0); !failed && d < time.Minute; d += challengeEvery {
		var ok bool
		if _, _, ok, failed = a.ask(50, begin.Add(d)); ok {
			sent += 50
		}
	}
	if sent != 150 || !failed || a.now != home {
		t.Errorf("%d bytes to who does not answer, given up: %v, at %v", sent, failed, a.now)
	}
	// It was forged, and the true end is where it was: nothing is asked any longer.
	a = working()
	a.heard(other, 60, true, 9, begin)
	a.heard(home, 60, true, 10, begin)
	if _, _, ok, _ := a.ask(50, begin.Add(time.Second)); ok || !a.due().IsZero() {
		t.Error("an address is asked from which nothing comes any longer")
	}
}
