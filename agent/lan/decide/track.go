package decide

import (
	"fmt"
	"time"
)

// Times of a track. Proving takes half a second if nothing is lost.
const (
	proveEvery = 100 * time.Millisecond // between probes without an answer
	proveQuick = 20 * time.Millisecond  // after an answer
	proveFor   = 2 * time.Second        // without success
	proveGood  = 3                      // full-size answers in a row
	smallNth   = 4                      // every nth probe is small while proving

	upEvery   = 250 * time.Millisecond // with traffic
	idleEvery = 2 * time.Second        // without, at first; then it doubles
	idleMost  = 16 * time.Second       // well below acceptFor
	fullNth   = 4                      // every nth probe of an idle path is of full size
	busyFor   = 30 * time.Second       // after the last traffic, and after coming up

	failEvery = 120 * time.Millisecond
	lostLimit = 3
	silence   = 600 * time.Millisecond // and as long without an answer
	heldUp    = 400 * time.Millisecond // later than planned: this process did not run

	retryMin   = time.Second
	retryMax   = 5 * time.Minute
	lastedLong = time.Minute      // up for so long: the pause starts at its least again
	acceptFor  = 30 * time.Second // after the peer's last request
	callsBack  = 3                // requests of the peer that end a pause
	calmFor    = 2 * time.Second  // but not before
)

// state of a track.
type state int

const (
	proving state = iota
	up
	failing
	down
)

func (s state) String() string { return [...]string{"proving", "up", "failing", "down"}[s] }

// track is what is known of one candidate. It has no clock and does no I/O: its
// methods are given the time.
type track struct {
	c     candidate
	state state
	since time.Time     // of the state
	next  time.Time     // when tick is due
	rest  time.Time     // no probe before, while there is no traffic
	idle  time.Duration // how long the last such rest is
	busy  time.Time     // the last traffic here
	told  time.Time     // when the peer said last that it has some
	pause time.Duration
	upAt  time.Time

	probing
	calling
	trouble
	outcome // of forwarded probes
}

// probing is what came of our probes.
type probing struct {
	sent       uint64    // probes so far
	unanswered int       // since the last answer
	good       int       // full-size answers in a row, while proving
	answered   time.Time // the last answer
	probed     time.Time // the first probe since then
	at         [8]sending
	rtt        time.Duration
}

// calling is what came of the peer's probes.
type calling struct {
	heard time.Time // the last one
	in    string    // the interface on which it came in
	calls int       // since the track is down
}

// trouble is what speaks against the candidate.
type trouble struct {
	lost    bool   // our address is gone
	small   bool   // a small probe was answered while proving
	sendErr string // why the last probe could not be sent
	why     string // why it is down
}

// sending is one probe in flight.
type sending struct {
	seq  uint64
	at   time.Time
	full bool
}

// probe is a request to be sent.
type probe struct {
	seq  uint64
	full bool // of the path's MTU, else small
}

func newTrack(c candidate, now time.Time) *track {
	return &track{c: c, since: now, next: now}
}

func (t *track) usable() bool { return t.state == up || t.state == failing }

// accepts reports whether the peer's packets are let in.
func (t *track) accepts(now time.Time) bool {
	return t.usable() || !t.heard.IsZero() && now.Sub(t.heard) < acceptFor
}

func (t *track) enter(s state, now time.Time) {
	t.state, t.since = s, now
	t.unanswered, t.good, t.calls = 0, 0, 0
	if s == proving {
		t.small, t.sendErr = false, ""
	}
}

// used reports whether this node had traffic lately; active, whether either end had. The peer is told the first, or both would keep
// each other awake.
func (t *track) used(now time.Time) bool {
	return now.Sub(t.busy) < busyFor || now.Sub(t.upAt) < busyFor
}

func (t *track) active(now time.Time) bool { return t.used(now) || now.Sub(t.told) < busyFor }

// tick does what is due; a probe is to be sent when ok.
func (t *track) tick(now time.Time) (p probe, ok bool) {
	if now.Before(t.next) {
		return probe{}, false
	}
	if late := now.Sub(t.next); late > heldUp && t.usable() { // nothing could have been heard
		t.unanswered = 0
	}
	switch t.state {
	case proving:
		if now.Sub(t.since) >= proveFor {
			t.fail(now, t.proveFailure())
			return probe{}, false
		}
		return t.send(now, proveEvery, (t.sent+1)%smallNth != 0), true
	case up:
		if t.unanswered > 0 {
			t.state, t.since = failing, now
			return t.send(now, failEvery, true), true
		}
		if t.active(now) {
			t.idle = 0
			return t.send(now, upEvery, true), true
		}
		if now.Before(t.rest) { // the last one was answered
			t.next = t.rest
			return probe{}, false
		}
		t.idle = min(max(2*t.idle, idleEvery), idleMost)
		t.rest = now.Add(t.idle)
		return t.send(now, upEvery, (t.sent+1)%fullNth == 0), true
	case failing:
		if t.unanswered >= lostLimit && now.Sub(t.silentSince()) >= silence {
			t.fail(now, fmt.Sprintf("lost: %d probes without an answer", t.unanswered))
			return probe{}, false
		}
		return t.send(now, failEvery, true), true
	}
	t.enter(proving, now) // the pause is over
	return t.send(now, proveEvery, true), true
}

func (t *track) send(now time.Time, again time.Duration, full bool) probe {
	t.sent++
	if t.unanswered++; t.unanswered == 1 {
		t.probed = now
	}
	t.next = now.Add(again)
	t.at[t.sent%uint64(len(t.at))] = sending{t.sent, now, full}
	return probe{t.sent, full}
}

// silentSince is when the peer answered last or, where probes are rare, when it was
// probed after that.
func (t *track) silentSince() time.Time {
	if t.probed.Sub(t.answered) <= 2*upEvery {
		return t.answered
	}
	return t.probed
}

// fail gives the candidate up for a while.
func (t *track) fail(now time.Time, why string) {
	switch {
	case t.usable() && now.Sub(t.upAt) >= lastedLong:
		t.pause = retryMin
	default:
		t.pause = min(max(2*t.pause, retryMin), retryMax)
	}
	t.enter(down, now)
	t.tested = time.Time{}
	t.why = why
	t.next = now.Add(t.pause)
}

// lose gives the candidate up until regain is called.
func (t *track) lose(now time.Time, why string) {
	if t.state != down {
		t.fail(now, why)
	}
	t.lost, t.why, t.next = true, why, now.Add(retryMax)
}

// regain tries again immediately what was lost.
func (t *track) regain(now time.Time) {
	if t.lost {
		t.lost, t.next = false, now
	}
}

// LostWhole is in the reason of a path that carries small packets alone.
const LostWhole = "bytes are lost, small ones pass"

// Reasons of paths on which no probe is answered: without and with what the kernel knows of the peer's address on the link.
const (
	NoAnswer   = "no answer: another site, or filtered"
	Unresolved = "no answer, and its MAC is not found here: another site, or this LAN keeps its hosts apart"
	Filtered   = "no answer, though the peer is on this LAN: a firewall of one of the two hosts drops the probes"
	Taken      = "no answer, and another machine has that address here: another site, or a repeater that answers for the peer"
)

// proveFailure says why proving did not succeed.
func (t *track) proveFailure() string {
	switch {
	case t.small && t.good == 0:
		return fmt.Sprintf("probes of %d %s", t.c.mtu, LostWhole)
	case t.small || t.good > 0:
		return "most probes are lost"
	case t.sendErr != "":
		return t.sendErr
	case !t.heard.IsZero() && t.heard.After(t.since):
		return "one-way: the peer's probes come in, but no answer to ours"
	}
	return NoAnswer
}

// answer handles the answer to one of our probes. It reports whether the state
// changed.
func (t *track) answer(now time.Time, seq uint64) bool {
	s := t.at[seq%uint64(len(t.at))]
	if s.seq != seq || seq == 0 || t.state == down {
		return false
	}
	t.at[seq%uint64(len(t.at))] = sending{}
	t.rtt = now.Sub(s.at)
	t.unanswered, t.answered = 0, now
	switch t.state {
	case proving:
		if !s.full {
			t.small = true
			return false
		}
		if t.good++; t.good < proveGood {
			t.next = now.Add(proveQuick)
			return false
		}
		t.enter(up, now)
		t.upAt, t.why, t.next = now, "", now.Add(upEvery)
		return true
	case failing:
		if !s.full && t.c.mtu > smallProbe {
			return false
		}
		t.state, t.since = up, t.upAt
		t.next = now.Add(upEvery)
		return true
	}
	return false
}

// request handles a valid request of the peer.
func (t *track) request(now time.Time) {
	t.heard = now
	if t.state != down {
		return
	}
	// It reaches us: perhaps we reach it, too.
	if t.calls++; !t.lost && t.calls >= callsBack && now.Sub(t.since) >= min(calmFor, t.pause) && now.Before(t.next) {
		t.next = now
	}
}

// traffic notes packets of pods on the path.
func (t *track) traffic(now time.Time) {
	t.busy = now
	t.hurry(now)
}

// tells notes that the peer says that it has some.
func (t *track) tells(now time.Time) {
	t.told = now
	t.hurry(now)
}

// hurry does not wait for the next of the rare probes.
func (t *track) hurry(now time.Time) {
	if t.usable() && t.next.Sub(now) > upEvery {
		t.next = now
	}
}

// sendFailed notes why a probe could not be sent.
func (t *track) sendFailed(err error) { t.sendErr = err.Error() }
