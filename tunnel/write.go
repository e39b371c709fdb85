package tunnel

import (
	"math"
	"time"

	"edgemesh/internal/drain"
	"edgemesh/tunnel/epoch"
)

const (
	// batchLen bounds one Write: a super-segment. More only pushes what was read out of the processor's caches.
	batchLen = 64 << 10
	// minBatch is the bound on slow paths: less only costs system calls.
	minBatch = 4 << 10
	// startPiece is what a path is expected to take in 5 ms as long as its rate is not known, minPiece the least that is
	// believed, in bytes.
	startPiece, minPiece = batchLen, 1 << 10
	// wholeLen is the frame size from which on a copy into a batch costs more than a Write.
	wholeLen = 16 << 10
)

// batch is what the writer of a lane has taken from the queue and not yet written whole. It is the writer's alone, but drain.
type batch struct {
	p       *peer
	lane    Lane
	packets []*packet
	drain   drain.Drain // how many bytes to take from the queue at a time; the lane's mu guards it
}

// expire moves every packet queued before the given time to late.
func (b *batch) expire(before int64, late *chain) {
	kept := b.packets[:0]
	for _, p := range b.packets {
		if p.at < before {
			late.push(p)
		} else {
			kept = append(kept, p)
		}
	}
	clear(b.packets[len(kept):])
	b.packets = kept
}

// fill takes packets from the queue until the batch is full; l.mu is held.
func (l *lane) fill(now int64, late *chain) {
	size := 0
	for _, p := range l.out.packets {
		size += p.n
	}
	limit := l.out.drain.Limit()
	if l.q.piece = limit; limit >= batchLen {
		l.q.piece = 0
	}
	for size < max(limit, minBatch) {
		p := l.q.pop(now, late)
		if p == nil {
			break
		}
		l.out.packets = append(l.out.packets, p)
		size += p.n
	}
	l.count()
}

// count counts what the queue marked, and the segments that it removed; l.mu is held.
func (l *lane) count() {
	l.p.counters.marked.Add(l.q.marked)
	l.p.counters.dropSegments(l.q.trimmed)
	l.q.marked, l.q.trimmed = 0, 0
}

// send writes the batch to the carrier in use. What was not taken whole stays for the next carrier.
func (l *lane) send(t turn) {
	l.out.sampleWait(t.on, t.now)
	done, err := l.out.write(t.on.c)
	now := l.p.t.now()
	bytes := l.out.sent(done)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.sending = false
	l.out.drain.Left(bytes, time.Duration(now-t.now), time.Unix(0, now))
	l.obey(l.carriers.Sent(epoch.Time(now), t.on.epoch, err != nil))
	if l.pulled != nil && l.has() && !l.closed { // what the carrier did not take
		l.pulled()
	}
	if err != nil {
		l.p.t.log.Debug("carrier broke", "peer", l.p.id, "lane", l.id, "epoch", t.on.epoch, "err", err)
	}
}

const (
	// rttEvery is how often the round trip of the carrier in use is read, nanoseconds.
	rttEvery = int64(time.Second)
	// leastTarget bounds the delay target from below, as RFC 8289 section 4.4 has it.
	leastTarget = 5 * time.Millisecond
)

// waitEvery is how often a carrier gets a sample of how long packets wait, nanoseconds: a histogram of all of them would cost as much
// as a small packet.
const waitEvery = int64(20 * time.Millisecond)

// sampleWait gives the carrier, now and then, the waiting time of the first packet of the batch.
func (b *batch) sampleWait(cur *link, now int64) {
	if len(b.packets) == 0 || now-cur.waitSampled < waitEvery {
		return
	}
	cur.waitSampled = now
	cur.c.Waited(time.Duration(now - b.packets[0].at))
}

// adapt sets the delay that a flow may have in the queue, and for how long. A loss-based sender that slows down
// keeps 0.7 of its window (RFC 9438): it still fills the path if 0.43 round trips stood in the queue, and more is of no use
// to it. It cannot react within a round trip, so nothing is dropped before two have passed (RFC 8289 section 4.3). l.mu is
// held.
func (l *lane) adapt(cur *link, now int64) {
	if cur.rttRead != 0 && now-cur.rttRead < rttEvery {
		return
	}
	cur.rttRead = now
	l.adaptTo(cur.c.RTT(), 0)
}

const (
	// One part in regainShare of the time that a sender needs for what it gives up may pass before it has to: lines vary by the second.
	regainShare = 8
	usualPacket = 1500
)

// adaptTo is adapt for a round trip, and a rate in bytes a second; 0: unknown. What cubic gives up of a window of W packets it has back
// after cbrt(W (1-.7) / .4) seconds (RFC 9438, 4.2): 6.8 s at 100 Mbit/s and 50 ms, .9 s at 1 Mbit/s and 10 ms.
func (l *lane) adaptTo(rtt time.Duration, rate float64) {
	target := l.p.t.lim.DelayTarget
	if rtt > 0 {
		target = min(max(rtt*3/5, leastTarget), target)
	}
	regain := time.Duration(math.Cbrt(rate*rtt.Seconds()/usualPacket*0.3/0.4) * float64(time.Second))
	l.q.target = codelTarget{Delay: int64(target), Interval: int64(min(max(2*rtt, regain/regainShare, l.p.t.lim.DelayInterval), time.Second))}
	if l.id == StreamLane {
		l.p.acks.SetRTT(rtt)
	}
}

// write writes the batch to c and returns how many packets were taken whole. Small frames are gathered, large ones are
// written as they are.
func (b *batch) write(c Carrier) (done int, err error) {
	bp := b.p.t.pools.batch.Get().(*[]byte)
	defer b.p.t.pools.batch.Put(bp)
	gathered := (*bp)[:0]
	flush := func(upTo int) error {
		if len(gathered) == 0 {
			return nil
		}
		n, err := c.Write(gathered)
		if err != nil {
			for done < upTo && n >= b.packets[done].n {
				n -= b.packets[done].n
				done++
			}
			return err
		}
		done, gathered = upTo, gathered[:0]
		return nil
	}
	for i, p := range b.packets {
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
	err = flush(len(b.packets))
	return done, err
}

// sent counts and frees the first n packets of the batch.
func (b *batch) sent(n int) (bytes int) {
	for _, p := range b.packets[:n] {
		bytes += len(p.ip())
		b.p.t.pools.put(p)
	}
	b.p.counters.txPackets.Add(uint64(n))
	b.p.counters.txBytes.Add(uint64(bytes))
	if b.lane == StreamLane {
		b.p.chooser.taken.Add(uint64(bytes))
	}
	rest := copy(b.packets, b.packets[n:])
	clear(b.packets[rest:])
	b.packets = b.packets[:rest]
	return bytes
}
