package processors

import (
	"runtime"
	"testing"
)

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		usable int
		given  string
		want   int
	}{
		{1, "", 1},
		{2, "", 1},
		{3, "", 1},
		{4, "", 4},
		{64, "", 64},
		{2, "2", 2}, // demanded
	} {
		if got := wanted(c.usable, c.given); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestUsable: what is counted after the limit is not what the limit left.
func TestUsable(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	Limit()
	if used, usable := runtime.GOMAXPROCS(0), Usable(); used != 1 || usable != 2 {
		t.Errorf("uses %d of %d processors, want 1 of 2", used, usable)
	}
}
