package p2p

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/tunnel/p2p/identity"
)

const (
	// idleTimeout is how long the connections to a peer are kept that nobody has
	// streams to, as after a ping. Who has streams says himself when to let go.
	idleTimeout = 3 * time.Minute
	// connectTimeout bounds one round of attempts to reach a peer.
	connectTimeout = 10 * time.Second
	// openTimeout bounds the opening of a stream on one path; a path that takes
	// longer is tried no more while there is another one.
	openTimeout = 2 * time.Second
	// relayPatience is how long a peer's first packet waits for this node's own
	// first relay, as when it has just started.
	relayPatience = 2 * time.Second
)

// peerSet has the peers that are connected, wanted, or were.
type peerSet struct {
	n  *Node
	mu sync.Mutex // guards everything below, remotes and paths included
	m  map[peer.ID]*remote
	// paths has every path until its connection has ended, also those of peers
	// that are no members any more.
	paths map[network.Conn]*path
}

// remote is a member as seen from here.
type remote struct {
	set *peerSet
	id  peer.ID

	paths   map[network.Conn]*path
	changed chan struct{} // closed, and replaced, when paths or errors change
	best    map[protocol.ID]*path
	since   time.Time // of the best path for streams

	connecting bool
	connectErr error // outcome of the last round, nil when it made a path
	rounds     int   // completed rounds of connecting
	keeping    bool  // keep is running
	lastUse    time.Time
	wanted     time.Time // when a path was last asked for that was not to be had yet
	improved   time.Time // when a better circuit was last tried; relaySet.improve's own

	punch punchState
}

func newPeerSet(n *Node) *peerSet {
	return &peerSet{n: n, m: make(map[peer.ID]*remote), paths: make(map[network.Conn]*path)}
}

// get returns the remote for p. The caller holds mu.
func (ps *peerSet) get(p peer.ID) *remote {
	r := ps.m[p]
	if r == nil {
		r = &remote{set: ps, id: p, paths: make(map[network.Conn]*path),
			changed: make(chan struct{}), best: make(map[protocol.ID]*path)}
		r.punch.remote = ps.n.book.known(p)
		ps.m[p] = r
	}
	return r
}

// add makes c a path. It returns at once.
func (ps *peerSet) add(c network.Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.n.gater.refusal(c.RemotePeer()) != nil { // it came just before
		ps.n.goClose(c)
		return
	}
	if ps.paths[c] != nil || c.IsClosed() || !ps.n.gater.members.Load().isMember(c.RemotePeer()) {
		return
	}
	r := ps.get(c.RemotePeer())
	p := newPath(ps.n, r, c)
	if !ps.n.spawn(p.probe) {
		return
	}
	ps.paths[c] = p
	r.paths[c] = p
	r.lastUse = time.Now()
	r.signal()
	if !r.keeping {
		r.keeping = ps.n.spawn(r.keep)
	}
}

// remove takes the path of a connection that has ended.
func (ps *peerSet) remove(c network.Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.paths[c]
	if p == nil {
		return
	}
	r := p.r
	delete(ps.paths, c)
	delete(r.paths, c)
	p.dead = true
	p.cancel()
	r.reselect()
	r.signal()
}

// pathOf returns the path of c, nil if it has none. Streams can arrive before
// the swarm has told of the connection.
func (ps *peerSet) pathOf(c network.Conn) *path {
	if !ps.n.gater.members.Load().isMember(c.RemotePeer()) {
		return nil
	}
	ps.add(c)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.paths[c]
}

// heardThrough says when something last came in through a relay.
func (ps *peerSet) heardThrough(relay peer.ID) (last time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.paths {
		if at := p.heardAt(); p.relay == relay && at.After(last) {
			last = at
		}
	}
	return last
}

// retain forgets the peers that member does not accept.
func (ps *peerSet) retain(member func(peer.ID) bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for id, r := range ps.m {
		if member(id) {
			continue
		}
		for c, p := range r.paths {
			p.cancel()
			ps.n.goClose(c)
		}
		r.connectErr = ErrNotMember
		r.rounds++
		r.signal()
		delete(ps.m, id)
	}
}

// signal wakes everybody who waits for a change. The caller holds mu.
func (r *remote) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// pick returns the best path for proto, nil if there is none. The caller holds
// mu.
func (r *remote) pick(proto protocol.ID, skip map[*path]bool) *path {
	var best *path
	for _, p := range r.paths {
		if p.dead || skip[p] || p.conn.IsClosed() {
			continue
		}
		if best == nil || better(p, best, proto) {
			best = p
		}
	}
	return best
}

// better says whether a should be used rather than b; of equals, the older one,
// which both ends know for longer.
func better(a, b *path, proto protocol.ID) bool {
	ra, rb := a.rank(proto), b.rank(proto)
	if ra != rb {
		return ra < rb
	}
	return a.opened.Before(b.opened)
}

// reselect finds the best path of each lane anew and tells of changes. The
// caller holds mu.
func (r *remote) reselect() {
	changed, lost := false, false
	for _, proto := range []protocol.ID{identity.StreamProtocol, identity.DatagramProtocol} {
		old, now := r.best[proto], r.pick(proto, nil)
		if now != nil && !now.verified && old != nil && !old.dead {
			now = old
		}
		if old == now {
			continue
		}
		r.best[proto] = now
		if proto == identity.StreamProtocol {
			r.since = time.Now()
		}
		switch {
		case old == nil:
		case old.dead:
			lost = true
		default:
			changed = true
		}
	}
	if !lost && !changed {
		return
	}
	e := Event{Peer: r.id, Kind: PathChanged, Path: r.pathLocked()}
	if lost {
		e.Kind = PathLost
	}
	r.set.n.log.Info(e.Kind.String(), "peer", r.name(), "path", e.Path.Kind, "transport", e.Path.Transport)
	r.set.n.events.emit(e)
}

// pathLocked describes the best path for streams. The caller holds mu.
func (r *remote) pathLocked() Path {
	if p := r.best[identity.StreamProtocol]; p != nil && !p.dead {
		return p.pathLocked()
	}
	if p := r.pick(identity.StreamProtocol, nil); p != nil {
		return p.pathLocked()
	}
	return Path{Kind: KindNone}
}

func (r *remote) name() string {
	if s := r.set.n.gater.members.Load().names[r.id]; s != "" {
		return s
	}
	return r.id.String()
}

// OpenStream opens a stream for proto on the best path to peer that is known
// now. Where there is none it connects first: through a relay, and directly at
// addresses that worked before. It returns an error that wraps ErrNotMember,
// ErrUnreachable with all causes, ErrShunned, ErrClosed, or ctx's error.
func (n *Node) OpenStream(ctx context.Context, to peer.ID, proto protocol.ID) (*Stream, error) {
	if !n.gater.members.Load().isMember(to) {
		return nil, fmt.Errorf("open stream to %s: %w", to, ErrNotMember)
	}
	s, err := n.peers.open(ctx, to, proto)
	if err != nil {
		return nil, fmt.Errorf("open stream to %s: %w", to, join(err))
	}
	return s, nil
}

func (ps *peerSet) open(ctx context.Context, to peer.ID, proto protocol.ID) (*Stream, error) {
	failed := make(map[*path]bool)
	var errs []error
	for {
		p, err := ps.await(ctx, to, proto, failed)
		if err != nil {
			return nil, join(append(errs, err)...)
		}
		octx, cancel := context.WithTimeout(ctx, openTimeout)
		s, err := p.open(octx, proto)
		cancel()
		if err == nil {
			ps.mu.Lock()
			p.r.lastUse, p.r.wanted = time.Now(), time.Time{}
			if p.r.best[proto] == nil {
				p.r.reselect()
			}
			ps.mu.Unlock()
			return s, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // nobody waits any more: that says nothing of the path
			return nil, ctx.Err()
		}
		failed[p] = true
		ps.mu.Lock()
		p.suspect()
		p.r.reselect()
		ps.mu.Unlock()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s path: %w", p.describe().Kind, ctx.Err())
		}
		errs = append(errs, fmt.Errorf("%s path: %w", p.describe().Kind, err))
		if len(failed) > 8 {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, join(errs...))
		}
	}
}

// await returns the best path that is not in failed, and connects where there
// is none.
func (ps *peerSet) await(ctx context.Context, to peer.ID, proto protocol.ID, failed map[*path]bool) (*path, error) {
	ps.mu.Lock()
	rounds := -1
	for {
		r := ps.get(to)
		r.wanted = time.Now()
		if p := r.pick(proto, failed); p != nil {
			ps.mu.Unlock()
			return p, nil
		}
		if err := ps.n.gater.refusal(to); err != nil {
			r.connectErr = err
			ps.mu.Unlock()
			return nil, err
		}
		if rounds >= 0 && r.rounds > rounds {
			err := r.connectErr
			ps.mu.Unlock()
			if err == nil { // a path came and went
				err = errors.New("connection lost at once")
			}
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		if rounds < 0 {
			rounds = r.rounds
		}
		if !r.connecting {
			r.connecting = ps.n.spawn(r.connect)
			if !r.connecting {
				ps.mu.Unlock()
				return nil, ErrClosed
			}
		}
		changed := r.changed
		ps.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ps.n.ctx.Done():
			return nil, ErrClosed
		}
		ps.mu.Lock()
	}
}
