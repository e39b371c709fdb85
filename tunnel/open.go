package tunnel

import (
	"context"
	"time"
)

const (
	// moveTries bounds the attempts to open the carrier a PathChanged asked for,
	// while the one in use works.
	moveTries = 5
	// goodLife is how long a carrier must have lived for its end to be no reason
	// to wait before the next one.
	goodLife = int64(time.Second)
)

// openIfDue starts to open a carrier unless that is under way or too early;
// l.mu is held and the lane is not closed.
func (l *lane) openIfDue(now int64) {
	if l.opening || l.following != nil || now < l.retryAt {
		return
	}
	l.opening, l.move = true, false
	l.epoch++
	h := hello{lane: l.id, nonce: l.p.t.nonce, epoch: l.epoch, after: l.lastEpoch}
	l.p.t.wg.Add(1)
	go l.open(h)
}

// open gets one carrier from the underlay and says HELLO on it, so that the far
// end is ready when the lane moves.
func (l *lane) open(h hello) {
	defer l.p.t.wg.Done()
	ctx, cancel := context.WithTimeout(l.p.ctx, l.p.t.lim.OpenTimeout)
	defer cancel()
	c, err := l.p.t.cfg.Underlay.Open(ctx, l.p.id, l.id)
	if err == nil {
		unblock := context.AfterFunc(ctx, c.Reset)
		_, err = c.Write(appendHello(nil, h))
		unblock()
		if err != nil {
			c.Reset()
		}
	}
	l.opened(c, h.epoch, err)
}

// opened takes the outcome of open.
func (l *lane) opened(c Carrier, epoch uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.p.t.now()
	l.opening = false
	switch {
	case l.closed:
		if err == nil {
			c.Reset()
		}
		return
	case err != nil:
		l.fail(now)
		if l.cur != nil {
			l.tries++
			l.move = l.move || l.tries < moveTries
		}
		l.p.t.log.Debug("open a carrier", "peer", l.p.id, "lane", l.id, "retry", l.backoff, "err", err)
	default:
		l.tries = 0
		l.following = &link{c: c, epoch: epoch, since: now}
		if old := l.cur; old != nil && l.writing {
			l.hurry(old)
		}
	}
	l.rouse()
}

// hurry resets a carrier whose Write the lane is stuck in while another carrier
// is ready. A Write that ends in time keeps it.
func (l *lane) hurry(old *link) {
	l.patience(time.AfterFunc(l.p.t.lim.SwitchTime, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cur == old && l.following != nil && l.writing {
			old.abandon()
		}
	}))
}

// patience replaces the timer of hurry; l.mu is held.
func (l *lane) patience(t *time.Timer) {
	if l.stuck != nil {
		l.stuck.Stop()
	}
	l.stuck = t
}

// fail notes that opening failed, or that a carrier broke early, and chooses
// when to try again.
func (l *lane) fail(now int64) {
	l.backoff = min(max(2*l.backoff, l.p.t.lim.RetryMin), l.p.t.lim.RetryMax)
	l.retryAt = now + int64(l.backoff)
}
