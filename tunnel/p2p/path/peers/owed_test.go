package peers

import (
	"slices"
	"testing"
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
)

// The peer hears of a dead path over every path that answers, once, for some seconds.
func TestOwed(t *testing.T) {
	var o owed
	now := time.Hour
	o.add(6, false, now)
	o.add(7, true, now)
	if got := o.over(1, now); !slices.Equal(got, []uint64{7}) {
		t.Errorf("immediately, over the path that is left: %v", got)
	}
	o = slices.Delete(o, 0, 1)
	o.add(8, true, now+time.Second)
	for _, c := range []struct {
		path uint64
		at   time.Duration
		want []uint64
	}{
		{1, 2 * time.Second, []uint64{8}}, {1, 2 * time.Second, nil}, {2, 3 * time.Second, []uint64{7, 8}},
		{3, 3 * time.Second, []uint64{7, 8}}, {3, 4 * time.Second, nil}, {4, owedFor, []uint64{8}}, {5, owedFor + time.Second, nil},
	} {
		if got := o.over(ladder.PathID(c.path), now+c.at); !slices.Equal(got, c.want) {
			t.Errorf("over path %d after %v: %v, want %v", c.path, c.at, got, c.want)
		}
	}
	for i := range uint64(100) {
		o.add(i, false, now)
	}
	if len(o) != maxOwed || o[maxOwed-1].token != 99 {
		t.Errorf("%d are remembered", len(o))
	}
	if got := o.over(1, now); got != nil {
		t.Errorf("what the peer may have ended: %v", got)
	}
	if o.confirm(); len(o.over(1, now)) != maxOwed {
		t.Error("what ended before this node lost an address is not announced")
	}
}
