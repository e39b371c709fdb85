package choice

import "testing"

func TestTCPFirst(t *testing.T) {
	for _, c := range []struct {
		members, relays int
		want            bool
	}{
		{3, 1, false}, {99, 1, false}, {100, 1, true}, {10_000, 1, true}, {10_000, 3, true}, {199, 6, false}, {200, 6, true},
		{1_000, 24, false}, {100_000, 24, true}, {5, 0, false},
	} {
		if got := TCPFirst(c.members, c.relays); got != c.want {
			t.Errorf("%d members, %d relays: %v, want %v", c.members, c.relays, got, c.want)
		}
	}
}
