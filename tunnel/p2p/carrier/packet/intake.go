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
	// maxReceivers bounds the sessions of one peer in which packets are received, those with repair on their own: it needs one for each QUIC connection,
	// and one more while that is renewed. A further one ends the oldest.
	maxReceivers = 16
	// replaceTime is how long a session lives beside the one that replaces it on its path. A correct sender ends it
	// itself, as soon as the other one works.
	replaceTime = 30 * time.Second
	// A peer may begin offerBurst sessions in a row, then one every offerEvery. A correct one offers about ten on each new
	// connection while this node starts, and then one a minute.
	offerBurst = 64
	offerEvery = 2 * time.Second
)

// intake has the receivers of all sessions: whom an incoming packet is for.
type intake struct {
	*node
	sink      atomic.Pointer[func(peer.ID) Sink]   // nil: no datagrams yet
	receivers atomic.Pointer[map[uint32]*receiver] // by index; replaced, never changed
	forwarder atomic.Pointer[Forwarder]            // nil: this node forwards nothing

	mu      sync.Mutex // guards replacing receivers, and inbound; only refusals' is taken under it
	inbound map[peer.ID]*inbound
}

// inbound is what one peer has received here. It belongs to intake.mu.
type inbound struct {
	offers *rate.Limiter
	live   []*receiver // oldest first
}

func newInbound() *inbound {
	return &inbound{offers: rate.NewLimiter(rate.Every(offerEvery), offerBurst)}
}

// admit takes a receiver in, and returns those that have to end for it now. The one before it on the same path ends
// later: packets for it may still be on their way.
func (in *inbound) admit(r *receiver) (over []*receiver) {
	var kept []*receiver
	others := 0
	before := false // on the same path, of those that stay
	for _, o := range slices.Backward(in.live) {
		like := (o.flight == nil) == (r.flight == nil)
		switch {
		case o.out == r.out && before, like && others == maxReceivers-1:
			over = append(over, o)
			continue
		case o.out == r.out:
			before = true
			time.AfterFunc(replaceTime, o.end)
		}
		if like {
			others++
		}
		kept = append(kept, o)
	}
	slices.Reverse(kept)
	in.live = append(kept, r)
	return over
}

// remove forgets a receiver that has ended.
func (in *inbound) remove(r *receiver) {
	in.live = slices.DeleteFunc(in.live, func(o *receiver) bool { return o == r })
}

// idle reports whether nothing is lost when it is forgotten.
func (in *inbound) idle() bool { return len(in.live) == 0 && in.offers.Tokens() >= offerBurst }

// mayOffer reports whether a peer may begin another session.
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

// add lets packets to r in, unless another receiver has its index. What its peer has too much of ends.
func (s *intake) add(r *receiver) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (*s.receivers.Load())[r.index] != nil {
		return false
	}
	for _, over := range s.from(r.peer).admit(r) {
		s.refuse(RefusedReplaced, over.out.path)
		over.end()
	}
	s.replace(r.index, r)
	return true
}

// taken reports whether a receiver has an index.
func (s *intake) taken(index uint32) bool { return (*s.receivers.Load())[index] != nil }

// remove lets no more packets to r in, and closes its sink.
func (s *intake) remove(r *receiver) {
	s.mu.Lock()
	s.replace(r.index, nil)
	s.from(r.peer).remove(r)
	s.mu.Unlock()
	r.close()
}

// replace sets or, with nil, removes an entry. The caller holds mu.
func (s *intake) replace(index uint32, r *receiver) {
	m := maps.Clone(*s.receivers.Load())
	if r != nil {
		m[index] = r
	} else {
		delete(m, index)
	}
	s.receivers.Store(&m)
}

// dispatcher hands the sealed packets of one socket to their receivers. It belongs to the socket's reader.
type dispatcher struct {
	in      *intake
	touched []*receiver // to be flushed
	// The receiver of the last packet, its index, and the table it was found in.
	last  *receiver
	index uint32
	table *map[uint32]*receiver
}

func (d *dispatcher) take(b []byte, from *received) {
	index, table := sealed.Index(b), d.in.receivers.Load()
	if d.last == nil || index != d.index || table != d.table {
		d.last, d.index, d.table = (*table)[index], index, table
	}
	r := d.last
	switch {
	case r == nil:
		d.in.counts[RefusedUnknown].Add(1)
	case r.take(b, from):
		d.touched = append(d.touched, r)
	}
}

func (d *dispatcher) flush() {
	for i, r := range d.touched {
		r.flush()
		d.touched[i] = nil
	}
	d.touched = d.touched[:0]
}
