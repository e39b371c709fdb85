package ladder

import (
	"fmt"
	"slices"
	"time"
)

const (
	// ProbeBusy is how often a busy path is probed: one that has carried bulkBytes since the last probe, or does not answer, and
	// one in steady use that was not heard for so long. On any other data are the probes.
	ProbeBusy = 500 * time.Millisecond
	bulkBytes = 16 << 10
	// What was sent has answerTrips round trips for an answer until the path is probed, at least answerLeast and at most
	// answerMost. The first data after a silence count as a probe, sent answerLeast before the real one at most.
	answerTrips = 3
	answerLeast = 100 * time.Millisecond
	answerMost  = 180 * time.Millisecond
	// BusyFor is how long a path counts as busy after its last byte.
	BusyFor = 3 * time.Second
	// A path is dead when a probe is unanswered and nothing was heard for deadAfter, neither from the peer nor by the kernel
	// from the next hop. While the next hop is heard, late answers have deadRelayed on a relayed path and DeadIdle on a
	// direct one; so have answers on idle paths, which may have to wake a radio.
	deadAfter   = 1200 * time.Millisecond
	deadRelayed = 3 * time.Second
	DeadIdle    = 5 * time.Second
)

// path is one connection to the peer.
type path struct {
	id     PathID
	link   Link
	opened Time
	busy   Time // last traffic
	proof
	probing
	spell spell // of traffic

	// As sampled.
	moved   uint64
	carrier Time // when the next hop was heard
	streams int
	poor    bool
	lanes   int // streams of the two lanes, of those
	sealed  bool
}

// proof is how far a path is to be believed, and why.
type proof struct {
	state      PathState
	direct     bool // an end owns its address
	trust      Time // preferred to a relayed path only from then on
	failed     bool // it was given up: silent, or broken
	suspicions int  // how often it was suspected, until it answered for forgiveAfter
	suspected  Time
}

// probing is the requests and answers on a path.
type probing struct {
	ready   bool // can be probed
	waiting bool // the last request is unanswered
	heard   Time // last sign of life
	asked   Time // last request
	urgent  bool // probe without waiting for the next turn
	since   Time // data are unanswered; 0: none
	rtt     Time
	before  uint64 // moved, at the last request
	reserve bool   // relayed, beside a direct path: what is behind it is known from that one

	resting
}

// pathList are the paths to the peer, the oldest first.
type pathList []*path

// find returns the path of that name, nil if there is none.
func (ps pathList) find(id PathID) *path {
	for _, p := range ps {
		if p.id == id {
			return p
		}
	}
	return nil
}

// has reports whether there is a direct path over a transport.
func (ps pathList) has(t Transport) bool {
	return slices.ContainsFunc(ps, func(p *path) bool { return !p.link.Relayed && p.link.Transport == t })
}

// hasDirect reports whether a direct path is, or was, proven.
func (ps pathList) hasDirect() bool {
	return slices.ContainsFunc(ps, func(p *path) bool { return !p.link.Relayed && p.state != Unproven })
}

// hasStreams reports whether either side has a stream open, as far as sampled.
func (ps pathList) hasStreams() bool {
	return slices.ContainsFunc(ps, func(p *path) bool { return p.streams > 0 })
}

// without returns the others than p.
func (ps pathList) without(p *path) pathList {
	return slices.DeleteFunc(ps, func(q *path) bool { return p == q })
}

// sealed returns the path that sealed packets with repair are beside, nil if there is none.
func (ps pathList) sealed() *path {
	if i := slices.IndexFunc(ps, func(p *path) bool { return p.sealed && p.state == Proven }); i >= 0 {
		return ps[i]
	}
	return nil
}

// isBusy reports whether there was traffic a moment ago.
func (p *path) isBusy(now Time) bool { return now-p.busy < BusyFor }

// due returns when to send the next request; Never where none can be sent.
func (p *path) due(now Time) Time {
	switch {
	case !p.ready:
		return Never
	case p.urgent, p.isBusy(now) && (p.waiting || p.moved-p.before >= bulkBytes):
		return p.asked + ProbeBusy
	case p.spell.steady(now):
		return max(p.asked, p.heard) + ProbeBusy
	case p.isBusy(now) && p.since > 0:
		return max(p.asked+ProbeBusy, p.since+min(max(answerTrips*p.rtt, answerLeast), answerMost))
	case p.reserve && !p.waiting:
		return Never
	}
	return max(p.asked, p.heard) + p.wait(now)
}

// wake makes the path a busy one, as traffic does, and probes it.
func (p *path) wake(now Time) {
	p.busy, p.urgent = now, true
}

// request notes that a request goes out.
func (p *path) request(now Time) {
	p.asked, p.urgent, p.before = now, false, p.moved
	if p.waiting {
		return
	}
	p.waiting = true
	p.silence, p.began, p.exact = now-p.heard, p.heard, p.sampled == now
	switch silence := now - p.heard; {
	case silence <= 2*ProbeBusy:
		p.heard = max(p.heard, now-ProbeBusy) // the answer takes its time
	case p.since > 0: // silent because it was not probed; data are as good as a probe
		p.heard = max(p.since, now-answerLeast)
	default:
		p.heard = now
	}
}

// sample takes what is known without a probe; it reports whether data moved.
func (p *path) sample(now Time, s Sample) (traffic bool) {
	if traffic = s.Moved != p.moved; traffic {
		p.busy, p.moved = now, s.Moved
		p.spell.moved(now, s.Moved)
	}
	p.heard, p.sampled = max(p.heard, now-s.Heard), now
	p.carrier = -Never
	if s.Carrier != Never {
		p.carrier = now - s.Carrier
	}
	p.streams, p.lanes, p.sealed = s.Streams, s.Lanes, s.Sealed
	p.link.Order, p.poor, p.rtt = s.Order, s.Poor, s.RTT
	p.unanswered(now - s.Sent)
	return traffic
}

// unanswered notes when something was last sent. On a direct path over TCP the kernel's acknowledgement is an answer.
func (p *path) unanswered(sent Time) {
	heard := p.heard
	if !p.link.Relayed && p.link.Transport == TCP {
		heard = max(heard, p.carrier)
	}
	switch {
	case sent <= heard:
		p.since = 0
	case p.since <= heard: // not yet, or what came before was answered
		p.since = sent
	}
}

// limit is how long the path may be silent.
func (p *path) limit(now Time) Time {
	if !p.isBusy(now) {
		return DeadIdle
	}
	switch {
	case p.carrier == -Never || now-p.carrier > deadAfter:
		return deadAfter
	case p.link.Relayed:
		return deadRelayed
	default:
		return DeadIdle
	}
}

// silent reports whether the path is dead, and why.
func (p *path) silent(now Time) (why string, dead bool) {
	silence := now - p.heard
	if !p.ready || !p.waiting || silence <= p.limit(now) {
		return "", false
	}
	return fmt.Sprintf("silent for %v", silence.Round(time.Millisecond)), true
}

// look is when to judge the silence again; Never while no answer is awaited.
func (p *path) look(now Time) Time {
	if !p.ready || !p.waiting {
		return Never
	}
	// A moment later than the limit: it has to be exceeded.
	at := p.heard + p.limit(now) + time.Millisecond
	if soonest := p.heard + deadAfter + time.Millisecond; p.isBusy(now) && soonest > now {
		return min(at, soonest) // the next hop may have fallen silent since
	}
	return min(max(at, now+time.Millisecond), now+ProbeBusy)
}

// Sample is what is known of a path without a probe.
type Sample struct {
	Path    PathID
	Moved   uint64 // bytes sent and received by streams since Up
	Heard   Time   // how long ago something last arrived from the peer
	Sent    Time   // how long ago something was last sent
	RTT     Time   // 0: unknown
	Carrier Time   // how long ago the kernel heard the next hop; Never if that is unknown
	Streams int    // open now
	Lanes   int    // of those, streams of the two lanes, which continue on other paths
	Order   int    // of a relayed path: which relay to prefer, the lowest
	Poor    bool   // of a relayed path: the relay could be reached over a better transport
	Sealed  bool   // sealed packets with repair beside it are what the lanes have, whichever path their streams are on
}

// wait is how long after the last packet an idle path is probed: a little later by who probed last.
func (p *path) wait(now Time) Time {
	every := p.rest.every(now)
	switch {
	case p.kept && p.link.Transport == QUIC:
		every = restFirst
	case p.kept:
		every = min(every, restKept)
	}
	early := every / 16 * p.early / restEarly
	switch {
	case p.heard-p.resting.answered > time.Second: // the peer probed last
		return every - early
	case p.rest.lead:
		return every*9/8 - early
	}
	return every*5/4 - early
}
