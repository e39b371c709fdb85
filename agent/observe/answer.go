package observe

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/seldom"
	"edgemesh/internal/wake"
)

const (
	// lookEvery is how often paths are looked at for an observer, sendEvery how often numbers are sent while no path changes.
	lookEvery = time.Second
	sendEvery = 3 * time.Second
	// shareFor is how long a report is sent to further observers, too.
	shareFor = lookEvery / 4
	// patience bounds the request and the sending of one report.
	patience = 10 * time.Second
	// maxStreams bounds the streams at a time, maxOthers those of members that the membership does not name as observers,
	// maxOfOne those of one member: an observer that restarts has two for a moment.
	maxStreams = 16
	maxOthers  = 8
	maxOfOne   = 2
	// perMinute bounds the streams that one member may open.
	perMinute = 30
)

// Scope is what is requested; the first byte of a stream.
type Scope byte

// The scopes.
const (
	Own Scope = 'p' // the pair of the two
	All Scope = 'a' // everything
)

// Stream is a stream to or from a member, authenticated and encrypted.
type Stream interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	CloseWrite() error
	Reset()
}

// The reasons to refuse a member.
var (
	errTooMany = errors.New("too many members observe at the same time; try later")
	errTooFast = errors.New("too many requests; at most 30 a minute")
	errNoRight = errors.New("only observers may see more than their own pair: add the node to observers in PodNetwork or cluster.yaml")
	errScope   = errors.New("the request is neither for a pair nor for everything")
)

// Answerer reports this node's paths to others. It does nothing while nobody observes.
type Answerer struct {
	ctx      context.Context //nolint:containedctx // the agent's lifetime
	report   func() Report
	observes func(mesh.PeerID) bool
	log      *slog.Logger
	said     seldom.Log

	mu     sync.Mutex // a leaf
	open   map[mesh.PeerID]int
	all    int
	others int                 // of all, those of no observers
	recent map[mesh.PeerID]int // streams that were opened since the minute began
	began  time.Time
	shared shared
}

// shared is a report that several observers get.
type shared struct {
	mu   sync.Mutex // held while a report is made
	last Report
	made time.Time
}

// NewAnswerer returns one that answers until ctx ends. report says everything, observes whether a member may see it.
func NewAnswerer(ctx context.Context, report func() Report, observes func(mesh.PeerID) bool, log *slog.Logger) *Answerer {
	return &Answerer{ctx: ctx, report: report, observes: observes, log: log, open: map[mesh.PeerID]int{}, recent: map[mesh.PeerID]int{}}
}

// Answer serves a stream that a member has opened, until it ends. It owns the stream.
func (a *Answerer) Answer(id mesh.PeerID, st Stream) {
	defer st.Reset()
	observer := a.observes(id)
	err := a.enter(id, observer)
	if err == nil {
		defer a.leave(id, observer)
		err = a.serve(id, st)
	}
	for _, refusal := range []error{errTooMany, errTooFast, errNoRight, errScope} {
		if errors.Is(err, refusal) {
			if a.said.Due(string(id)) {
				a.log.Warn("a member's request for paths is refused", "peer", id, "because", refusal)
			}
			_ = st.SetWriteDeadline(time.Now().Add(patience))
			_ = Write(st, Report{Refused: refusal.Error()}, nil)
			_ = st.CloseWrite()
			_ = st.SetReadDeadline(time.Now().Add(time.Second)) // a reset may overtake what was written
			_, _ = io.CopyN(io.Discard, st, 1)
			return
		}
	}
	if err != nil && a.ctx.Err() == nil {
		a.log.Debug("a member no longer observes paths", "peer", id, "err", err)
	}
}

// enter takes a place. Some are observers' alone.
func (a *Answerer) enter(id mesh.PeerID, observer bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.began) > time.Minute {
		a.began = now
		clear(a.recent)
	}
	if a.recent[id]++; a.recent[id] > perMinute {
		return errTooFast
	}
	if a.all >= maxStreams || a.open[id] >= maxOfOne || !observer && a.others >= maxOthers {
		return errTooMany
	}
	if !observer {
		a.others++
	}
	a.all++
	a.open[id]++
	return nil
}

func (a *Answerer) leave(id mesh.PeerID, observer bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !observer {
		a.others--
	}
	a.all--
	if a.open[id]--; a.open[id] == 0 {
		delete(a.open, id)
	}
}

// serve sends reports until either side ends the stream.
func (a *Answerer) serve(id mesh.PeerID, st Stream) error {
	var scope [1]byte
	_ = st.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(st, scope[:]); err != nil {
		return err
	}
	if refused := a.may(id, Scope(scope[0])); refused != nil {
		return refused
	}
	_ = st.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(a.ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer st.Reset() // ends the reading
	defer cancel()
	reading.Go(func() {
		_, _ = io.CopyN(io.Discard, st, 1) // nothing more may come: it ends with the stream
		cancel()
	})
	var before Report
	var sent time.Time
	for ctx.Err() == nil {
		if refused := a.may(id, Scope(scope[0])); refused != nil {
			return ctx.Err() // taken off the list meanwhile; the member learns so with its next request
		}
		now := a.current()
		if Scope(scope[0]) == Own {
			now = now.only(string(id))
		}
		if samePaths(before, now) && time.Since(sent) < sendEvery {
			wake.Sleep(ctx, lookEvery)
			continue
		}
		_ = st.SetWriteDeadline(time.Now().Add(patience))
		if err := Write(st, now, before.Findings); err != nil {
			return err
		}
		before, sent = now, time.Now()
		wake.Sleep(ctx, lookEvery)
	}
	return ctx.Err()
}

// may is nil if a member may see that.
func (a *Answerer) may(id mesh.PeerID, s Scope) error {
	switch {
	case s != Own && s != All:
		return errScope
	case s == All && !a.observes(id):
		return errNoRight
	}
	return nil
}

// current is a report of less than shareFor ago: however many observe, one is made.
func (a *Answerer) current() Report {
	s := &a.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.made) >= shareFor {
		s.last, s.made = a.report(), time.Now()
	}
	return s.last
}

// only is what the other end of one pair may know.
func (r Report) only(peer string) Report {
	return Report{Version: r.Version, Pairs: slices.DeleteFunc(slices.Clone(r.Pairs), func(p Pair) bool { return p.Peer != peer })}
}

// samePaths reports whether nothing but numbers has changed.
func samePaths(a, b Report) bool {
	same := func(x, y findings.Finding) bool {
		return x.ID == y.ID && x.Subject == y.Subject && x.Severity == y.Severity
	}
	return slices.EqualFunc(a.Findings, b.Findings, same) && slices.EqualFunc(a.Pairs, b.Pairs, func(x, y Pair) bool {
		return x.Peer == y.Peer && x.Path == y.Path && x.Relay == y.Relay && x.Transport == y.Transport
	})
}
