package tunnel

import (
	"net/netip"
	"sync"
	"time"

	"edgemesh/internal/drain"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/epoch"
	"edgemesh/tunnel/pull"
)

// lane is the sending side of one lane to one peer: a queue, the carrier in use and a writer goroutine (writer.go) that
// lives while there is either. Which carrier that is, and when it changes, epoch.Sender decides.
type lane struct {
	p     *peer
	id    Lane
	woken wake.One // the writer; nil without one: most members are never talked to

	mu       sync.Mutex // see Tunnel for the order of locks
	q        queue
	carriers epoch.Sender
	links    // the carriers that it names
	writer   writerState
	steps    uint64 // of the writers
	closed   bool
	idle     bool      // end the carrier once the queue is empty
	wanted   bool      // open one though nothing is queued
	pulled   func()    // an underlay takes the packets, and is to be woken by this; nil: carriers do (pulled.go)
	sending  bool      // the writer is inside Write
	adapted  int64     // when the queue learnt of the path that takes them,
	line     pull.Line // and what that was like
	sampled  int64     // when that was told how long packets wait

	out batch
}

// writerState is where a lane's writer stands.
type writerState uint8

const (
	writerOff    writerState = iota // there is none
	writerBusy                      // it looks at the lane again before it waits
	writerParked                    // it waits until it is woken
)

// links are the carrier in use and the one to move to, and, while there is neither, the pod whose packet has the peer
// dialed.
type links struct {
	cur, next *link
	dialer    netip.Addr // invalid: the peer is connected, or not wanted
}

// dialed ends the dialer's part in the limit, if there is one: there is a carrier, or nothing to send.
func (k *links) dialed(l *dialLimit) {
	if k.dialer.IsValid() {
		l.end(k.dialer)
		k.dialer = netip.Addr{}
	}
}

// link is a carrier, and what is known of it.
type link struct {
	c           Carrier
	epoch       uint64
	rttRead     int64 // when its round trip was read
	waitSampled int64 // when it got the packets' waiting time
}

// end writes MARK on a carrier that another one follows, so that the receiver knows when to read that one. It takes
// no longer than patience.
func (k *link) end(patience time.Duration) {
	defer time.AfterFunc(patience, k.c.Reset).Stop()
	var mark [frameHdrLen]byte
	putFrameHdr(mark[:], frameMark, 0)
	if _, err := k.c.Write(mark[:]); err != nil || k.c.CloseWrite() != nil {
		k.c.Reset()
	}
}

func newLane(p *peer, id Lane) *lane {
	lim := &p.t.lim
	l := &lane{p: p, id: id, out: batch{p: p, lane: id, drain: drain.New(startPiece, minPiece, batchLen)}}
	l.carriers = epoch.NewSender(epoch.Config{Nonce: p.t.nonce, RetryMin: lim.RetryMin, RetryMax: lim.RetryMax})
	l.q.held, l.q.pools = &p.t.held, p.t.pools
	l.q.target = codelTarget{Delay: int64(lim.DelayTarget), Interval: int64(lim.DelayInterval)}
	l.q.longest = int64(lim.WaitTime)
	return l
}

// push queues a packet of a pod; it never blocks.
func (l *lane) push(p *packet, pod netip.Addr) {
	var full chain
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.p.t.lost.drop(DropPeerGone) // the peer's own numbers were summed up already
		l.p.t.pools.put(p)
		return
	}
	if l.writer == writerOff && l.pulled == nil {
		if !l.p.t.dials.begin(pod) {
			l.mu.Unlock()
			l.p.counters.drop(DropDials)
			l.p.t.pools.put(p)
			return
		}
		l.dialer = pod
	}
	l.idle = false
	if l.id == StreamLane && l.q.packets > 0 && l.pulled == nil {
		l.p.passer.Waits(p.n, l.out.drain.Rate(), p.at)
	}
	l.lookWaiting()
	l.q.push(p)
	for l.full() {
		full.push(l.q.dropFattest())
	}
	if l.pulled != nil {
		l.pulled()
	} else {
		l.wake()
	}
	l.mu.Unlock()
	l.p.drop(&full, DropQueueFull)
}

// expect opens a carrier for the answers to what a peer is about to send: it is there when the first of them is, a round trip
// earlier than if that had to wait.
func (l *lane) expect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.writer != writerOff || l.pulled != nil {
		return
	}
	l.p.used(l.p.t.now()) // or nothing would end it
	l.wanted, l.idle = true, false
	l.wake()
}

// leastShare is what a lane may queue however much the others hold, in bytes.
const leastShare = 128 << 10

// full reports whether a packet has to go; one at least stays.
func (l *lane) full() bool {
	t := l.p.t
	return l.q.charged > t.lim.QueueBytes || l.q.charged > leastShare && t.held.Load() > int64(t.lim.TotalBytes)
}

// wake makes the writer look again; l.mu is held and the lane is not closed.
func (l *lane) wake() {
	switch l.writer {
	case writerOff:
		l.writer = writerBusy
		l.woken = wake.NewOne() // the writer before has ended
		l.p.t.wg.Add(1)
		go l.run()
	case writerParked:
		l.writer = writerBusy
		l.woken.Wake()
	}
}

// pathChanged moves to the best path, or immediately tries again to get one.
func (l *lane) pathChanged() {
	l.handle(func(now epoch.Time, quiet bool) epoch.Order { return l.carriers.PathChanged(now, quiet) })
}

// pathLost abandons the carrier in use, if its path is the lost one.
func (l *lane) pathLost() {
	l.handle(func(now epoch.Time, quiet bool) epoch.Order {
		return l.carriers.PathLost(now, l.cur != nil && l.cur.c.Lost(), quiet)
	})
}

// handle hands an event to the machine of a lane that is in use.
func (l *lane) handle(event func(now epoch.Time, quiet bool) epoch.Order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.look() // there may be one carrier less
	if l.writer == writerOff {
		return
	}
	now := l.p.t.now()
	l.obey(event(epoch.Time(now), l.p.quiet(now)))
	l.wake()
}

// endIdle ends the carrier in order once everything is sent.
func (l *lane) endIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.writer != writerOff {
		l.idle = true
		l.wake()
	}
}

// close ends the lane; the writer frees what is queued. It does not wait.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.writer != writerOff {
		l.obey(l.carriers.Close())
		l.wake()
	} else {
		l.free() // what nobody has taken yet
	}
	l.closed = true
}
