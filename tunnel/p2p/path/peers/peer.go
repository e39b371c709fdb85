package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
)

// Peer is a member as seen from here.
type Peer struct {
	t        *env
	id       peer.ID
	changed  *wake.All // its paths, or the outcome of connecting, have changed
	attempts *punch.Attempts
	search   *reach.Search

	mu    sync.Mutex // guards state; see Table for the order of locks
	state state
}

func newPeer(t *env, id peer.ID) *Peer {
	p := &Peer{t: t, id: id, changed: &wake.All{}}
	p.attempts = t.Punch.With(p, t.Book.Known(id))
	p.search = t.Reach.With(p, p.attempts)
	p.state = state{env: t, id: id, acts: p, changed: p.changed, search: p.search, paths: make(map[ladder.PathID]*paths.Conn),
		openings: make(openings), watch: newWatch(), m: ladder.New(ladder.Config{Coordinator: t.Self < id, Seed: rand.Uint64()})}
	return p
}

var (
	_ paths.Owner = (*Peer)(nil)
	_ punch.Peer  = (*Peer)(nil)
	_ reach.Peer  = (*Peer)(nil)
)

// ID is the peer's.
func (p *Peer) ID() peer.ID { return p.id }

// Name is what logs call it.
func (p *Peer) Name() string { return p.t.name(p.id) }

// Admitted reports whether it is still a member.
func (p *Peer) Admitted() bool { return p.t.Members.View().IsMember(p.id) }

// Connected reports whether there is a path.
func (p *Peer) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.best() != nil
}

// Missing returns the transports there is no live direct path over.
func (p *Peer) Missing() []ladder.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.m.Missing()
}

// Wanted returns those, and the ones that may be had over IPv6 again.
func (p *Peer) Wanted() []ladder.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.m.Wanted()
}

// Await waits until done returns true. It is called now and after every change of paths.
func (p *Peer) Await(ctx context.Context, done func() bool) error { return p.changed.Until(ctx, done) }

// Offered receives what an offer of the peer said.
func (p *Peer) Offered(eps []endpoint.Endpoint, theirs ladder.NAT) {
	p.Apply(ladder.NATs{Mine: p.t.Punch.NAT(), Theirs: theirs})
	p.Apply(ladder.IPv6{Both: p.attempts.IPv6()})
	p.t.Book.Note(p.id, eps, p.Admitted)
}

// Apply applies an event to the peer's machine.
func (p *Peer) Apply(e ladder.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.apply(e)
}

// connect makes one round of attempts to reach the peer.
func (p *Peer) connect() {
	err := p.search.Connect(p.t.Ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.ended(err, ladder.Connected{})
}

// ask asks the relays for a peer that packets wait for without success, so that what is said of it stays true after the last of them: often
// until they say that they have lost it, then now and then.
func (p *Peer) ask() {
	for p.asks() {
		pause := p.askPause()
		select {
		case <-p.t.Ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/4)): // a site's peers go together
		}
		if !p.asks() || !p.t.asking.begin() {
			continue
		}
		err := p.search.ByRelay(p.t.Ctx)
		p.t.asking.end()
		p.mu.Lock()
		if s := &p.state; err != nil && s.unmet() && len(s.openings) == 0 { // else a round of connecting says more
			s.found(err)
		}
		p.mu.Unlock()
	}
}

// asks reports whether the relays shall be queried.
func (p *Peer) asks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	s.round.asking = s.unmet() && p.Admitted() && s.Members.Refusal(p.id) == nil
	return s.round.asking
}

func (p *Peer) askPause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.state.round
	// Until relays have noticed that it is gone, and then as long as a restart takes.
	if time.Since(r.unmet) < askOften || time.Since(r.absent) < askOften && !p.t.Metered() {
		return askSoon
	}
	return askLate
}

// askSoon and askLate are the pauses between two requests to the relays, askOften is how long they are short.
const (
	askSoon  = 5 * time.Second
	askLate  = 20 * time.Second
	askOften = 45 * time.Second
)

// asking bounds the requests of all peers under way: a relay counts each, for a peer that is off, as a circuit until it notices.
type asking struct{ n atomic.Int32 }

// maxAsking is how many there are at the same time. A hub whose site is off asks for the others later.
const maxAsking = 8

func (a *asking) begin() bool {
	if a.n.Add(1) <= maxAsking {
		return true
	}
	a.n.Add(-1)
	return false
}

func (a *asking) end() { a.n.Add(-1) }

// standby gets a relayed path beside the direct ones.
func (p *Peer) standby() {
	if err := p.search.ByRelay(p.t.Ctx); err != nil {
		p.t.Log.Debug("no relayed standby path", "peer", p.Name(), "err", err)
	}
	p.Apply(ladder.StandbyDone{})
}

// punch punches once.
func (p *Peer) punch(via *paths.Conn, a ladder.Punch) {
	err := p.attempts.Coordinate(p.t.Ctx, via.Conn, via.Path().RTT, a)
	if err != nil {
		p.t.Log.Debug("punch", "peer", p.Name(), "attempt", a.Attempt, "err", err)
	}
	p.Apply(ladder.Punched{Later: errors.Is(err, punch.ErrLater), Apart: errors.Is(err, punch.ErrApart)})
}

// refuse closes everything; why is for waiting callers and for the status.
func (p *Peer) refuse(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.ended(why, ladder.Refuse{})
	p.state.round.unmet = time.Time{} // what is refused is not waited for
}

// Dropped gives up the connection that the peer found dead.
func (p *Peer) Dropped(token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, x := range p.state.paths {
		if x.Probes.Token() == token {
			p.state.apply(ladder.Broken{Path: id, Why: "found dead by the peer"})
			return
		}
	}
}
