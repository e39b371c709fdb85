package peers

import (
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
)

// maxLost is how many lost paths are remembered for an operator.
const maxLost = 3

// state is what changes of a peer. All its methods are called with Peer.mu held, and none
// of them blocks.
type state struct {
	*env
	id      peer.ID
	acts    acts
	changed *wake.All // its paths, or the outcome of connecting, have changed
	search  *reach.Search

	m     *ladder.Machine
	paths map[ladder.PathID]*paths.Conn // those the machine knows
	round round
	// openings are the calls of OpenStream under way, lastOpening the name of the last one.
	openings    openings
	lastOpening ladder.OpenID

	using   using
	watch   watch
	unheard bool     // a connection ended on which nothing had arrived, and no probe was answered since
	lost    []string // the last paths lost, newest last
	owed    owed
}

// acts is what the machine has done in goroutines, each of which reports by an event.
type acts interface {
	connect()
	standby()
	punch(via *paths.Conn, a ladder.Punch)
	ask()
	runWatch()
}

// round is the result of connecting.
type round struct {
	err    error     // of the last round, nil when it made a path
	ended  int       // completed rounds
	absent time.Time // since then each round found that no relay has the peer; zero: one has, or it is not known
	wanted time.Time // when the last stream was to be opened; zero once one is open
	// unmet is since when what waits for the peer waits without success: a stream, or what was sent on a path that died. Zero once the peer is
	// heard. heard is when something last came on a path that is gone, lost since when the last one was of no use.
	unmet, heard, lost time.Time
	asking             bool // asks relays for it
}

// later is the later one of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// unmet reports whether the last request for a path was not met, and not long ago.
func (s *state) unmet() bool {
	return !s.round.unmet.IsZero() && time.Since(later(s.round.wanted, s.round.unmet)) < unmetFor
}

// wait records that something waits for the peer since then, as long as there is no path.
func (s *state) wait(since time.Time) {
	if s.round.unmet.IsZero() && s.best() == nil {
		s.round.unmet = since
	}
	if !s.round.unmet.IsZero() && !s.round.asking {
		s.round.asking = s.Spawn(s.acts.ask)
	}
}

// using is when the best path became it.
type using struct {
	at       ladder.Time // by the machine
	since    time.Time   // by the host's clock
	reported paths.Path
}

// apply applies an event to the machine and starts its actions. It wakes those who wait for
// a path when one is proved or gone.
func (s *state) apply(e ladder.Event) {
	before := len(s.paths)
	a, answered := e.(ladder.Answer)
	s.unheard = s.unheard && !answered
	unproved, _ := s.m.Path(a.Path)
	actions := s.m.Handle(s.Now(), e)
	proved, _ := s.m.Path(a.Path)
	for _, a := range actions {
		s.do(a)
	}
	if _, at := s.m.Using(ladder.StreamLane); at != s.using.at {
		s.using = using{at, time.Now(), s.path()}
	}
	if a.Last {
		s.notify(a.Path, s.owed.over(a.Path, s.Now())...)
	}
	at, _ := s.m.Using(ladder.DatagramLane)
	used := s.paths[at] != nil
	for id, x := range s.paths {
		v, _ := s.m.Path(id)
		x.Quiet(v.Quiet)
		x.Spare(used && id != at) // also beside a circuit through another relay
	}
	s.plan()
	if len(s.paths) != before || proved.State != unproved.State || proved.Direct != unproved.Direct {
		s.changed.Broadcast()
	}
}

// do starts one action.
func (s *state) do(a ladder.Action) {
	switch a := a.(type) {
	case ladder.Try:
		s.openings.try(a.Open, s.paths[a.Path])
	case ladder.Fail:
		s.openings.fail(a.Open, s.failure())
	case ladder.Connect:
		s.Paths.Timeline.Begin(s.id, timeline.Wanted)
		s.Log.Debug("no path: connecting", "peer", s.name(s.id))
		s.Spawn(s.acts.connect)
	case ladder.Standby:
		s.Spawn(s.acts.standby)
	case ladder.Punch:
		if via := s.paths[a.Via]; via != nil {
			s.Spawn(func() { s.acts.punch(via, a) })
		}
	case ladder.Probe:
		if x := s.paths[a.Path]; x != nil {
			x.Probes.Send()
		}
	case ladder.Close:
		s.giveUp(a)
	case ladder.Moved:
		s.moved(a)
	case ladder.Nudge:
		if via := s.paths[a.Via]; via != nil {
			s.Spawn(via.Probes.SendNudge)
		}
	}
}

// moved reports that the best path is another one.
func (s *state) moved(a ladder.Moved) {
	e := Event{Peer: s.id, Kind: PathChanged, Path: s.path(), before: s.using.reported, name: s.name(s.id)}
	switch {
	case a.Unused:
		e.Kind = PathClosed
	case a.Lost:
		e.Kind = PathLost
		s.wait(s.round.lost)
	}
	s.using.reported = e.Path // the datagram lane's alone may have moved
	s.changed.Broadcast()
	s.events.emit(e)
}

// giveUp ends a path. If it was lost, its streams are reset, and the peer is notified over
// another path, because it may not notice.
func (s *state) giveUp(c ladder.Close) {
	x := s.paths[c.Path]
	if x == nil {
		return
	}
	x.GiveUp()
	s.gone(x, x.HeardAt())
	s.Spawn(func() { _ = x.Close() })
	what := x.Path()
	switch c.Why {
	case ladder.Silent, ladder.Failed:
	default:
		s.Log.Debug("path is closed", "peer", s.name(s.id), "path", what.Kind, "transport", what.Transport)
		return
	}
	s.Log.Info("path is dead", "peer", s.name(s.id), "path", what.Kind, "transport", what.Transport, "why", c.Text)
	s.lost = append(s.lost, what.Transport+" path "+wording.Foreign(c.Text, 512))
	s.lost = s.lost[max(0, len(s.lost)-maxLost):]
	s.Spawn(s.Relays.SuspectAll)
	s.Spawn(x.ResetStreams)
	if token := x.Probes.PeerToken(); token != 0 {
		s.owed.add(token, true, s.Now())
	}
	s.announce()
}

// announce notifies the peer over the best path of those that are dead: this node has just lost one, or an address.
func (s *state) announce() {
	s.owed.confirm()
	if x := s.best(); x != nil {
		s.notify(x.ID, s.owed.over(x.ID, s.Now())...)
	}
}

// notify reports to the peer, over a path, that some of its ends of paths are dead.
func (s *state) notify(over ladder.PathID, tokens ...uint64) {
	if x := s.paths[over]; x != nil && len(tokens) > 0 {
		s.Spawn(func() {
			for _, token := range tokens {
				x.Probes.SendDrop(token)
			}
		})
	}
}

// up adds a new path.
func (s *state) up(x *paths.Conn) {
	if !x.Run() {
		return
	}
	link := x.Link()
	if link.Relayed {
		link.Order = s.search.Order(x.Relay)
	}
	s.paths[x.ID] = x
	s.round.absent, s.round.unmet = time.Time{}, time.Time{}
	s.Log.Debug("path is up", "peer", s.name(s.id), "path", x.Path().Kind, "transport", x.Path().Transport)
	s.admit()
	s.apply(ladder.Up{Path: x.ID, Link: link})
	s.changed.Broadcast()
}

// gone forgets a path that was of use until then.
func (s *state) gone(x *paths.Conn, until time.Time) {
	delete(s.paths, x.ID)
	s.round.heard, s.round.lost = later(s.round.heard, x.HeardAt()), until
}

// down removes a path whose connection has ended. The peer may not know: quic-go ends one whose packets the kernel refuses.
func (s *state) down(x *paths.Conn) {
	if s.paths[x.ID] == x {
		was, _ := s.m.Path(x.ID)
		s.gone(x, time.Now())
		s.apply(ladder.Down{Path: x.ID})
		if token := x.Probes.PeerToken(); token != 0 && !was.Quiet {
			s.owed.add(token, false, s.Now())
		}
		s.changed.Broadcast()
	}
}

// ended records the result of a round of connecting, or why there is none.
func (s *state) ended(err error, e ladder.Event) {
	s.round.ended++
	s.found(err)
	s.apply(e)
	s.changed.Broadcast()
}

// found records why there is no path.
func (s *state) found(err error) {
	s.round.err = err
	if !reach.Absent(err) {
		s.round.absent = time.Time{}
	} else if s.round.absent.IsZero() {
		s.round.absent = time.Now()
	}
}

// admit ends a refusal that is over.
func (s *state) admit() {
	if s.m.State() == ladder.Gone {
		s.apply(ladder.Admit{})
	}
}

// suspectDirect suspects all direct paths: they are probed, and not used until they answer.
func (s *state) suspectDirect() {
	for id, x := range s.paths {
		if !x.Relayed() {
			s.apply(ladder.Suspect{Path: id})
		}
	}
}

// best returns the best path for streams, nil if there is none.
func (s *state) best() *paths.Conn {
	return s.paths[s.m.Best(ladder.StreamLane, func(id ladder.PathID) bool {
		x := s.paths[id]
		return x == nil || x.Dead()
	})]
}

// path describes the best path for streams.
func (s *state) path() paths.Path {
	if id, _ := s.m.Using(ladder.StreamLane); s.paths[id] != nil {
		return s.paths[id].Path()
	}
	if x := s.best(); x != nil {
		return x.Path()
	}
	return paths.Path{Kind: paths.KindNone}
}

// failure is why no stream can be opened.
func (s *state) failure() error {
	switch {
	case s.m.State() == ladder.Gone && s.round.err != nil:
		return s.round.err
	case s.round.err == nil: // a path came and went
		return fmt.Errorf("%w: connection lost immediately", ErrUnreachable)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, s.round.err)
}

// watch makes a peer's machine look at the paths, at the time it named and when there is
// something new. It runs only while the machine wants to look at all.
type watch struct {
	now    wake.One // there is something new
	replan wake.One // the machine's next look may be at another time

	running   bool
	again     ladder.Time // look again then, because a path is suspect; 0: not
	blackHole time.Time   // when an MTU black hole was last found on a path
}

func newWatch() watch { return watch{now: wake.NewOne(), replan: wake.NewOne()} }

// plan keeps the watch running as long as there is something to wait for.
func (s *state) plan() {
	if s.watch.running {
		s.watch.replan.Wake()
	} else if s.nextLook() != ladder.Never {
		s.watch.running = s.Spawn(s.acts.runWatch)
	}
}

// nextLook is when the machine has to look again.
func (s *state) nextLook() ladder.Time {
	next := s.m.Next()
	if s.watch.again != 0 {
		next = min(next, s.watch.again)
	}
	return next
}
