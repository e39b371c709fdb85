package tunnel

import (
	"net/netip"
	"sync"
)

// dialLimit bounds the dials of one node: what a pod sends to peers that are not connected has them dialed, and a pod that
// searches the whole cluster must neither occupy the node nor keep other pods from their peers.
type dialLimit struct {
	perPod, total int

	mu    sync.Mutex // a leaf
	of    map[netip.Addr]int
	count int
}

// newDialLimit returns a dialLimit for the dials of each pod, and of all together.
func newDialLimit(perPod, total int) *dialLimit {
	return &dialLimit{perPod: perPod, total: total, of: map[netip.Addr]int{}}
}

// begin reports whether a pod may have one more peer dialed.
func (l *dialLimit) begin(pod netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.total || l.of[pod] >= l.perPod {
		return false
	}
	l.count++
	l.of[pod]++
	return true
}

// end follows begin.
func (l *dialLimit) end(pod netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	if l.of[pod]--; l.of[pod] <= 0 {
		delete(l.of, pod)
	}
}
