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
	o.add(7, now)
	if got := o.over(1, now); !slices.Equal(got, []uint64{7}) {
		t.Errorf("immediately, over the path that is left: %v", got)
	}
	o.add(8, now+time.Second)
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
		o.add(i, now)
	}
	if len(o) != maxOwed || o[maxOwed-1].token != 99 {
		t.Errorf("%d are remembered", len(o))
	}
}
