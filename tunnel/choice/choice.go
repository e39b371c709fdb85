// Package choice decides which of two carriers takes a peer's packets: sealed packets with repair, or the lanes' own streams over TCP. It
// compares what each carries in turns, while packets wait, as of two side by side the more aggressive wins. The machine is pure: no clock, no I/O.
//
//	         10 s of backlog              4 s + 8 RTT          4 s + 8 RTT
//	steady ──────────────────▶ the other one ─────▶ back, as before ─────▶ steady: the better one
//	  ▲                              │                     │                  pause ×2, or half of it if the verdict changed
//	  ├───────── backlog ends, or nothing moves ───────────┘
//	  └─ less than half after 1 s ───┘ pause ×2
//
// Of each turn the last 3 s count. On a line that loses 15 % without a queue, 5 s of backlog are enough.
//
// Without a trial: no TCP path: sealed, until it is back; a least round trip below 1 ms on that: the lanes.
package choice

import (
	"fmt"
	"time"
)

// Carrier is one of the two.
type Carrier uint8

const (
	// Sealed packets with repair, which is where a choice begins.
	Sealed Carrier = iota
	// Lanes are the lanes' own carriers.
	Lanes
)

const (
	turn      = 3 * time.Second // of a carrier, that counts,
	rampTime  = time.Second     // after this, and rampTrips round trips, in which it gets going
	rampTrips = 8
	// From early on a turn of the other one ends, if it carries less than this share of what the first one did: flows are short.
	early    = time.Second
	muchLess = 0.5
	// A trial follows after this much backlog without a break; sooner on a line that loses this share without a queue, as a policer does.
	backlogTime  = 10 * time.Second
	policedTime  = 5 * time.Second
	policed      = 0.15
	pauseMax     = 10 * time.Minute // between two trials, of backlog
	leaveSealed  = 1.5              // times as much, to leave sealed,
	returnSealed = 0.9              // and to come back
	// A round trip below swift is one of a line that processors limit: TCP carries more there (as carrier/socket has it). It is one
	// until it is above twice that.
	swift    = time.Millisecond
	lull     = 500 * time.Millisecond // without backlog end it; four times as much backlog makes up for it
	stopTime = 5 * time.Second
	// longStep between two calls says that nobody looked meanwhile.
	longStep = time.Second
)

// Seen is what the owner sees when it calls Next.
type Seen struct {
	Now   time.Duration // since some moment; never goes back
	Bytes uint64        // that the carrier in use has taken, in all
	Waits bool          // packets wait
	RTT   time.Duration // the least of the sealed path; 0: unknown
	Loss  float64       // the share that the sealed path loses without a queue
	TCP   bool          // there is a path over TCP
	Least time.Duration // round trip on that; 0: unknown
}

type phase uint8

const (
	steady phase = iota
	other        // the other one has its turn
	back         // the first one has its second
)

// Choice is the choice for one peer, in one direction. The zero value is ready. It is not safe for concurrent use.
type Choice struct {
	on     Carrier // the better one, as far as known
	why    string
	forced bool // not by measurement

	now     time.Duration
	bytes   uint64
	moved   time.Duration // when bytes changed last
	gap     time.Duration // without backlog, see lull
	unbroke time.Duration // backlog without a break
	policed time.Duration // of it, with loss
	waited  time.Duration // backlog since the last trial
	pause   time.Duration // 0: backlogTime, and no verdict yet

	phase  phase
	began  time.Duration // the phase; its ramp is over at counts
	counts time.Duration
	from   time.Duration // what counts begins here,
	mark   uint64        // at so many bytes
	slack  bool          // since then backlog has ended
	// before, tried: bytes a second of the first before the trial and of the other; appLimited: that had no backlog all the time
	before, tried float64
	appLimited    bool
	alone         bool // there is no path over TCP
}

// Next takes what is seen now, and returns which carrier to use.
func (c *Choice) Next(s Seen) Carrier {
	step := s.Now - c.now
	c.now, c.alone = s.Now, !s.TCP
	if s.Bytes != c.bytes || !s.Waits {
		c.bytes, c.moved = s.Bytes, s.Now
	}
	broken := c.backlog(s, step)
	if c.force(s) {
		return c.on
	}
	switch {
	case c.alone:
		if c.phase != steady {
			c.End()
		}
		if c.on == Lanes { // what is seen is of the other one
			c.from, c.mark, c.before, c.unbroke = s.Now, s.Bytes, 0, 0
			break
		}
		c.watch(s)
	case s.Now-c.moved >= stopTime, c.phase != steady && step > longStep:
		c.End()
	case c.phase == steady:
		c.watch(s)
	case s.Now < c.counts:
		c.from, c.mark, c.slack, c.gap = s.Now, s.Bytes, false, 0
	default:
		c.slack = c.slack || broken
		if s.Bytes == c.mark && s.Now-c.began >= 2*(c.counts-c.began) { // it does not get going
			c.End()
		} else if s.Now-c.from >= turn {
			c.turned(s)
		} else if c.phase == other && s.Now-c.from >= early {
			c.giveUp(rate(s.Bytes-c.mark, s.Now-c.from))
		}
	}
	return c.using()
}

// force decides without a trial.
func (c *Choice) force(s Seen) bool {
	afresh := Choice{now: c.now, bytes: c.bytes, moved: c.moved, gap: c.gap}
	near := s.Least > 0 && s.Least < swift || c.forced && s.Least < 2*swift
	switch {
	case !s.TCP:
		return false
	case near:
		*c = afresh
		c.on, c.forced, c.why = Lanes, true, "round trip below 1 ms"
	case c.forced:
		*c = afresh
	}
	return c.forced
}

// backlog counts for how long packets have waited, and reports whether they do not.
func (c *Choice) backlog(s Seen, step time.Duration) (broken bool) {
	if step > longStep {
		c.unbroke, c.policed, c.gap, step = 0, 0, 0, 0
	}
	if s.Waits {
		c.gap = max(c.gap-step/4, 0)
	} else {
		c.gap = min(c.gap+step, 2*lull)
	}
	if broken = c.gap > lull; broken {
		c.unbroke, c.policed = 0, 0
		return broken
	}
	c.unbroke += step
	c.waited += step
	if c.policed += step; s.Loss <= policed || c.on != Sealed {
		c.policed = 0
	}
	return false
}

// watch begins a trial when it is due, and measures before it.
func (c *Choice) watch(s Seen) {
	if c.unbroke == 0 {
		c.from, c.mark, c.before = s.Now, s.Bytes, 0
		return
	}
	if d := s.Now - c.from; d >= turn {
		c.before = rate(s.Bytes-c.mark, d)
		c.from, c.mark = s.Now, s.Bytes
	}
	due := c.unbroke >= backlogTime && c.waited >= c.pause || c.pause <= backlogTime && c.policed >= policedTime
	if due && c.before > 0 && !c.alone {
		c.begin(other, s)
	}
}

func (c *Choice) begin(p phase, s Seen) {
	c.phase, c.began, c.from, c.mark, c.slack = p, s.Now, s.Now, s.Bytes, false
	c.counts = s.Now + rampTime + rampTrips*s.RTT
}

// turned ends a turn.
func (c *Choice) turned(s Seen) {
	got := rate(s.Bytes-c.mark, s.Now-c.from)
	if c.phase == other {
		c.tried, c.appLimited = got, c.slack
		c.begin(back, s)
		return
	}
	need := leaveSealed
	if c.on == Lanes {
		need = returnSealed
	}
	first := (c.before + got) / 2
	if c.slack { // without backlog a carrier took all there was, and might have taken more
		first = max(c.before, got)
	}
	switch wins := c.tried >= need*first; {
	case wins && !c.slack:
		c.on, c.pause = 1-c.on, max(c.pause/2, backlogTime)
		c.say(c.tried, first)
	default:
		c.postpone()
		if !wins && !c.appLimited {
			c.say(first, c.tried)
		}
	}
	c.End()
}

// giveUp ends a turn of the other one that carries much less: it would win only if the first one had less than a ninth left.
func (c *Choice) giveUp(got float64) {
	if got >= muchLess*c.before {
		return
	}
	c.postpone()
	if !c.slack {
		c.say(c.before, got)
	}
	c.End()
}

// postpone makes trials that change nothing ever more seldom.
func (c *Choice) postpone() { c.pause = min(max(2*c.pause, 2*backlogTime), pauseMax) }

// say keeps the reason: what the better one carried, and the other one.
func (c *Choice) say(better, worse float64) {
	c.why = fmt.Sprintf("%s: %s to %s Mbit/s", [...]string{"sealed carries enough", "tcp carries more"}[c.on], mbits(better), mbits(worse))
}

func mbits(rate float64) string {
	m := rate * 8e-6
	if m < 10 {
		return fmt.Sprintf("%.1f", m)
	}
	return fmt.Sprintf("%.0f", m)
}

// Better is the better one, as far as known.
func (c *Choice) Better() Carrier { return c.on }

// End ends a trial, if there is one, without a verdict.
func (c *Choice) End() {
	if c.phase != steady {
		c.waited = 0
	}
	c.phase, c.unbroke, c.policed, c.moved = steady, 0, 0, c.now
}

func rate(bytes uint64, d time.Duration) float64 { return float64(bytes) / d.Seconds() }

func (c *Choice) using() Carrier {
	if c.alone {
		return Sealed
	}
	if c.phase == other {
		return 1 - c.on
	}
	return c.on
}

// Rests reports whether Next need not be called before packets wait again.
func (c *Choice) Rests() bool { return c.phase == steady && c.gap > lull }

// Why says in a few words why the carrier in use is.
func (c *Choice) Why() string {
	switch {
	case c.phase == other:
		return "trial"
	case c.alone:
		return "no TCP path"
	case c.why == "":
		return "not compared yet"
	}
	return c.why
}

// Moved says that the path may be another one: what was measured counts no longer, and the next trial follows soon.
func (c *Choice) Moved() {
	c.End()
	if c.forced {
		c.on, c.why, c.forced = Sealed, "", false
	}
	c.pause, c.waited = 0, 0
}
