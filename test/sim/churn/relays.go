package churn

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// These are package relays' own, which does the waiting there.
const (
	dialTimeout = 4 * time.Second
	surveyEvery = 10 * time.Minute
	soundAfter  = 5 * choice.Backoff
	visitFor    = time.Minute
	pingWait    = 1500 * time.Millisecond
)

// line is a node's connection to a relay.
type line struct {
	rtt     time.Duration
	wanted  bool // as choice.Reservations says
	failed  bool
	up      bool // connected and reserved
	known   bool // an attempt has ended
	queried bool // whether it is crowded, in this session
	full    bool // it was, when queried last
	life    int  // the relay's when it was made
	conns   int  // the node's
	since   time.Duration
	turn    int // what was planned before does not happen then
	pace    choice.Pace
}

// choose is what relays.Set does when a measurement or an outcome is new.
func (w *World) choose(n *node) {
	measured := make([]choice.Relay, len(n.lines))
	for r := range n.lines {
		l := &n.lines[r]
		measured[r] = choice.Relay{ID: w.relays[r].id, RTT: l.rtt, Failed: l.failed, Reserved: l.wanted, Crowded: l.full && !l.up}
	}
	chosen := choice.Reservations(n.id, measured)
	for r := range n.lines {
		l, want := &n.lines[r], slices.Contains(chosen, w.relays[r].id)
		switch {
		case l.wanted == want:
		case want:
			l.wanted = true
			w.noteMove(n)
			w.noteReserved(n)
			if !l.up {
				w.attempt(n, r)
			}
		default:
			l.wanted = false
			turn := l.turn
			w.life(n, visitFor, func() { // circuits through it continue for a while
				if l := &n.lines[r]; !l.wanted && l.turn == turn {
					w.release(n, r)
					w.surveyLater(n, r, surveyEvery)
				}
			})
		}
	}
}

// life plans f for as long as the node's agent runs.
func (w *World) life(n *node, d time.Duration, f func()) {
	life := n.life
	w.after(d, func() {
		if n.life == life && !n.off {
			f()
		}
	})
}

// surveyAll measures all relays, four at a time.
func (w *World) surveyAll(n *node) {
	for i, r := range w.rnd.Perm(len(n.lines)) {
		w.life(n, time.Duration(i/4)*200*time.Millisecond, func() {
			if !n.lines[r].wanted {
				w.attempt(n, r)
			}
		})
	}
}

func (w *World) surveyLater(n *node, r int, every time.Duration) {
	l := &n.lines[r]
	l.turn++
	turn := l.turn
	w.life(n, every/2+w.upTo(every), func() {
		if l := &n.lines[r]; l.turn == turn && !l.up {
			w.attempt(n, r)
		}
	})
}

// attempt connects to a relay: to reserve where that is wanted when it succeeds, else to measure.
func (w *World) attempt(n *node, r int) {
	l := &n.lines[r]
	l.turn++
	turn := l.turn
	plan := func(d time.Duration, f func()) {
		w.life(n, d, func() {
			if n.lines[r].turn == turn {
				f()
			}
		})
	}
	if !w.reaches(n, r) {
		plan(dialTimeout, func() { w.failedTo(n, r, false) })
		return
	}
	relay, life := w.relays[r], w.relays[r].life
	rtt := w.toRelay(n, r)
	begins := max(w.now+rtt, relay.free)
	relay.free = begins + handshake
	if wait := relay.free - w.now + 2*rtt; wait < dialTimeout {
		plan(wait, func() {
			if w.reaches(n, r) && relay.life == life {
				w.arrived(n, r, rtt)
			} else {
				w.failedTo(n, r, false)
			}
		})
		return
	}
	plan(dialTimeout, func() { w.failedTo(n, r, false) })
}

// arrived follows an attempt that succeeded.
func (w *World) arrived(n *node, r int, rtt time.Duration) {
	l := &n.lines[r]
	if l.rtt == 0 || rtt < l.rtt {
		l.rtt = rtt
	} else {
		l.rtt = (3*l.rtt + rtt) / 4
	}
	news := !l.known || l.failed || l.wanted
	l.known, l.failed = true, false
	l.full = w.crowded(r)
	if l.wanted && l.full && !l.queried { // as relays.session: another one may be chosen
		l.queried = true
		w.choose(n)
		if !l.wanted {
			l.queried = false
			w.surveyLater(n, r, surveyEvery)
			return
		}
	}
	if l.wanted {
		l.queried = false
		l.up, l.life, l.conns, l.since = true, w.relays[r].life, n.conns, w.now
		w.relays[r].held++
		w.announce(n)
		w.noteReserved(n)
	} else {
		w.surveyLater(n, r, surveyEvery)
	}
	if news {
		w.choose(n)
	}
}

// crowded is what a relay says of itself.
func (w *World) crowded(r int) bool {
	share := choice.Share(len(w.nodes), len(w.relays))
	return share > 0 && w.relays[r].held >= share
}

// failedTo follows an attempt that failed, or the end of a session.
func (w *World) failedTo(n *node, r int, lost bool) {
	l := &n.lines[r]
	news := !l.known || !l.failed
	l.known, l.failed = true, true
	alone := !slices.ContainsFunc(n.lines, func(x line) bool { return x.up })
	wait := l.pace.Ended(time.Unix(0, 0).Add(w.now), lost && w.now-l.since > soundAfter, alone)
	l.turn++
	turn := l.turn
	if news {
		w.choose(n)
	}
	if l.turn != turn { // the choice had another attempt begin
		return
	}
	if l.wanted {
		w.life(n, wait/2+w.upTo(wait/2), func() {
			if n.lines[r].turn == turn {
				w.attempt(n, r)
			}
		})
		return
	}
	w.surveyLater(n, r, surveyEvery/10)
}

// release ends a connection that is not wanted, or whose node ends.
func (w *World) release(n *node, r int) {
	l := &n.lines[r]
	if !l.up {
		return
	}
	l.up = false
	if l.life == w.relays[r].life {
		w.relays[r].held--
	}
	if !n.off {
		w.announce(n)
	}
}

// serves reports whether a node's reservation holds at the relay itself.
func (w *World) serves(n *node, r int) bool {
	return n.lines[r].up && n.lines[r].life == w.relays[r].life && n.lines[r].conns == n.conns && w.reaches(n, r)
}

// doubt has a relay pinged; a dead one is given up.
func (w *World) doubt(n *node, r int) {
	l := &n.lines[r]
	if !l.up || w.serves(n, r) {
		return
	}
	w.loseIn(n, r, pingWait)
}

// loseIn gives up a connection to a relay after a while, if it is dead by then.
func (w *World) loseIn(n *node, r int, d time.Duration) {
	turn := n.lines[r].turn
	w.life(n, d, func() {
		l := &n.lines[r]
		if l.turn != turn || !l.up || w.serves(n, r) {
			return
		}
		w.release(n, r)
		w.failedTo(n, r, true)
	})
}

// holds is at which relays a node has reservations, as it thinks.
func (w *World) holds(n *node) map[peer.ID]bool {
	out := map[peer.ID]bool{}
	for r := range n.lines {
		if n.lines[r].up {
			out[w.relays[r].id] = true
		}
	}
	return out
}
