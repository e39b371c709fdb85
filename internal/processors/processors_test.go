package processors

import "testing"

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		usable int
		given  string
		queues int
		want   int
	}{
		{1, "", 0, 1},
		{2, "", 0, 1},
		{3, "", 1, 1},
		{4, "", 0, 4},
		{64, "", 0, 64},
		{2, "2", 0, 2}, // demanded
		{2, "", 2, 2},  // two readers are of use on two only
	} {
		if got := wanted(c.usable, c.given, c.queues); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
