// Package dials bounds what waits for a connection: a pod's packets to peers that are not connected make them dialed, and
// a pod that searches the whole cluster must neither occupy the node nor keep other pods from their peers.
package dials

import (
	"net/netip"
	"sync"
)

// Limit bounds the dials of one node.
type Limit struct {
	perPod, total int

	mu    sync.Mutex // a leaf
	of    map[netip.Addr]int
	count int
}

// New returns a Limit for the dials of each pod, and of all together.
func New(perPod, total int) *Limit {
	return &Limit{perPod: perPod, total: total, of: map[netip.Addr]int{}}
}

// Begin reports whether a pod may have one more peer dialed.
func (l *Limit) Begin(pod netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.total || l.of[pod] >= l.perPod {
		return false
	}
	l.count++
	l.of[pod]++
	return true
}

// End follows Begin.
func (l *Limit) End(pod netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	if l.of[pod]--; l.of[pod] <= 0 {
		delete(l.of, pod)
	}
}
