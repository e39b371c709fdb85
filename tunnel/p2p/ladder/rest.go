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
	// What was too long is tried again after restAgain, and after twice as long every time, up to restAgainMax.
	restAgain    = time.Hour
	restAgainMax = 24 * time.Hour
)

// rest is how long paths of one kind may be silent.
type rest struct {
	lead   bool // asks first where both sides have asked
	held   Time // the longest silence after which a path answered
	failed Time // what was too long; 0: nothing, or long ago
	again  Time // when it is forgotten
	losses int
}

// every is the silence after which a path is asked.
func (r *rest) every(now Time) Time {
	most := restMost
	if r.failed > 0 && now < r.again {
		most = min(most, r.failed*2/3)
	}
	return max(restFirst, min(2*r.held, most))
}

// answered notes that a path answered after a silence.
func (r *rest) answered(silence Time) { r.held = max(r.held, min(silence, restMost)) }

// lost notes that a path did not answer after a silence: it may have been too long.
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
	one := &r[2]
	if !l.Relayed {
		one = &r[l.Transport]
	}
	one.lead = lead
	return one
}

// resting is the silence of a path.
type resting struct {
	*rest
	sampled  Time // when what was heard was last sampled
	answered Time // when the last probe was
	silence  Time // before the last request
	exact    bool // and not shorter than that
}

// wait is how long after the last packet an idle path is asked: a little later by who asked last.
func (p *path) wait(now Time) Time {
	every := p.rest.every(now)
	switch {
	case p.heard-p.resting.answered > time.Second: // the peer asked last
		return every
	case p.rest.lead:
		return every * 9 / 8
	}
	return every * 5 / 4
}
