package tunnel

import (
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/choice"
	"edgemesh/tunnel/pull"
)

// chooseEvery is how often the carriers to a peer are compared while packets wait.
const chooseEvery = 25 * time.Millisecond

// chooser says whether Pulled or carriers take a peer's stream lane, where both can. A goroutine looks, from a packet that has to wait until
// none have waited for a while.
type chooser struct {
	lanes  atomic.Bool   // carriers are to take them
	taken  atomic.Uint64 // bytes of the stream lane, by either
	sleeps atomic.Bool   // there is a choice, and nobody looks
	next   atomic.Int64  // from when one may

	mu      sync.Mutex // a leaf, except for wake
	choice  choice.Choice
	of      *Pulled // nil: there is no choice
	wake    func()  // has it do what is chosen
	running bool
}

// up begins the choice. What was chosen on a path before is kept.
func (c *chooser) up(x *Pulled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of, c.wake = x, x.wake
	c.sleeps.Store(!c.running)
}

// down ends it, unless another one is up.
func (c *chooser) down(x *Pulled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == x {
		c.choice.End()
		c.lanes.Store(c.choice.Better() == choice.Lanes)
		c.of, c.wake = nil, nil
		c.sleeps.Store(false)
	}
}

// moved says that what was measured may hold no longer.
func (c *chooser) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.choice.Moved()
	c.lanes.Store(c.choice.Better() == choice.Lanes)
}

// reason says why the carrier in use is, "" without a choice.
func (c *chooser) reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		return ""
	}
	return c.choice.Why()
}

// lookWaiting is look for a packet that has to wait, which many do.
func (l *lane) lookWaiting() {
	if l.id == StreamLane && l.q.packets > 0 && l.p.chooser.sleeps.Load() && l.p.t.now() >= l.p.chooser.next.Load() {
		l.look()
	}
}

// look has the carriers compared, unless they are; l.mu is held and the lane is not closed.
func (l *lane) look() {
	c := &l.p.chooser
	if !c.sleeps.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sleeps.CompareAndSwap(true, false) {
		c.running = true
		l.p.t.wg.Add(1)
		go l.p.choose()
	}
}

func (p *peer) choose() {
	defer p.t.wg.Done()
	tick := time.NewTicker(chooseEvery)
	defer tick.Stop()
	for p.compare() {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
	}
}

// compare takes what is seen now, and reports whether to look again.
func (p *peer) compare() (again bool) {
	waits, line := p.lanes[StreamLane].seen()
	seen := choice.Seen{Now: time.Duration(p.t.now()), Bytes: p.chooser.taken.Load(), Waits: waits, RTT: seconds(line.Least), Loss: line.Loss,
		TCP: true}
	if tcp := p.t.cfg.TCP; tcp != nil {
		seen.Least, seen.TCP = tcp(p.id)
	}
	c := &p.chooser
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != nil {
		lanes := c.choice.Next(seen) == choice.Lanes
		if c.lanes.Swap(lanes) != lanes {
			p.t.log.Debug("packets take another carrier", "peer", p.id, "lanes", lanes, "why", c.choice.Why())
		}
		if lanes == p.pulled.Load() {
			c.wake()
		}
		if !c.choice.Rests() {
			return true
		}
	}
	c.running = false
	c.next.Store(p.t.now() + int64(chooseEvery))
	c.sleeps.Store(c.of != nil)
	return false
}

// seen is whether packets wait, whatever carries them, and what the path was like that has taken some.
func (l *lane) seen() (waits bool, line pull.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sending || !l.empty(), l.line
}

// forgetLine is for a path that may be another one.
func (l *lane) forgetLine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line, l.adapted = pull.Line{}, 0
}
