package peers

import (
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/cause"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
)

const (
	// wantedFor is how long after a request for a path a peer counts as wanted, unmetFor if none was met.
	wantedFor = time.Minute
	unmetFor  = 10 * time.Minute
	// silentAfter is how long a peer that packets wait for may say nothing until it counts as silent.
	silentAfter = 3 * time.Second
)

// Status is how one peer is reached now.
type Status struct {
	Path  paths.Path   // the best path for streams
	All   []paths.Path // every live path, the best first
	Since time.Time    // when Path became the best one
	// Wanted: a path was requested lately, and there is none yet. Silent: nothing has come for some seconds.
	Wanted, Silent bool
	Heard          time.Time   // when something authentic last came from it, on whatever path; zero: never since the start
	Cause          cause.Cause // why the last round of connecting made no path
	Rounds         int         // rounds of connecting that have ended
	// Failed: the last round of connecting made no path. Offline is since when no relay that answers has the peer; zero: one
	// has, or it is not known.
	Failed  bool
	Offline time.Time
	// Reason says why the path is not a better one: the outcome of the last
	// punch, the NATs on both sides, lost paths. It is empty for a direct path.
	Reason string
	Punch  *Punch // what was tried to get direct paths; nil: none is missing
}

// Known are the members with a connection or a history.
func (t *Table) Known() []peer.ID {
	var out []peer.ID
	for _, p := range t.registry.all() {
		out = append(out, p.id)
	}
	return out
}

// StatusOf returns the state of one peer; ok is false for a peer that is not connected and
// never was.
func (t *Table) StatusOf(id peer.ID) (st Status, ok bool) {
	p := t.registry.known(id)
	if p == nil {
		return Status{Path: paths.Path{Kind: paths.KindNone}}, false
	}
	return p.status(), true
}

// OverTCP reports whether streams to a peer would take a direct path over TCP now, and the shortest round trip on it, 0: unknown.
func (t *Table) OverTCP(id peer.ID) (least time.Duration, ok bool) {
	p := t.registry.known(id)
	if p == nil {
		return 0, false
	}
	p.mu.Lock()
	all := p.state.ranked()
	p.mu.Unlock()
	if len(all) == 0 {
		return 0, false
	}
	return all[0].OverTCP()
}

// ranked are the paths, the best for streams first.
func (s *state) ranked() (all []*paths.Conn) {
	for _, id := range s.m.Ranked(ladder.StreamLane) {
		if x := s.paths[id]; x != nil && !x.IsClosed() {
			all = append(all, x)
		}
	}
	return all
}

func (p *Peer) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	st := Status{Path: s.path(), Since: s.using.since, Wanted: time.Since(s.round.wanted) < wantedFor || s.unmet(),
		Heard: s.round.heard, Cause: reach.Cause(s.round.err), Rounds: s.round.ended, Failed: s.round.err != nil, Offline: s.round.absent}
	for _, x := range s.ranked() {
		st.All = append(st.All, x.Path())
		st.Heard = later(st.Heard, x.HeardAt())
	}
	st.Silent = s.unmet() && len(st.All) == 0 && time.Since(s.round.unmet) >= silentAfter
	now := p.t.Now()
	plan, missing := s.m.Plan(now)
	st.Punch = punching(plan, missing, p.attempts, now)
	st.Reason = s.reason(st.Path.Kind, st.Punch, p.attempts)
	return st
}

// reason says why the best path, of that kind, is not better.
func (s *state) reason(best paths.Kind, tried *Punch, a *punch.Attempts) string {
	var why []string
	switch best {
	case paths.KindDirect:
		return ""
	case paths.KindNone:
		if !s.round.absent.IsZero() {
			why = append(why, "offline: no relay has it since "+s.round.absent.Format(time.TimeOnly))
		} else if s.round.err != nil {
			why = append(why, wording.Foreign(s.round.err.Error(), 1<<10))
		}
	case paths.KindRelayed:
		why = a.WhyRelayed()
	case paths.KindPunched:
		why = append(why, "both addresses are translated by NAT")
		if t, failed := a.Tried(); failed {
			why = append(why, t.Text)
		}
	}
	if tried != nil && len(why) > 0 {
		why = append(why, tried.text())
	}
	if len(s.lost) > 0 {
		why = append(why, "lost before: "+strings.Join(s.lost, ", "))
	}
	for i := range why { // the first one alone is quoted elsewhere
		why[i] = strings.ReplaceAll(why[i], "; ", ", ")
	}
	return strings.Join(why, "; ")
}
