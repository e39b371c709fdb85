package overlap

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestRouteConflict(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/48")}
	for _, c := range []struct {
		route, of string // of: the range, "" for no conflict
		around    bool
	}{
		{"10.244.1.128/25", "10.244.1.0/24", false},
		{"10.244.1.0/24", "10.244.1.0/24", false},
		{"10.244.9.0/24", "10.244.0.0/16", false},
		{"10.244.0.0/20", "10.244.0.0/16", false}, // around a block, inside the range
		{"10.0.0.0/8", "10.244.0.0/16", true},
		{"fd00::/16", "fd00::/48", true},
		{"10.243.0.0/16", "", false},
		{"192.168.0.0/16", "", false},
	} {
		got, ok := routeConflict(ranges, netip.MustParsePrefix(c.route))
		if ok != (c.of != "") || ok && (got.Range.String() != c.of || got.Around != c.around) {
			t.Errorf("%s: %+v, %v", c.route, got, ok)
		}
	}
}

// A LAN around the range is explained, and keeps no pod from starting.
func TestErr(t *testing.T) {
	around := Conflict{Range: netip.MustParsePrefix("10.244.0.0/16"), Other: netip.MustParsePrefix("10.0.0.0/8"), Device: "eth0", Route: true, Around: true}
	if err := Err([]Conflict{around}); err != nil {
		t.Error(err)
	}
	if s := around.String(); !strings.Contains(s, "10.0.0.0/8 on interface eth0 contains the pod range 10.244.0.0/16") {
		t.Error(s)
	}
	inside := Conflict{Range: around.Range, Other: netip.MustParsePrefix("10.244.9.1/24"), Device: "docker0"}
	if err := Err([]Conflict{around, inside}); !errors.Is(err, ErrOverlap) || !strings.Contains(err.Error(), "docker0") || strings.Contains(err.Error(), "eth0") {
		t.Error(err)
	}
}
