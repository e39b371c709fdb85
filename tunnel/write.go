package tunnel

import "time"

const (
	// batchLen bounds what is handed to a carrier at once: a super-segment. More only
	// pushes what was read out of the processor's caches.
	batchLen = 64 << 10
	// minBatch is the least, on a slow path: less only costs system calls.
	minBatch = 16 << 10
	// wholeLen is the frame size from which copying into a batch costs more than
	// a Write of its own.
	wholeLen = 16 << 10
	// A Write that takes longer than slowWrite halves the batch, so that packets
	// wait in the queue, where flows are kept apart, and not in a batch; one
	// shorter than fastWrite doubles it.
	slowWrite = int64(20 * time.Millisecond)
	fastWrite = int64(4 * time.Millisecond)
)

// send takes packets from the queue and writes them to the carrier in use. What
// was not wholly written stays in l.batch for the next carrier.
func (l *lane) send() {
	t := l.p.t
	var late chain
	now := t.now()
	l.mu.Lock()
	cur := l.cur
	l.adapt(cur, now)
	size := 0
	for _, p := range l.batch {
		size += p.n
	}
	for size < l.limit {
		p := l.q.pop(now, &late)
		if p == nil {
			break
		}
		l.batch = append(l.batch, p)
		size += p.n
	}
	l.writing = true
	marked, trimmed := l.q.marked, l.q.trimmed
	l.q.marked, l.q.trimmed = 0, 0
	l.mu.Unlock()
	l.release(&late, DropDelay)
	l.p.counters.marked.Add(marked)
	l.p.counters.drops[DropDelay].Add(trimmed)

	done, err := l.writeTo(cur, now)
	took := t.now() - now
	if took > slowWrite {
		l.limit = max(l.limit/2, minBatch)
	} else if took < fastWrite {
		l.limit = min(l.limit*2, batchLen)
	}
	l.settle(done)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = false
	if err == nil {
		return
	}
	switch now := t.now(); {
	case cur.lost: // reset on purpose
	case now-cur.since > goodLife:
		l.backoff, l.retryAt = 0, 0
	default:
		l.fail(now)
	}
	cur.lost = true // step resets it
	t.log.Debug("carrier broke", "peer", l.p.id, "lane", l.id, "epoch", cur.epoch, "err", err)
}

// writeTo hands l.batch to a carrier, as datagrams beside it where that may be, and
// returns how many packets it took wholly.
func (l *lane) writeTo(cur *link, now int64) (done int, err error) {
	if l.id == DatagramLane && now >= cur.datagrams && cur.c.DatagramSize() > 0 {
		return l.writeDatagrams(cur.c)
	}
	return l.write(cur.c)
}

const (
	// rttEvery is how often the round trip of the carrier in use is asked for,
	// nanoseconds.
	rttEvery = int64(time.Second)
	// leastTarget bounds the delay target from below, as RFC 8289 section 4.4 has it.
	leastTarget = 5 * time.Millisecond
)

// adapt sets the delay a flow may have in the queue. A loss-based sender that is told to slow
// down keeps 0.7 of its window (RFC 9438): it fills the path meanwhile if 0.43 of a
// round trip stood in the queue. More is of no use to it. l.mu is held.
func (l *lane) adapt(cur *link, now int64) {
	if cur.asked != 0 && now-cur.asked < rttEvery {
		return
	}
	cur.asked = now
	target := l.p.t.lim.DelayTarget
	rtt := cur.c.RTT()
	if rtt > 0 {
		target = min(max(rtt*3/5, leastTarget), target)
	}
	l.q.target = int64(target)
	if l.id == StreamLane {
		l.p.acks.setRTT(rtt)
	}
}

// write hands l.batch to c and returns how many packets it took wholly. Small
// frames are gathered, big ones go as they are.
func (l *lane) write(c Carrier) (done int, err error) {
	bp := l.p.t.pools.batch.Get().(*[]byte)
	defer l.p.t.pools.batch.Put(bp)
	gathered := (*bp)[:0]
	flush := func(upTo int) error {
		if len(gathered) == 0 {
			return nil
		}
		n, err := c.Write(gathered)
		if err != nil {
			for done < upTo && n >= l.batch[done].n {
				n -= l.batch[done].n
				done++
			}
			return err
		}
		done, gathered = upTo, gathered[:0]
		return nil
	}
	for i, p := range l.batch {
		if p.n >= wholeLen || len(gathered)+p.n > cap(gathered) {
			if err = flush(i); err != nil {
				return done, err
			}
		}
		if p.n < wholeLen {
			gathered = append(gathered, p.frame()...)
			continue
		}
		if _, err = c.Write(p.frame()); err != nil {
			return done, err
		}
		done = i + 1
	}
	err = flush(len(l.batch))
	return done, err
}

// settle counts and frees the first n packets of the batch.
func (l *lane) settle(n int) {
	bytes := 0
	for _, p := range l.batch[:n] {
		bytes += len(p.ip())
		l.p.t.pools.put(p)
	}
	l.p.counters.txPackets.Add(uint64(n))
	l.p.counters.txBytes.Add(uint64(bytes))
	rest := copy(l.batch, l.batch[n:])
	clear(l.batch[rest:])
	l.batch = l.batch[:rest]
}
