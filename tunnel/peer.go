package tunnel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// peer is everything the tunnel keeps for one other node.
type peer struct {
	t        *Tunnel
	id       PeerID
	ctx      context.Context // ends when the peer leaves or the tunnel closes
	cancel   context.CancelFunc
	lanes    [numLanes]*lane
	order    [numLanes]order
	counters counters
	lastUse  atomic.Int64 // about the last packet sent or received, tunnel clock
	busy     atomic.Bool  // had traffic since it was last let go
	acks     acks

	mu        sync.Mutex
	closed    bool
	strikes   int // malformed frames in the minute after since, on all streams
	since     int64
	shunUntil int64 // streams are refused until then
	shunFor   time.Duration
	streams   [numLanes][]Stream // live incoming streams, oldest first
}

func newPeer(t *Tunnel, id PeerID) *peer {
	p := &peer{t: t, id: id}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	p.acks.seed, p.acks.wg, p.acks.late = t.seed, &t.wg, p.writeACK
	p.acks.pool = &t.pools.acks
	for i := range p.lanes {
		p.lanes[i] = newLane(p, Lane(i))
	}
	return p
}

// close frees the peer; it does not wait.
func (p *peer) close() {
	p.cancel()
	p.acks.close()
	for _, l := range p.lanes {
		l.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, lane := range p.streams {
		for _, s := range lane {
			s.Reset()
		}
	}
}

// used notes traffic. It is called for every packet, so the usual case is two loads.
func (p *peer) used(now int64) {
	const grain = 1e8 // 100 ms
	if now-p.lastUse.Load() > grain || !p.busy.Load() {
		p.lastUse.Store(now)
		p.busy.Store(true)
	}
}

// quiet reports whether there was no traffic for a while, although not yet long
// enough to let the peer go.
func (p *peer) quiet(now int64) bool {
	return now-p.lastUse.Load() > int64(p.t.lim.QuietTime)
}

// letGo closes the carriers of a peer that was last used before the given time
// and reports whether the peer became idle by that.
func (p *peer) letGo(before int64) bool {
	if p.lastUse.Load() >= before || !p.busy.CompareAndSwap(true, false) {
		return false
	}
	for _, l := range p.lanes {
		l.letGo()
	}
	return true
}

// malformed counts a frame that no correct sender sends. It reports whether the
// stream is to be given up: the peer's patience is used up, and the peer shunned.
func (p *peer) malformed(r Reason) bool {
	p.counters.drop(r)
	d, shunned := p.strike()
	if d > 0 {
		p.t.log.Warn("peer sends malformed frames: it is cut off", "peer", p.id, "last", r, "for", d)
		if p.t.cfg.Shun != nil {
			p.t.cfg.Shun(p.id, d, fmt.Sprintf("malformed frames, the last: %s", r))
		}
	}
	return shunned
}

// strike counts one malformed frame. It reports whether the peer is shunned now,
// and for how long when it was this frame that did it.
func (p *peer) strike() (d time.Duration, shunned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.t.now()
	if p.shunned(now) { // the rest of what was read before
		return 0, true
	}
	if p.strikes == 0 || now-p.since > int64(time.Minute) {
		p.strikes, p.since = 0, now
	}
	p.strikes++
	if p.strikes <= p.t.lim.MalformedPerMinute {
		return 0, false
	}
	p.strikes = 0
	lim := p.t.lim
	if now-p.shunUntil > int64(lim.ShunMax) { // long ago, or never
		p.shunFor = 0
	}
	p.shunFor = min(max(2*p.shunFor, lim.ShunMin), lim.ShunMax)
	p.shunUntil = now + int64(p.shunFor)
	for _, lane := range p.streams {
		for _, s := range lane {
			s.Reset()
		}
	}
	return p.shunFor, true
}

// shunned reports whether nothing is taken from the peer; p.mu is held.
func (p *peer) shunned(now int64) bool { return now < p.shunUntil }
