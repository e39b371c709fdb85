package quota

import (
	"net/netip"
	"testing"
	"time"
)

// An address that takes all it can leaves the others theirs, until all together have what there is; the next second begins again.
func TestPerSecond(t *testing.T) {
	q := New(10, 100)
	now := time.Unix(1_000_000, 0)
	take := func(a netip.Addr, tries int) (n int) {
		for range tries {
			if q.Allow(a, now) {
				n++
			}
		}
		return n
	}
	greedy := netip.MustParseAddr("10.244.1.2")
	if n := take(greedy, 1000); n != 10 {
		t.Errorf("one address has %d", n)
	}
	others := 0
	for i := range 200 {
		others += min(1, take(netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), 1))
	}
	if others < 85 || others > 90 {
		t.Errorf("the others have %d of 90", others)
	}
	now = now.Add(time.Second)
	if n := take(greedy, 1000); n != 10 {
		t.Errorf("in the next second it has %d", n)
	}
}

// One address alone gets three quarters, five together no more, and a newcomer a place beside them.
func TestCrowded(t *testing.T) {
	for _, addresses := range []int{1, 5} {
		const all = 400
		held, taken := map[int]int{}, 0
		for i := range 3 * all {
			if at := i % addresses; taken < all && !Crowded(all, all-taken, held[at]) {
				held[at]++
				taken++
			}
		}
		if taken != all*3/4 || Crowded(all, all-taken, 0) {
			t.Errorf("%d addresses hold %d of %d", addresses, taken, all)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	q := New(10, 100)
	a, now := netip.MustParseAddr("fd00::1"), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		q.Allow(a, now)
	}
}
