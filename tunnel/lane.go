package tunnel

import (
	"sync"
	"time"
)

// lane is the sending side of one lane to one peer: a queue, the carrier in use
// and a writer goroutine that lives while there is either.
//
//	           push                     carrier opened
//	idle ──────────────▶ connecting ──────────────────▶ up ◀──┐
//	 ▲                    │      ▲                      │ │   │ moved
//	 └── all expired ─────┘      └── write error, lost ─┘ └▶ moving
//	 └──────────────────────── let go ──────────────────┘
type lane struct {
	p    *peer
	id   Lane
	wake chan struct{} // capacity 1

	mu        sync.Mutex
	q         queue
	running   bool // the writer lives
	parked    bool // the writer waits on wake
	writing   bool // the writer is inside Carrier.Write with packets
	closed    bool
	idle      bool  // close the carrier once the queue is empty
	cur       *link // the carrier in use
	following *link // the carrier to move to
	opening   bool
	move      bool   // a better path may exist; heeded once the peer is in use
	tries     int    // failed attempts to open for this move
	epoch     uint64 // last epoch given out
	lastEpoch uint64 // epoch of the last carrier in use; 0: it ended in order
	retryAt   int64  // no attempt to open before
	backoff   time.Duration
	stuck     *time.Timer // of hurry

	// Of the writer alone.
	batch []*packet // taken from the queue, not yet wholly written
	limit int       // bytes to take at once

	halfID uint16 // of the last packet split in two
}

// link is a carrier in use.
type link struct {
	c     Carrier
	epoch uint64
	since int64
	asked int64 // when its round trip was asked for
	lost  bool  // reset; nothing more goes this way
	// Datagrams go beside the carrier from then on. Before, its frames keep the order
	// with the carrier that it follows.
	datagrams int64
}

// abandon resets the carrier; its lane goes on without it.
func (k *link) abandon() {
	k.lost = true
	k.c.Reset()
}

func newLane(p *peer, id Lane) *lane {
	l := &lane{p: p, id: id, wake: make(chan struct{}, 1), limit: batchLen}
	l.q.held = &p.t.held
	l.q.target, l.q.interval = int64(p.t.lim.DelayTarget), int64(p.t.lim.DelayInterval)
	l.q.longest = int64(p.t.lim.WaitTime)
	return l
}

// push queues a packet; it never blocks.
func (l *lane) push(p *packet) {
	var full chain
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.p.t.lost.drop(DropPeerGone) // the peer's own numbers were summed up already
		l.p.t.pools.put(p)
		return
	}
	l.idle = false
	l.q.push(p)
	for l.full() {
		full.push(l.q.dropFattest())
	}
	l.rouse()
	l.mu.Unlock()
	l.release(&full, DropQueueFull)
}

// leastShare is what a lane may queue however much the others hold, in bytes.
const leastShare = 128 << 10

// full reports whether a packet has to go; one at least stays.
func (l *lane) full() bool {
	t := l.p.t
	return l.q.charged > t.lim.QueueBytes || l.q.charged > leastShare && t.held.Load() > int64(t.lim.TotalBytes)
}

// rouse makes the writer look again; l.mu is held and the lane is not closed.
func (l *lane) rouse() {
	switch {
	case !l.running:
		l.running = true
		l.p.t.wg.Add(1)
		go l.run()
	case l.parked:
		l.parked = false
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// release counts and frees packets.
func (l *lane) release(c *chain, r Reason) {
	c.each(func(p *packet) {
		l.p.counters.drop(r)
		l.p.t.pools.put(p)
	})
}

// pathChanged moves to the best path, or tries again at once to get one.
func (l *lane) pathChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seekPath()
}

// pathLost abandons the carrier in use, if its path is the lost one as far as it
// can tell.
func (l *lane) pathLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != nil {
		if l.cur.c.Lost() {
			l.cur.abandon()
		}
	}
	l.seekPath()
}

// seekPath is pathChanged; l.mu is held. A quiet lane remembers that it should
// move and does so with its next packet: opening connects, and would bring back
// a peer that is just being let go.
func (l *lane) seekPath() {
	if l.closed || !l.running {
		return
	}
	l.retryAt, l.backoff = 0, 0
	alive := l.cur != nil && !l.cur.lost
	if alive || l.following != nil || l.opening { // an attempt under way may miss the change
		l.move, l.tries = true, 0
	}
	if now := l.p.t.now(); alive && !l.p.quiet(now) {
		l.openIfDue(now)
	}
	l.rouse()
}

func (l *lane) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.running {
		l.idle = true
		l.rouse()
	}
}

// close ends the lane; the writer frees what is queued. It does not wait.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.running {
		if l.writing && l.cur != nil { // perhaps stuck; waiting for it is not our time
			l.cur.abandon()
		}
		l.rouse()
	}
	l.closed = true
}

// action is what the writer does next.
type action uint8

const (
	actSend action = iota
	actMove
	actWait
	actStop
)

// run is the writer.
func (l *lane) run() {
	defer l.p.t.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		act, wait := l.step()
		switch act {
		case actStop:
			return
		case actSend:
			l.send()
		case actMove:
			l.moveOver()
		case actWait:
			if wait <= 0 {
				<-l.wake
				continue
			}
			timer.Reset(wait)
			select {
			case <-l.wake:
			case <-timer.C:
			}
		}
	}
}

// expireEvery is how often a lane without a carrier looks for packets that
// waited too long.
const expireEvery = 200 * time.Millisecond

// step decides what the writer does next. A wait of 0 has no end but a wake.
func (l *lane) step() (act action, wait time.Duration) {
	var expired chain
	now := l.p.t.now()
	l.mu.Lock()
	defer func() {
		l.parked = act == actWait
		l.mu.Unlock()
		expired.each(l.expired)
	}()
	if l.closed {
		l.stop()
		return actStop, 0
	}
	if l.cur != nil && l.cur.lost {
		l.cur.c.Reset()
		l.cur = nil
	}
	switch {
	case l.following != nil:
		return actMove, 0
	case l.cur == nil:
		return l.stepDown(now, &expired)
	}
	move := l.move && !l.p.quiet(now)
	if move {
		l.openIfDue(now) // then l.move is no more
	}
	switch {
	case !l.empty():
		return actSend, 0
	case l.idle && !l.opening:
		_ = l.cur.c.CloseWrite()
		l.cur, l.idle, l.move = nil, false, false
		l.lastEpoch = 0 // ended in order, and long ago when the next one begins
		return l.rest()
	case move && l.move && !l.opening:
		return actWait, time.Duration(max(l.retryAt-now, 1))
	}
	return actWait, 0
}

// stepDown is step without a carrier.
func (l *lane) stepDown(now int64, expired *chain) (action, time.Duration) {
	l.expire(now-int64(l.p.t.lim.WaitTime), expired)
	switch {
	case l.empty() && !l.opening:
		return l.rest()
	case !l.empty():
		l.openIfDue(now)
	}
	wait := expireEvery
	if d := time.Duration(l.retryAt - now); !l.opening && d > 0 {
		wait = min(wait, d)
	}
	return actWait, wait
}

func (l *lane) empty() bool { return l.q.packets == 0 && len(l.batch) == 0 }

// rest ends the writer of a lane with neither packets nor a carrier.
func (l *lane) rest() (action, time.Duration) {
	l.running = false
	l.q.free()
	return actStop, 0
}

// expire collects what has waited too long, of the queue and of the batch that a
// broken carrier left.
func (l *lane) expire(before int64, out *chain) {
	l.q.expire(before, out)
	kept := l.batch[:0]
	for _, p := range l.batch {
		if p.at < before {
			out.push(p)
		} else {
			kept = append(kept, p)
		}
	}
	clear(l.batch[len(kept):])
	l.batch = kept
}

// expired tells the sender of p that the peer cannot be reached.
func (l *lane) expired(p *packet) {
	l.p.counters.drop(DropExpired)
	l.p.t.unreachable(p.ip())
	l.p.t.pools.put(p)
}

// stop frees everything; l.mu is held and the lane is closed.
func (l *lane) stop() {
	var all chain
	l.expire(1<<62, &all)
	all.each(func(p *packet) {
		l.p.t.lost.drop(DropPeerGone)
		l.p.t.pools.put(p)
	})
	l.patience(nil)
	if l.following != nil {
		l.following.c.Reset()
	}
	if l.cur != nil {
		if l.cur.lost || l.cur.c.CloseWrite() != nil {
			l.cur.c.Reset()
		}
	}
	l.cur, l.following, l.running = nil, nil, false
}

// moveOver makes the following carrier the one in use: the old one ends with a
// MARK, so that the receiver knows when to go on with the new one.
func (l *lane) moveOver() {
	l.mu.Lock()
	old := l.cur
	l.cur, l.following = l.following, nil
	l.lastEpoch = l.cur.epoch
	l.patience(nil)
	closed := l.closed
	if old != nil && !old.lost {
		l.cur.datagrams = l.p.t.now() + int64(l.p.t.lim.HoldTime)
	}
	l.mu.Unlock()
	if old == nil {
		return
	}
	var mark [frameHdrLen]byte
	putFrameHdr(mark[:], frameMark, 0)
	stuck := time.AfterFunc(l.p.t.lim.SwitchTime, old.c.Reset)
	defer stuck.Stop()
	if closed || old.lost {
		old.c.Reset()
	} else if _, err := old.c.Write(mark[:]); err != nil || old.c.CloseWrite() != nil {
		old.c.Reset()
	}
}
