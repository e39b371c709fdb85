package ladder

import "time"

// An idle path is left alone for as long as the NATs on the way are known to remember it. How long that is nobody says, so
// it is tried: each silence that a probe was answered after lets the next be twice as long. The sides take turns, since a
// NAT that has forgotten lets its own side's packets out, and those of the other side not in: what ends a silence has to
// come from the other side every second time.
const (
	// restFirst, and a quarter of it, is less than what any NAT in use forgets UDP after (some do after 20 s). restMost, with
	// its quarter, is less than the 2 minutes of RFC 4787, section 4.3, and the time in which a dead path is found that
	// nobody uses.
	restFirst = 15 * time.Second
	restMost  = 90 * time.Second
	// restTCP is the first one over TCP, which no NAT in use forgets within 2 minutes. What a relayed path needs of NATs is kept
	// by the connections to the relay: restMost.
	restTCP = time.Minute
	// restKept is for direct paths over TCP between a node and its relay, and restFirst for those over QUIC: as often as
	// operators' relays are heard by keep-alive. A member's connections have none, whoever dialed.
	restKept = 30 * time.Second
	// What was too long is tried again after restAgain, and after twice as long every time, up to restAgainMax.
	restAgain    = time.Hour
	restAgainMax = 24 * time.Hour
	// blameFor is how long after a path was lost an answer on another one shows that the network is there, so that it was
	// the silence that was too long. A new path through a relay takes about a second.
	blameFor = 5 * time.Second
)

// rest is how long paths of one kind may be silent.
type rest struct {
	lead   bool // probes first where both sides have probed
	first  Time // the first silence
	learns Time // silences that began before are those of other NATs
	held   Time // the longest silence after which a path answered
	failed Time // what was too long; 0: nothing, or long ago
	again  Time // when it is forgotten
	losses int

	// A silence that a path may not have survived, and when that was noticed; 0: none.
	doubted, noticed Time
}

// every is the silence after which a path is probed.
func (r *rest) every(now Time) Time {
	most := restMost
	if r.failed > 0 && now < r.again {
		most = min(most, r.failed*2/3)
	}
	return max(restFirst, min(max(2*r.held, r.first), most))
}

// answered notes that a path answered after a silence.
func (r *rest) answered(silence Time) { r.held = max(r.held, min(silence, restMost)) }

// lost notes that a silence was too long.
func (r *rest) lost(now, silence Time) {
	if silence < restFirst {
		return
	}
	if now-r.again > restAgainMax {
		r.losses = 0
	}
	r.failed, r.held = silence, min(r.held, silence/2)
	r.again = now + min(restAgain<<min(r.losses, 8), restAgainMax)
	r.losses++
}

// rests are those of a peer: of direct paths over TCP and QUIC, and of relayed ones.
type rests [3]rest

// of returns that of a path.
func (r *rests) of(l Link, lead bool) *rest {
	one, first := &r[2], restMost
	if !l.Relayed {
		one, first = &r[l.Transport], restFirst
		if l.Transport == TCP {
			first = restTCP
		}
	}
	one.lead, one.first = lead, first
	return one
}

// blame follows an answer: the network is there, so that silences are to blame for what was lost a moment ago.
func (r *rests) blame(now Time) {
	for i := range r {
		one := &r[i]
		if one.doubted > 0 && now-one.noticed <= blameFor {
			one.lost(now, one.doubted)
		}
		one.doubted = 0
	}
}

// forget forgets what was learned: this node or the peer may be behind other NATs now.
func (r *rests) forget(now Time) {
	for i := range r {
		r[i] = rest{lead: r[i].lead, first: r[i].first, learns: now}
	}
}

// resting is the silence of a path.
type resting struct {
	*rest
	sampled  Time // when what was heard was last sampled
	answered Time // when the last probe was
	silence  Time // before the last request
	began    Time // that silence
	exact    bool // it was not shorter
	kept     bool // the path is direct, and one end is the other's relay
	early    Time // of restEarly: each peer has its own, so that those that came together part
}

// doubt notes that the path did not answer after its silence. It may have been too long, or the network is down: see blame.
func (r *resting) doubt(now Time) {
	if r.exact && r.began >= r.learns {
		r.doubted, r.noticed = r.silence, now
	}
}

// restEarly is into how many parts a sixteenth of a wait is divided, some of which are left out. Less than what one side
// waits longer than the other.
const restEarly = 256
