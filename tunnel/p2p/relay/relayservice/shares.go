package relayservice

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// shareTick is how long a share is good for: a member that has used up its own waits that long at most.
	shareTick = 20 * time.Millisecond
	// busyPart of the bandwidth in use means that members are in each other's way. Below it nobody is counted out.
	busyPart = 0.9
	// demandKeep is what is left of a member's demand after a tick in which it sends nothing: traffic comes in bursts.
	demandKeep = 0.9
	// headroom is what a member may grow by before others give way: it may want more than it gets through.
	headroom = 1.25
	// owedTicks is for how many ticks' shares a member may be in debt: many circuits, each of which may read a buffer at the end of a
	// share, are not silent for long.
	owedTicks = 4
	// noLimit is the level while nobody is in anybody's way.
	noLimit = 1 << 62
)

// shares divides the relay's bandwidth among the members who send, whatever the number of their circuits and connections:
// when all of it is in use, nobody gets more than an equal share as long as another one wants it (max-min fairness).
// Whoever is alone has everything. While there is room, a read costs three atomic operations.
//
// A level that all senders share is enough: those who want less take less, and what they leave raises it.
type shares struct {
	bandwidth float64  // bytes a second; 0 = unknown, and nothing is divided
	metrics   *Metrics // count what members send

	level atomic.Int64 // bytes that each may send in this tick

	mu      sync.Mutex // guards what follows; only metrics' is taken under it
	senders map[peer.ID]*sender
	next    chan struct{} // closed when the next tick begins
	over    bool
}

// sender is one member that sends through circuits and channels.
type sender struct {
	shares *shares
	id     peer.ID
	sums   *sums
	used   atomic.Int64 // bytes in this tick, and debt
	held   atomic.Bool  // it has had to wait in this tick

	// Guarded by shares.mu.
	streams int     // and channels; 0: it is forgotten once this tick is divided
	demand  float64 // bytes it would send in a tick
	debt    int64   // bytes that went beyond the level of ticks before
}

func newShares(bandwidth float64, metrics *Metrics) *shares {
	s := &shares{bandwidth: bandwidth, metrics: metrics, senders: make(map[peer.ID]*sender), next: make(chan struct{})}
	s.level.Store(noLimit)
	return s
}

// join returns p's sender for one more stream. leave gives it back.
func (s *shares) join(p peer.ID) *sender {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.senders[p]
	if m == nil {
		m = &sender{shares: s, id: p, sums: s.metrics.carried.of(p)}
		s.senders[p] = m
	}
	m.streams++
	return m
}

func (s *shares) leave(p peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.senders[p]; m != nil {
		if m.streams--; m.streams == 0 && s.bandwidth == 0 {
			delete(s.senders, p)
		}
	}
}

// wait returns when m may send.
func (m *sender) wait() {
	for m.used.Load() >= m.shares.level.Load() {
		m.held.Store(true)
		m.shares.mu.Lock()
		next, over := m.shares.next, m.shares.over
		m.shares.mu.Unlock()
		if over || m.used.Load() < m.shares.level.Load() { // the tick ended meanwhile
			return
		}
		<-next
	}
}

// sent counts n bytes.
func (m *sender) sent(n int) { m.used.Add(int64(n)) }

// received counts n bytes of a circuit.
func (m *sender) received(n int) {
	m.sent(n)
	m.sums.circuits.Add(uint64(n))
}

// Take implements forward.Share: like wait and sent, without waiting.
func (m *sender) Take(n, each int) int {
	switch left := m.shares.level.Load() - m.used.Load(); {
	case left <= 0:
		m.held.Store(true)
		return 0
	case left < int64(n): // the last packet goes beyond it, on the next tick's account
		m.held.Store(true)
		n = min(n, (int(left)+each-1)/each*each)
	}
	m.sent(n)
	return n
}

// Sent implements forward.Share.
func (m *sender) Sent(n int) {
	m.sums.forwarded.Add(uint64(n))
	m.shares.metrics.forwarded.Add(float64(n))
}

// Leave implements forward.Share.
func (m *sender) Leave() { m.shares.leave(m.id) }

// run divides until stop is closed.
func (s *shares) run(stop <-chan struct{}) {
	t := time.NewTicker(shareTick)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			s.mu.Lock()
			s.over = true
			close(s.next)
			s.mu.Unlock()
			return
		case now := <-t.C:
			s.tick(now.Sub(last))
			last = now
		}
	}
}

// tick begins the next tick after one that lasted d.
func (s *shares) tick(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	budget := s.bandwidth * d.Seconds()
	total, wants := 0.0, make([]float64, 0, len(s.senders))
	held, before := false, s.level.Load()
	for p, m := range s.senders {
		all, debt := m.used.Load(), int64(0)
		used := float64(all - m.debt)
		if all > before {
			debt = min(all-before, owedTicks*before)
		}
		m.used.Add(debt - all) // more may have come meanwhile
		m.debt = debt
		if total += used; m.streams == 0 && used == 0 && debt == 0 {
			delete(s.senders, p)
		}
		m.demand = max(used*headroom, m.demand*demandKeep)
		want := m.demand
		if m.held.Swap(false) {
			held, want = true, budget
		}
		if want >= 1 {
			wants = append(wants, want)
		}
	}
	level := int64(noLimit)
	if len(wants) > 1 && (held || total >= busyPart*budget) {
		level = max(1, int64(fill(budget, wants)))
	}
	s.level.Store(level)
	close(s.next)
	s.next = make(chan struct{})
}

// fill is the level at which wants, each cut off there, add up to budget; no limit if all of them fit.
func fill(budget float64, wants []float64) float64 {
	slices.Sort(wants)
	for i, w := range wants {
		equal := budget / float64(len(wants)-i)
		if w >= equal {
			return equal
		}
		budget -= w
	}
	return noLimit
}
