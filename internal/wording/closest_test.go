package wording

import (
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	all := []string{"edge-1", "edge-2", "edge-12", "cloud", "berlin-gw"}
	for _, c := range []struct {
		want string
		out  []string
	}{
		{"egde-1", []string{"edge-1", "edge-12", "edge-2"}},
		{"Cloud", []string{"cloud"}},
		{"berlin", []string{"berlin-gw"}},
		{"gateway-of-nothing", nil},
		{"", nil},
		{"x", nil},
	} {
		if got := Closest(c.want, all); !slices.Equal(got, c.out) {
			t.Errorf("%q: %v, want %v", c.want, got, c.out)
		}
	}
	if got := Offer("clod", all); !strings.Contains(got, "did you mean cloud?") {
		t.Errorf("offer: %q", got)
	}
	if got := Offer("zzzzzz", all); got != "" {
		t.Errorf("offer where nothing is close: %q", got)
	}
}
