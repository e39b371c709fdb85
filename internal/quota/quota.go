// Package quota divides what there is among addresses: one that takes too much is held up, the others are not. A rate takes a fixed
// amount of memory, in which two addresses share a counter by chance, in one of 1,024 cases.
package quota

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Part of what there is an address shares with others when all else is taken; held part of what is left it gets no more.
const (
	sharedPart, heldPart = 4, 2
	leastHeld            = 4
)

// Crowded reports whether an address that holds so many gets no more of all, of which some are left: whoever makes keys as it likes
// thereby leaves some to others.
func Crowded(all, left, held int) bool {
	return left <= all/sharedPart && held >= max(leastHeld, left/heldPart)
}

// PerSecond is how many events each address, and all of them together, may have in a second.
type PerSecond struct {
	each, all int
	seed      maphash.Seed

	mu     sync.Mutex // a leaf
	second int64
	total  int
	of     [1024]uint16
}

// New returns a quota; each is 65,535 at most.
func New(each, all int) *PerSecond { return &PerSecond{each: each, all: all, seed: maphash.MakeSeed()} }

// Allow reports whether a may have an event now.
func (q *PerSecond) Allow(a netip.Addr, now time.Time) bool {
	i := maphash.Comparable(q.seed, a) % uint64(len(q.of))
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := now.Unix(); s != q.second {
		q.second, q.total = s, 0
		clear(q.of[:])
	}
	if q.total >= q.all || int(q.of[i]) >= q.each {
		return false
	}
	q.total++
	q.of[i]++
	return true
}
