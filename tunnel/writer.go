package tunnel

import (
	"context"
	"time"

	"edgemesh/tunnel/epoch"
)

// expireEvery is how often a lane without a carrier looks for packets that waited too long.
const expireEvery = 200 * time.Millisecond

// turn is what the writer does next, outside the lock.
type turn struct {
	do   epoch.Do
	on   *link         // the carrier of Send; of Switch the one that ends, nil if there was none
	now  int64         // when it was decided
	wait time.Duration // of Wait
}

// run is the writer.
func (l *lane) run() {
	defer l.p.t.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		switch t := l.step(); t.do {
		case epoch.Send:
			l.send(t)
		case epoch.Switch:
			if t.on != nil {
				t.on.end(l.p.t.lim.SwitchTime)
			}
		case epoch.Rest:
			return
		case epoch.Wait:
			if t.wait == epoch.Never {
				<-l.woken
				continue
			}
			timer.Reset(t.wait)
			select {
			case <-l.woken:
			case <-timer.C:
			}
		}
	}
}

// step decides what the writer does next.
func (l *lane) step() turn {
	var expired, late chain
	defer func() {
		expired.each(l.p.expired)
		l.p.drop(&late, DropDelay)
	}()
	t := turn{now: l.p.t.now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps++
	if l.closed {
		l.free()
		t.do = epoch.Rest
		return t
	}
	if l.cur == nil && l.next == nil && l.pulled == nil {
		l.expire(t.now-int64(l.p.t.lim.WaitTime), &expired)
	}
	for {
		o := l.carriers.Next(epoch.Time(t.now), epoch.Situation{Packets: !l.empty() && l.pulled == nil, Wanted: l.wanted && l.pulled == nil,
			Quiet: l.p.quiet(t.now), Idle: l.idle || l.pulled != nil})
		t.do = o.Do
		switch o.Do {
		case epoch.Send:
			t.on, l.sending = l.cur, true
			l.adapt(l.cur, t.now)
			l.fill(t.now, &late)
		case epoch.Switch:
			t.on, l.cur, l.next = l.cur, l.next, nil
			l.out.drain.Forget()
		case epoch.Wait:
			l.writer = writerParked
			if t.wait = o.Wait; l.cur == nil {
				t.wait = min(t.wait, expireEvery)
			}
		case epoch.Rest:
			l.writer = writerOff
			l.dialed(l.p.t.dials)
			if l.pulled == nil {
				l.q.free()
			}
		default:
			l.obey(o)
			continue
		}
		return t
	}
}

// obey does what the machine orders at any time; l.mu is held.
func (l *lane) obey(o epoch.Order) {
	switch o.Do {
	case epoch.Open:
		l.p.t.wg.Add(1)
		go l.open(o.Carrier)
	case epoch.Abandon:
		l.cur.c.Reset()
		l.cur = nil
	case epoch.Finish:
		_ = l.cur.c.CloseWrite()
		l.cur, l.idle = nil, false
	case epoch.Hurry:
		stuck := l.cur.epoch
		time.AfterFunc(l.p.t.lim.SwitchTime, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.closed {
				l.obey(l.carriers.Stuck(stuck))
			}
		})
	}
}

// open gets one carrier from the underlay and says HELLO on it, so that the far end is ready when the lane moves.
func (l *lane) open(id epoch.Carrier) {
	defer l.p.t.wg.Done()
	ctx, cancel := context.WithTimeout(l.p.ctx, l.p.t.lim.OpenTimeout)
	defer cancel()
	c, err := l.p.t.cfg.Underlay.Open(ctx, l.p.id, l.id)
	if err == nil {
		unblock := context.AfterFunc(ctx, c.Reset)
		_, err = c.Write(appendHello(nil, hello{l.id, id}))
		unblock()
		if err != nil {
			c.Reset()
		}
	}
	l.opened(c, id.Epoch, err)
}

// opened takes the outcome of open.
func (l *lane) opened(c Carrier, epochID uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = false
	if l.closed {
		if err == nil {
			c.Reset()
		}
		return
	}
	if err == nil {
		l.next = &link{c: c, epoch: epochID}
		l.dialed(l.p.t.dials)
	}
	o := l.carriers.Opened(epoch.Time(l.p.t.now()), err == nil)
	if err != nil {
		l.p.t.log.Debug("open a carrier", "peer", l.p.id, "lane", l.id, "retry", o.Wait, "err", err)
	}
	l.obey(o)
	l.wake()
}

func (l *lane) empty() bool { return l.q.packets == 0 && len(l.out.packets) == 0 }

// expire collects what has waited too long, of the queue and of the batch that a broken carrier left; l.mu is held.
func (l *lane) expire(before int64, late *chain) {
	l.q.expire(before, late)
	l.out.expire(before, late)
}

// free gives everything back; l.mu is held and the lane is closed.
func (l *lane) free() {
	var all chain
	l.expire(1<<62, &all)
	all.each(func(p *packet) {
		l.p.t.lost.drop(DropPeerGone)
		l.p.t.pools.put(p)
	})
	if l.next != nil {
		l.next.c.Reset()
	}
	if l.cur != nil && l.cur.c.CloseWrite() != nil {
		l.cur.c.Reset()
	}
	l.cur, l.next, l.writer = nil, nil, writerOff
	l.dialed(l.p.t.dials)
}
