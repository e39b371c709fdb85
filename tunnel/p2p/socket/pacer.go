package socket

import "time"

const (
	// standingTime and standingQueue, in bytes, are the least delay and data on the path that count as a queue.
	standingTime  = 10 * time.Millisecond
	standingQueue = 64 << 10
	// restrainTime bounds how long BBR's rate is limited.
	restrainTime = time.Second
	// longPath is the shortest round trip of a path on which BBR is restarted: on shorter ones it finds a lost rate soon
	// enough by itself.
	longPath = 5 * time.Millisecond
	// startPause is the least time from one restart to the next; it doubles up to startPauseMax while they follow each
	// other.
	startPause, startPauseMax = time.Second, time.Minute
	// drainedTime, and routeTrips round trips, is how long BBR's least round trip must have been longer before that is the
	// route's. BBR takes the first sample when its own has expired, queue and all; then it empties the path for a round
	// trip and 0.2 s (bbr_probe_rtt_mode_ms).
	drainedTime = 200 * time.Millisecond
	routeTrips  = 4
	// unpaced is SO_MAX_PACING_RATE's "no limit".
	unpaced = ^uint64(0)
)

// sight is what the kernel reports of a BBR connection at one moment.
type sight struct {
	rate      uint64 // BBR's estimate of the path's rate, bytes per second
	starting  bool   // BBR searches the rate with its high gain
	rtt       time.Duration
	floor     time.Duration // least round trip of the last 5 minutes (net.ipv4.tcp_min_rtt_wlen)
	recent    time.Duration // BBR's least round trip, of the last 10 s or so; 0: unknown
	underWay  uint64        // bytes sent and not acknowledged
	delivered uint32        // segments that have arrived
	segment   uint32        // bytes
	unsent    bool          // bytes wait in the socket
}

// order is what to do with the connection.
type order struct {
	limit   uint64 // SO_MAX_PACING_RATE, 0: as it is
	restart bool   // BBR forgets everything and starts again
}

// pacer decides three things about BBR v1 (net/ipv4/tcp_bbr.c), all because a flow inside the tunnel, clocked by its own
// acknowledgements, does not use a carrier as a file transfer would.
//
// It ends BBR's start. BBR does so when the rate has not grown for three rounds, but does not count rounds in which the
// application sent less than it might have, and such a flow always seems to: BBR would keep 2.89 times the path's rate for
// seconds, and the path would drop instead of the queue above. As soon as the round trip shows a queue on the path, the
// pacer limits the rate to less than was measured: the queue drains, data wait here, BBR's rounds count.
//
// It finds a lost rate again. Samples of a connection that has nothing to send do not lower BBR's estimate, but those
// after a loss do, since BBR then cuts its window to what is under way, and that, not the application, seems to be the
// limit. A flow that begins on a lossy path takes the estimate from 95 to 2 Mbit/s that way, and BBR regains a quarter in
// eight round trips. When data wait although no queue stands on the path, and the rate is below half of what it was when
// one stood last, or of all that was seen where none did, BBR is restarted: it doubles in each round, up to that rate.
//
// It drains a queue that stands on the path afterwards (brake.go).
type pacer struct {
	// least is the shortest smoothed round trip seen on the present route. The kernel's own is too short after a
	// simultaneous open.
	least  time.Duration
	longer time.Time // since when BBR's own is longer; zero: it is not
	grown  bool      // least is BBR's, and the kernel's is of the route before
	held   time.Time // since when the rate is limited; zero: it is not
	best   uint64    // rate when a queue stood last, or the highest since then, or since the last restart
	known  bool      // best is the path's: a queue stood, or it is what it was before
	before uint64    // best before the last restart
	clear  uint32    // sight.delivered when no queue stood last
	waits  time.Time // since when data wait; zero: they do not
	began  time.Time // the last restart
	pause  time.Duration
	brake  brake
}

// decide returns what to do now.
func (p *pacer) decide(s sight, now time.Time) order {
	p.observe(s, now)
	standing := s.rtt-p.least >= p.slack()
	if !standing {
		p.clear = s.delivered
	}
	if p.best = max(p.best, s.rate); s.delivered-p.clear >= measureSegments && !s.starting {
		p.best, p.before = s.rate, min(p.before, s.rate) // the line may have become slower
	}
	p.known = p.known || standing || p.before > 0 && s.rate > p.before/5*4
	if !p.held.IsZero() && (!s.starting || now.Sub(p.held) > restrainTime) {
		p.held = time.Time{}
		return order{limit: unpaced}
	}
	if limit := p.brake.decide(s, p.least, p.slack(), max(p.best, p.before), now); limit != 0 || !p.brake.on.IsZero() {
		p.held, p.waits = time.Time{}, time.Time{}
		if limit == unpaced && p.brake.drained { // what was known before was too much
			p.best, p.before = p.brake.rate, min(p.before, p.brake.rate)
		}
		return order{limit: limit}
	}
	fits := s.rate * uint64(p.least.Microseconds()) / 1e6
	switch {
	case s.starting && p.held.IsZero() && standing && s.underWay >= fits+standingQueue:
		p.held = now
		return order{limit: s.rate * 3 / 4}
	case p.lost(s, standing, now):
		return p.restart(now)
	}
	return order{}
}

// observe keeps the shortest round trip of the present route. It follows a longer route as soon as BBR does, which empties
// the path's queue every 10 s to look, or when the kernel's does, after 5 minutes.
func (p *pacer) observe(s sight, now time.Time) {
	switch {
	case p.least == 0 || s.rtt < p.least:
		p.least = s.rtt
	case s.floor-p.least >= p.slack():
		p.least, p.grown = s.floor, false
	case s.recent-p.least < p.slack():
	case p.longer.IsZero():
		p.longer = now
		return
	case now.Sub(p.longer) < drainedTime+routeTrips*s.recent:
		return
	default:
		p.least, p.grown = s.recent, true
	}
	p.longer = time.Time{}
}

// slack is how much longer than the least a round trip is without a queue.
func (p *pacer) slack() time.Duration { return max(standingTime, p.least/4) }

// lost reports whether BBR sends less than the path takes.
func (p *pacer) lost(s sight, standing bool, now time.Time) bool {
	if s.starting || standing || !s.unsent || p.least < longPath || p.known && s.rate >= p.best/2 ||
		p.grown && p.least-s.floor >= p.slack() {
		p.waits = time.Time{}
		return false
	}
	if p.waits.IsZero() {
		p.waits = now
	}
	return now.Sub(p.waits) >= p.least && now.Sub(p.began) >= p.pause
}

func (p *pacer) restart(now time.Time) order {
	if now.Sub(p.began) > 4*p.pause {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, startPause), startPauseMax)
	o := order{restart: true}
	if p.known {
		p.before, p.held, o.limit = p.best, now, p.best
	}
	p.began, p.best, p.known, p.waits = now, 0, false, time.Time{}
	return o
}
