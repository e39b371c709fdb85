package processors

import "testing"

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
