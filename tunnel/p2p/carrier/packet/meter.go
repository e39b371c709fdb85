package packet

import (
	"encoding/binary"
	"iter"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// answerEvery is how often a session answers what it is asked, at most.
	answerEvery = 2 * time.Millisecond
	// meterWindow: the least delay is remembered for one to two of these, since clocks drift.
	meterWindow = 30 * time.Second
	// mostTrip is the longest round trip that is believed.
	mostTrip = 10 * time.Second
	// asNew answers came within this time of each other.
	asNew = 500 * time.Millisecond
)

// clock is a time as packets carry it: microseconds since the Service began, which wrap around. The other end sees
// differences only.
func (s *Service) clock(t time.Time) uint32 { return uint32(t.Sub(s.began).Microseconds()) }

// meter knows how long packets wait in each direction of a path, from those that the peer answers with the time at which they
// arrived. The two clocks need not agree: a delay is told by how much longer it is than the least one.
type meter struct {
	mu     sync.Mutex // a leaf
	window time.Time  // its beginning
	ahead  way
	behind way
	at     time.Time // of the last answer; zero: none
}

// way is one direction. Delays are differences of two clocks, in microseconds; they wrap around.
type way struct {
	least, before uint32 // of this window and the one before
	last          [2]uint32
}

// answered takes in an answer that came at here, and now, to what was sent at sent; it had arrived at there by the peer's
// clock.
func (m *meter) answered(sent, there, here uint32, now time.Time) {
	if micros(here-sent) < 0 || micros(here-sent) > mostTrip {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ahead, behind := there-sent, here-there
	switch {
	case m.at.IsZero() || now.Sub(m.window) > 2*meterWindow:
		m.ahead, m.behind, m.window = newWay(ahead), newWay(behind), now
	case now.Sub(m.window) > meterWindow:
		m.ahead.before, m.behind.before, m.window = m.ahead.least, m.behind.least, now
		m.ahead.least, m.behind.least = ahead, behind
	}
	m.at = now
	m.ahead.add(ahead)
	m.behind.add(behind)
}

func (m *meter) waits() (ahead, behind, least time.Duration, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ahead.wait(), m.behind.wait(), micros(m.ahead.shortest() + m.behind.shortest()), m.at
}

func micros(d uint32) time.Duration { return time.Duration(int32(d)) * time.Microsecond }

func newWay(delay uint32) way { return way{delay, delay, [2]uint32{delay, delay}} }

func (w *way) add(delay uint32) {
	w.last = [2]uint32{w.last[1], delay}
	w.least = earlier(w.least, delay)
}

func (w *way) shortest() uint32 { return earlier(w.least, w.before) }

// wait is the shorter one of the last two: one that is late may have waited for a processor.
func (w *way) wait() time.Duration {
	return micros(earlier(w.last[0], w.last[1]) - w.shortest())
}

// earlier is the lesser of two differences of clocks that wrap around.
func earlier(a, b uint32) uint32 {
	if int32(a-b) < 0 {
		return a
	}
	return b
}

// Beside measures the way to a peer by the datagrams beside a connection that leads to the same address.
type Beside struct {
	s    *Service
	peer peer.ID
	at   netip.Addr
}

// Beside measures the way to a peer at an address.
func (s *Service) Beside(p peer.ID, at netip.Addr) Beside {
	return Beside{s, p, at.Unmap().WithZone("")}
}

// Ask has a packet sent on each session there, which the peer answers: any of them may end next. It does not wait.
func (b Beside) Ask() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for ss := range b.sessions() {
		if out := ss.sending.Load(); out != nil {
			out.ask.Wake()
		}
	}
}

// Waits is how much longer than the least packets take to the peer and back, the round trip of both least ones, and when that
// was heard; the zero time: never.
func (b Beside) Waits() (ahead, behind, least time.Duration, at time.Time) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return told(b.sessions())
}

// Sent is how many bytes were ever sent on the sessions there, headers of UDP and IP included.
func (b Beside) Sent() uint64 {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	var n uint64
	for ss := range b.sessions() {
		n += ss.sent.Load()
	}
	return n
}

// told is what the session tells that knows the least delays, of those whose answers are as new: one that began while packets
// waited takes that for the least, and one that nothing comes through has old answers.
func told(sessions iter.Seq[*Session]) (ahead, behind, least time.Duration, at time.Time) {
	for ss := range sessions {
		a, b, l, heard := ss.meter.waits()
		newer := heard.Sub(at)
		if !heard.IsZero() && (newer > asNew || newer >= -asNew && l < least) {
			ahead, behind, least, at = a, b, l, heard
		}
	}
	return ahead, behind, least, at
}

// sessions are those with the peer at the address; if there is none, those at addresses of the other family, which may be the
// same host's on the same line. The caller holds the Service's mu.
func (b Beside) sessions() iter.Seq[*Session] {
	var same, other []*Session
	for _, ss := range b.s.sessions[b.peer] {
		a, ok := ss.quic.RemoteAddr().(*net.UDPAddr)
		if !ok {
			continue
		}
		switch at := a.AddrPort().Addr().Unmap().WithZone(""); {
		case at == b.at:
			same = append(same, ss)
		case at.Is4() != b.at.Is4():
			other = append(other, ss)
		}
	}
	if len(same) > 0 {
		return slices.Values(same)
	}
	return slices.Values(other)
}

// join adds a session with which datagrams are sent to its peer's, until the function it returns is called.
func (s *Service) join(ss *Session) (leave func()) {
	p := ss.conn.RemotePeer()
	ss.sent.Store(0) // what it had sent before has been forgotten
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[p] = append(s.sessions[p], ss)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := slices.DeleteFunc(s.sessions[p], func(o *Session) bool { return o == ss }); len(left) > 0 {
			s.sessions[p] = left
		} else {
			delete(s.sessions, p)
		}
	}
}

// asking is a question of the peer: when it was sent by its clock, and when it arrived by this one.
type asking struct{ sent, here uint32 }

// asked is what a receiver has been asked. It belongs to receiver.mu.
type asked struct {
	questions chan asking // to answer
	answered  time.Time   // when one was taken last
}

// question has what was sent at the peer's time sent answered.
func (r *receiver) question(sent uint32) {
	now := time.Now()
	if now.Sub(r.answered) < answerEvery {
		return
	}
	r.answered = now
	select {
	case r.questions <- asking{sent, r.ss.s.clock(now)}:
	default: // the one before it waits
	}
}

// answer takes in the payload of an answer.
func (r *receiver) answer(b []byte) {
	if len(b) >= 9 {
		now := time.Now()
		r.ss.meter.answered(binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:]), r.ss.s.clock(now), now)
	}
}
