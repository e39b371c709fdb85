package packet

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

	"edgemesh/tunnel/p2p/carrier/sealed"
)

const (
	// maxPaths bounds the paths of one peer: it needs one for each connection, and one more while that is renewed. A further one ends
	// the oldest.
	maxPaths = 16
	// replaceTime is how long a path lives beside the one that replaces it on its connection. It ends before, as soon as the
	// other one works.
	replaceTime = 30 * time.Second
	// A peer may offer offerBurst paths in a row, then one every offerEvery. A correct one offers about ten on each new
	// connection while this node starts, and then one a minute.
	offerBurst = 64
	offerEvery = 2 * time.Second
)

// intake has all paths: whom an incoming packet is for.
type intake struct {
	*node
	paths     atomic.Pointer[map[uint32]*flightPath] // by index; replaced, never changed
	forwarder atomic.Pointer[Forwarder]              // nil: this node forwards nothing

	mu      sync.Mutex // guards replacing paths, and inbound; only refusals' is taken under it
	inbound map[peer.ID]*inbound
}

// inbound is what one peer has received here. It belongs to intake.mu.
type inbound struct {
	offers *rate.Limiter
	live   []*flightPath // oldest first
}

func newInbound() *inbound {
	return &inbound{offers: rate.NewLimiter(rate.Every(offerEvery), offerBurst)}
}

// admit takes a path in, and returns those that have to end for it now. The one before it on the same connection ends
// later: packets for it may still be on their way.
func (in *inbound) admit(x *flightPath) (over []*flightPath) {
	var kept []*flightPath
	before := false // on the same connection, of those that stay
	for _, o := range slices.Backward(in.live) {
		switch {
		case o.Flight == x.Flight && before, len(kept) == maxPaths-1:
			over = append(over, o)
			continue
		case o.Flight == x.Flight:
			before = true
			time.AfterFunc(replaceTime, o.over.Wake)
		}
		kept = append(kept, o)
	}
	slices.Reverse(kept)
	in.live = append(kept, x)
	return over
}

// remove forgets a path that has ended.
func (in *inbound) remove(x *flightPath) {
	in.live = slices.DeleteFunc(in.live, func(o *flightPath) bool { return o == x })
}

// idle reports whether nothing is lost when it is forgotten.
func (in *inbound) idle() bool { return len(in.live) == 0 && in.offers.Tokens() >= offerBurst }

// mayOffer reports whether a peer may begin another path.
func (s *intake) mayOffer(p peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from(p).offers.Allow()
}

// from is what a peer has received here. The caller holds mu.
func (s *intake) from(p peer.ID) *inbound {
	in := s.inbound[p]
	if in == nil {
		for id, other := range s.inbound {
			if other.idle() {
				delete(s.inbound, id)
			}
		}
		in = newInbound()
		s.inbound[p] = in
	}
	return in
}

// add lets packets to x in, unless another path has its index. What its peer has too much of ends.
func (s *intake) add(x *flightPath) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken(x.index) {
		return false
	}
	for _, over := range s.from(x.peer()).admit(x) {
		s.refuse(RefusedReplaced, over.link.path)
		over.over.Wake()
	}
	s.replace(x.index, x)
	return true
}

// taken reports whether a path has an index.
func (s *intake) taken(index uint32) bool { return (*s.paths.Load())[index] != nil }

// remove lets no more packets to x in.
func (s *intake) remove(x *flightPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(x.index, nil)
	s.from(x.peer()).remove(x)
}

// replace sets or, with nil, removes an entry. The caller holds mu.
func (s *intake) replace(index uint32, x *flightPath) {
	m := maps.Clone(*s.paths.Load())
	if x != nil {
		m[index] = x
	} else {
		delete(m, index)
	}
	s.paths.Store(&m)
}

// dispatcher hands the sealed packets of one socket to their paths. It belongs to the socket's reader.
type dispatcher struct {
	in      *intake
	touched []*flightPath // to be flushed
	// The path of the last packet, its index, and the table it was found in.
	last  *flightPath
	index uint32
	table *map[uint32]*flightPath
}

func (d *dispatcher) take(b []byte, from *received) {
	index, table := sealed.Index(b), d.in.paths.Load()
	if d.last == nil || index != d.index || table != d.table {
		d.last, d.index, d.table = (*table)[index], index, table
	}
	x := d.last
	switch {
	case x == nil:
		d.in.counts[RefusedUnknown].Add(1)
	case x.take(b, from):
		d.touched = append(d.touched, x)
	}
}

func (d *dispatcher) flush() {
	for i, x := range d.touched {
		x.flush()
		d.touched[i] = nil
	}
	d.touched = d.touched[:0]
}
