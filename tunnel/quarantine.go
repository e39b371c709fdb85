package tunnel

import (
	"fmt"
	"sync"
	"time"
)

// streams are the live incoming streams of a peer, and the quarantine in which none are taken: malformed frames lead to
// it, counted over all streams, since streams are free.
type streams struct {
	mu      sync.Mutex         // see Tunnel for the order of locks
	live    [numLanes][]Stream // oldest first
	strikes int                // malformed frames in the minute after since
	since   int64
	until   int64 // the end of the quarantine
	length  time.Duration
}

// add takes a stream in. Beyond most per lane the oldest is reset. It reports false during the quarantine.
func (s *streams) add(ln Lane, stream Stream, most int, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now < s.until {
		return false
	}
	if live := s.live[ln]; len(live) >= most {
		live[0].Reset()
		s.live[ln] = append(live[:0:0], live[1:]...)
	}
	s.live[ln] = append(s.live[ln], stream)
	return true
}

// remove forgets a stream that has ended.
func (s *streams) remove(ln Lane, stream Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.live[ln] {
		if other == stream {
			s.live[ln] = append(s.live[ln][:i], s.live[ln][i+1:]...)
			return
		}
	}
}

// reset ends all streams; they are removed by their readers.
func (s *streams) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetAll()
}

func (s *streams) resetAll() {
	for _, lane := range s.live {
		for _, stream := range lane {
			stream.Reset()
		}
	}
}

// count is how many streams there are.
func (s *streams) count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range s.live {
		n += len(lane)
	}
	return n
}

// strike counts one malformed frame. It reports whether the peer is in quarantine now, and for how long if it was this
// frame that did it.
func (s *streams) strike(now int64, lim *Limits) (d time.Duration, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now < s.until { // the rest of what was read before
		return 0, true
	}
	if s.strikes == 0 || now-s.since > int64(time.Minute) {
		s.strikes, s.since = 0, now
	}
	s.strikes++
	if s.strikes <= lim.MalformedPerMinute {
		return 0, false
	}
	s.strikes = 0
	if now-s.until > int64(lim.QuarantineMax) { // long ago, or never
		s.length = 0
	}
	s.length = min(max(2*s.length, lim.QuarantineMin), lim.QuarantineMax)
	s.until = now + int64(s.length)
	s.resetAll()
	return s.length, true
}

// malformed counts a frame that no correct sender sends. It reports whether the stream is to be given up: the peer is in
// quarantine.
func (p *peer) malformed(r Reason) bool {
	p.counters.drop(r)
	d, refused := p.streams.strike(p.t.now(), &p.t.lim)
	if d > 0 {
		p.t.log.Warn("peer sends malformed frames; nothing is accepted from it for a while", "peer", p.id, "last", r, "for", d)
		if p.t.cfg.Quarantine != nil {
			p.t.cfg.Quarantine(p.id, d, fmt.Sprintf("malformed frames, the last: %s", r))
		}
	}
	return refused
}
