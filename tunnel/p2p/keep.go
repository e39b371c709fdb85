package p2p

import (
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/identity"
)

const (
	// keepTick is how often a connected peer is looked after.
	keepTick = 250 * time.Millisecond
	// demandFor is how long after its last traffic a peer's paths are still being
	// improved.
	demandFor = 30 * time.Second
	// inUse is how long after its last use, other than by a tunnel that is silent
	// for minutes, a peer is not let go: pings come every second.
	inUse = 3 * time.Second
	// spareAfter is how long a path must have been superfluous to be closed.
	spareAfter = 10 * time.Second
	// standbyRetry is the wait between attempts to get a relayed path beside the
	// direct ones.
	standbyRetry = 10 * time.Second
)

// keep looks after a connected peer: it has better paths made while there is
// traffic, keeps a relayed one beside them, and lets a peer go that nobody has
// streams to. It ends with the last path. Of two peers only the one with the smaller ID punches.
func (r *remote) keep() {
	set := r.set
	coordinator := set.n.ID() < r.id
	var moved uint64
	standby := time.Now().Add(standbyRetry)
	for {
		set.mu.Lock()
		if len(r.paths) == 0 || set.n.ctx.Err() != nil {
			r.keeping = false
			r.punch.attempts = 0
			set.mu.Unlock()
			return
		}
		now := time.Now()
		// A path that is gone takes its count along: less is no traffic.
		sum := r.traffic()
		if sum > moved {
			r.lastUse = now
		}
		moved = sum
		idle := now.Sub(r.lastUse)
		want := r.missing()
		over := r.signalPath()
		due := coordinator && idle < demandFor && len(want) > 0 && over != nil && !now.Before(r.punch.next)
		relay := coordinator && idle < demandFor && now.After(standby) && !r.hasGoodRelayed()
		changed := r.changed
		if idle > idleTimeout && !r.hasStreams() {
			r.letGo()
			set.mu.Unlock()
			continue
		}
		set.mu.Unlock()

		switch {
		case due:
			err := r.punchOnce(set.n.ctx, over, want)
			r.punched(err, len(want))
		case relay:
			standby = now.Add(standbyRetry)
			if err := r.reachByRelay(set.n.ctx); err != nil {
				set.n.log.Debug("no relayed path beside the direct one", "peer", r.name(), "err", err)
			}
		default:
			r.dropSpare(coordinator)
			tick := time.NewTimer(keepTick)
			select {
			case <-changed:
			case <-tick.C:
			case <-set.n.ctx.Done():
			}
			tick.Stop()
		}
	}
}

// traffic sums what all paths have moved. The caller holds mu.
func (r *remote) traffic() uint64 {
	var sum uint64
	for _, p := range r.paths {
		sum += p.tx.Load() + p.rx.Load()
	}
	return sum
}

// signalPath is the path punching is coordinated over: the best verified one.
// The caller holds mu.
func (r *remote) signalPath() *path {
	if p := r.pick(identity.StreamProtocol, nil); p != nil && p.verified {
		return p
	}
	return nil
}

// hasGoodRelayed says whether there is a live relayed path, over TCP where the
// relay has that. The caller holds mu.
func (r *remote) hasGoodRelayed() bool {
	for _, p := range r.paths {
		if p.relayed() && !p.dead && !p.conn.IsClosed() && (!p.udp || !r.set.n.relays.overTCP(p.relay)) {
			return true
		}
	}
	return false
}

// punched plans the next attempt after one that ended with err; missed
// transports were missing before.
func (r *remote) punched(err error, missed int) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if err == nil {
		r.punch.attempts = 0
		return
	}
	missing := len(r.missing())
	if missing < missed { // what let one transport through may let the other
		r.punch.attempts = 0
	}
	r.punch.attempts++
	wait := pause(r.punch.attempts)
	if missing == 1 { // one direct transport is there: no hurry
		wait *= 5
	}
	r.punch.next = time.Now().Add(wait + rand.N(wait/4+time.Millisecond))
	r.set.n.log.Debug("punch", "peer", r.name(), "attempt", r.punch.attempts, "err", err)
}

// hasStreams says whether either side has a stream open. The caller holds mu.
func (r *remote) hasStreams() bool {
	for _, p := range r.paths {
		if len(p.streams) > 0 {
			return true
		}
	}
	return false
}

// LetGo disconnects from a peer that the owner of its streams has no more use
// for, unless somebody else, a ping, is just using it. Whoever has a packet for it
// connects again. It does not block.
func (n *Node) LetGo(p peer.ID) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if r := n.peers.m[p]; r != nil && time.Since(r.lastUse) > inUse {
		r.letGo()
	}
}

// letGo closes all paths, and tells of it once. The caller holds mu.
func (r *remote) letGo() {
	if len(r.paths) == 0 {
		return
	}
	n := r.set.n
	n.log.Debug("idle peer is let go", "peer", r.name())
	r.abandon()
}

// abandon gives up all paths as one event; ending connections one by one would
// look to the streams as if each had a path left. The caller holds mu.
func (r *remote) abandon() {
	for c, p := range r.paths {
		p.dead = true
		delete(r.paths, c)
		r.set.n.goClose(c)
	}
	clear(r.best)
	r.since = time.Now()
	r.set.n.events.emit(Event{Peer: r.id, Kind: PathLost, Path: Path{Kind: KindNone}})
	r.signal()
}

// dropSpare closes, on the coordinator, one of two direct connections over the
// same transport, or of two through one relay, as both sides dialing at once may
// make them: the worse one, once nothing has used it for a while.
func (r *remote) dropSpare(coordinator bool) {
	if !coordinator {
		return
	}
	r.set.mu.Lock()
	var spare *path
	for _, p := range r.paths {
		for _, q := range r.paths {
			same := p.relay == q.relay && (p.relayed() || p.udp == q.udp)
			if p != q && same && q.verified && !q.dead && !p.dead &&
				better(q, p, identity.StreamProtocol) && len(p.streams) == 0 && time.Since(p.opened) > spareAfter {
				spare = p
			}
		}
	}
	if spare != nil {
		spare.dead = true
		r.reselect()
	}
	r.set.mu.Unlock()
	if spare != nil {
		r.set.n.goClose(spare.conn)
	}
}
