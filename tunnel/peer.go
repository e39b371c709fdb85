package tunnel

import (
	"context"
	"sync/atomic"

	"edgemesh/tunnel/acks"
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
	use
	acks    *acks.Thinner
	passer  *acks.Passer[passed]
	rows    acks.Rows // the device reader's
	streams streams
	halves  halves
	beside  atomic.Pointer[Pulled] // takes what the datagram lane has
	pulled  atomic.Bool            // an underlay takes what the stream lane has, too (pulled.go),
	clear   atomic.Bool            // by a path that loses nothing and has shown what it carries
	chooser chooser
}

// use is when a peer was last of use.
type use struct {
	lastUse  atomic.Int64 // about the last packet sent or received, tunnel clock
	busy     atomic.Bool  // had traffic since it was last idle
	idleSent int          // how often the owner was notified since; of watchIdle
}

func newPeer(t *Tunnel, id PeerID) *peer {
	p := &peer{t: t, id: id, use: use{idleSent: idleNotices}} // nobody has used it yet
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	p.acks = acks.New(t.seed, &t.wg, p.clean, p.writeACK)
	p.passer = acks.NewPasser[passed](&t.wg)
	p.halves.pools, p.halves.now, p.halves.lost = t.pools, t.now, func() { p.counters.drop(DropHalf) }
	for i := range p.lanes {
		p.lanes[i] = newLane(p, Lane(i))
	}
	return p
}

// close frees the peer; it does not wait.
func (p *peer) close() {
	p.cancel()
	p.acks.Close()
	p.passer.Close()
	p.halves.close()
	for _, l := range p.lanes {
		l.close()
	}
	p.streams.reset()
}

// clean reports whether the carrier of the stream lane is known to lose nothing.
func (p *peer) clean() bool {
	if p.pulled.Load() {
		return p.clear.Load()
	}
	l := p.lanes[StreamLane]
	l.mu.Lock()
	cur := l.cur
	l.mu.Unlock()
	return cur != nil && cur.c.Clean()
}

// used notes traffic. It is called for every packet, so the usual case is two loads.
func (p *peer) used(now int64) {
	const grain = 1e8 // 100 ms
	if now-p.lastUse.Load() > grain || !p.busy.Load() {
		p.lastUse.Store(now)
		p.busy.Store(true)
	}
}

// quiet reports whether there was no traffic for a while, although not long enough for the peer to be idle.
func (p *peer) quiet(now int64) bool {
	return now-p.lastUse.Load() > int64(p.t.lim.QuietTime)
}

// endIdle ends the carriers of a peer that was last used before the given time, and reports whether that made it idle.
func (p *peer) endIdle(before int64) bool {
	if p.lastUse.Load() >= before || !p.busy.CompareAndSwap(true, false) {
		return false
	}
	for _, l := range p.lanes {
		l.endIdle()
	}
	p.idleSent = 0
	return true
}

// idleNotices is how often the owner is notified that a peer is idle, an eighth of Limits.IdleTimeout apart: first when its
// carriers have had time to end in order, or the other side would open new ones; again since the owner may keep a
// connection that was used a moment ago.
const idleNotices = 4

// idleAgain reports whether to notify the owner now.
func (p *peer) idleAgain() bool {
	if p.busy.Load() || p.idleSent >= idleNotices {
		return false
	}
	p.idleSent++
	return true
}
