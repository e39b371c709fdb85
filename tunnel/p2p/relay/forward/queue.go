package forward

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
)

const (
	// mostWait is how long packets wait: two ticks of the shares.
	mostWait = 40 * time.Millisecond
	// memberBytes and allBytes bound what waits. Beyond the latter a member may have one packet waiting.
	memberBytes, allBytes = 1 << 20, 16 << 20
	// quantum is what a member sends in a turn, bytes, and retry how often those that wait are looked at.
	quantum = 16 << 10
	retry   = time.Millisecond
)

// queue has what waits for its member's share, or for room in the socket. Whoever waits takes turns (deficit round robin,
// RFC 8290 section 4.1.3), by member. While nothing of a member waits, nor anybody for the socket, its packets are sent by who
// reads them.
type queue struct {
	dropped func(Reason, int)
	wake    wake.One
	full    atomic.Bool // a socket had no room: who comes later does not go before those that wait for it

	mu    sync.Mutex // guards what follows, and the members' flows; only the shares' is taken under it, and nothing sent
	turns []*member  // those of whom something waits; the next one first
	bytes int
}

// flow is what waits of one member. It is guarded by queue.mu.
type flow struct {
	waits   atomic.Bool // it takes turns; changed under queue.mu
	trains  []train
	bytes   int
	deficit int
}

// train is packets of one length, the last one perhaps shorter.
type train struct {
	b    []byte
	each int
	to   *channel
	at   time.Time
	paid int // bytes taken from the member's share
}

func newQueue(dropped func(Reason, int)) queue { return queue{dropped: dropped, wake: wake.NewOne()} }

// send sends packets of a member now, or has them wait. b is valid during the call only.
func (q *queue) send(by *member, to *channel, b []byte, each int) {
	t := train{b: b, each: each, to: to, at: time.Now()}
	blocked := false
	if !q.full.Load() && !by.waits.Load() {
		if t.paid = by.share.Take(len(b), each); t.paid > 0 {
			if blocked = q.write(by, &t); len(t.b) == 0 {
				return
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !by.waits.Swap(true) {
		q.turns, by.deficit = append(q.turns, by), 0
	}
	for len(by.trains) > 0 && (by.bytes+len(t.b) > memberBytes || q.bytes+len(t.b) > allBytes) {
		q.drop(by)
	}
	if q.bytes+len(t.b) > allBytes && len(t.b) > each {
		q.dropped(Late, packets(t.b[each:], each))
		t.b, t.paid = t.b[:each], min(t.paid, each)
	}
	t.b = bytes.Clone(t.b)
	by.trains = append(by.trains, t)
	by.bytes, q.bytes = by.bytes+len(t.b), q.bytes+len(t.b)
	if blocked {
		q.full.Store(true)
	}
	q.wake.Wake()
}

// write sends what is paid of a train, and shortens it to the rest; blocked: the socket takes more later.
func (q *queue) write(by *member, t *train) (blocked bool) {
	sent, err := t.to.far.Send(t.b[:t.paid], t.each)
	if sent > 0 {
		by.share.Sent(sent)
	}
	if blocked = errors.Is(err, unix.EAGAIN); !blocked {
		if err != nil {
			q.dropped(Unsent, packets(t.b[sent:t.paid], t.each))
		}
		sent = t.paid
	}
	t.b, t.paid = t.b[sent:], t.paid-sent
	return blocked
}

// drop drops the oldest train of a member. The caller holds mu.
func (q *queue) drop(m *member) {
	q.dropped(Late, packets(m.trains[0].b, m.trains[0].each))
	q.shift(m)
}

// shift removes the oldest train of a member. The caller holds mu.
func (q *queue) shift(m *member) {
	n := len(m.trains[0].b)
	m.bytes, q.bytes = m.bytes-n, q.bytes-n
	m.trains[0] = train{}
	m.trains = m.trains[1:]
}

func packets(b []byte, each int) int { return (len(b) + each - 1) / each }

// run sends what waits, until ctx ends.
func (q *queue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for q.turn() {
			if !wake.Sleep(ctx, retry) {
				return
			}
		}
	}
}

// turn gives members turns until all that may send now have sent, and reports whether something still waits.
func (q *queue) turn() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	full := false // since one of them sent last
	for idle := 0; idle < len(q.turns); {
		m := q.turns[0]
		q.turns = q.turns[1:]
		switch q.serve(m) {
		case empty:
			m.waits.Store(false)
			idle, full = 0, false
			continue
		case noRoom:
			idle, full = idle+1, true
		case noShare:
			idle++
		case again:
			idle, full = 0, false
		}
		q.turns = append(q.turns, m)
	}
	q.full.Store(full)
	return len(q.turns) > 0
}

// served is what a turn has come to.
type served int

const (
	empty   served = iota // nothing of the member waits
	again                 // it has had its bytes
	noShare               // the rest waits for its share
	noRoom                // or for the socket
)

// serve gives one member a turn. The caller holds mu, which is given back while something is sent.
func (q *queue) serve(m *member) served {
	m.deficit += quantum
	for len(m.trains) > 0 {
		t := m.trains[0]
		switch {
		case time.Since(t.at) > mostWait:
			q.drop(m)
			continue
		case len(t.b) > m.deficit:
			return again
		}
		if t.paid == 0 {
			if t.paid = m.share.Take(len(t.b), t.each); t.paid == 0 {
				m.deficit = 0
				return noShare
			}
		}
		q.shift(m)
		q.mu.Unlock()
		had := len(t.b)
		blocked := q.write(m, &t)
		q.mu.Lock()
		m.deficit -= had - len(t.b)
		if len(t.b) > 0 {
			m.trains = slices.Insert(m.trains, 0, t)
			m.bytes, q.bytes = m.bytes+len(t.b), q.bytes+len(t.b)
		}
		if blocked {
			m.deficit = 0
			return noRoom
		}
	}
	m.trains = nil
	return empty
}
