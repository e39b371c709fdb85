package p2p

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/causes"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/punch"
)

const (
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
	// that are no members any more, and those given up.
	paths map[network.Conn]*path
	last  ladder.PathID // given out
}

// remote is a member as seen from here. What becomes of its paths is decided by
// its machine; drive.go tells that what happens, and does what it says.
type remote struct {
	set *peerSet
	id  peer.ID
	m   *ladder.Machine

	paths   map[ladder.PathID]*path // those the machine knows
	changed wake.All                // paths or errors have changed
	driven  bool                    // drive is running
	replan  chan struct{}           // holds one: the machine's next wake-up may have changed
	stirred chan struct{}           // holds one: a quiet path carries data
	moved   ladder.Time             // the machine's time of the last change of path,
	since   time.Time               // and the host's

	connectErr error     // outcome of the last round, nil when it made a path
	rounds     int       // completed rounds of connecting
	wanted     time.Time // when a path was last asked for that was not to be had yet
	failures   []string  // the last paths lost, newest last

	circuits circuitState

	holed   time.Time // when large packets were last found to vanish on a direct path
	looking bool      // lookAgain is about to

	punch *punch.Attempts
}

func newPeerSet(n *Node) *peerSet {
	return &peerSet{n: n, m: make(map[peer.ID]*remote), paths: make(map[network.Conn]*path)}
}

// get returns the remote for p. The caller holds mu.
func (ps *peerSet) get(p peer.ID) *remote {
	r := ps.m[p]
	if r == nil {
		r = &remote{set: ps, id: p, paths: make(map[ladder.PathID]*path), replan: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
			m: ladder.New(ladder.Config{Coordinator: ps.n.ID() < p, Seed: rand.Uint64()})}
		r.punch = ps.n.puncher.With(punched{r}, ps.n.book.Known(p))
		ps.m[p] = r
	}
	return r
}

// add makes c a path. It returns at once.
func (ps *peerSet) add(c network.Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.n.gater.Refusal(c.RemotePeer()) != nil { // it came just before
		ps.n.goClose(c)
		return
	}
	if ps.paths[c] != nil || c.IsClosed() || !ps.n.gater.View().IsMember(c.RemotePeer()) {
		return
	}
	r := ps.get(c.RemotePeer())
	ps.last++
	p := newPath(ps.n, r, c, ps.last)
	if !ps.n.spawn(p.probe) || !ps.n.spawn(p.datagrams.Run) {
		return
	}
	ps.paths[c] = p
	r.paths[p.id] = p
	r.welcome()
	r.tell(ladder.Up{Path: p.id, Link: p.link()})
	r.changed.Broadcast()
}

// remove takes the path of a connection that has ended.
func (ps *peerSet) remove(c network.Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.paths[c]
	if p == nil {
		return
	}
	delete(ps.paths, c)
	p.dead = true
	p.cancel()
	if r := p.r; r.paths[p.id] == p {
		delete(r.paths, p.id)
		r.tell(ladder.Down{Path: p.id})
		r.changed.Broadcast()
	}
}

// pathOf returns the path of c, nil if it has none. Streams can arrive before
// the swarm has told of the connection.
func (ps *peerSet) pathOf(c network.Conn) *path {
	if !ps.n.gater.View().IsMember(c.RemotePeer()) {
		return nil
	}
	ps.add(c)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.paths[c]
}

// retain forgets the peers that member does not accept.
func (ps *peerSet) retain(member func(peer.ID) bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for id, r := range ps.m {
		if member(id) {
			continue
		}
		r.connectErr = members.ErrNotMember
		r.rounds++
		r.tell(ladder.Refuse{})
		r.changed.Broadcast()
		delete(ps.m, id)
	}
}

// pick returns the best path for proto, nil if there is none. The caller holds
// mu.
func (r *remote) pick(proto protocol.ID, skip map[*path]bool) *path {
	return r.paths[r.m.Best(laneOf(proto), func(id ladder.PathID) bool {
		p := r.paths[id]
		return p == nil || p.dead || skip[p] || p.conn.IsClosed()
	})]
}

// laneOf says which lane's order of paths suits proto.
func laneOf(proto protocol.ID) ladder.Lane {
	if proto == identity.DatagramProtocol {
		return ladder.DatagramLane
	}
	return ladder.StreamLane
}

// pathLocked describes the best path for streams. The caller holds mu.
func (r *remote) pathLocked() Path {
	if id, _ := r.m.Using(ladder.StreamLane); r.paths[id] != nil {
		return r.paths[id].pathLocked()
	}
	if p := r.pick(identity.StreamProtocol, nil); p != nil {
		return p.pathLocked()
	}
	return Path{Kind: KindNone}
}

func (r *remote) name() string { return r.set.n.gater.View().Name(r.id) }

// OpenStream opens a stream for proto on the best path to peer that is known
// now. Where there is none it connects first: through a relay, and directly at
// addresses that worked before. It returns an error that wraps members.ErrNotMember,
// ErrUnreachable with all causes, members.ErrQuarantined, ErrClosed, or ctx's error.
func (n *Node) OpenStream(ctx context.Context, to peer.ID, proto protocol.ID) (*Stream, error) {
	if !n.gater.View().IsMember(to) {
		return nil, fmt.Errorf("open stream to %s: %w", to, members.ErrNotMember)
	}
	s, err := n.peers.open(ctx, to, proto)
	if err != nil {
		return nil, fmt.Errorf("open stream to %s: %w", to, causes.Join(err))
	}
	return s, nil
}

func (ps *peerSet) open(ctx context.Context, to peer.ID, proto protocol.ID) (*Stream, error) {
	failed := make(map[*path]bool)
	var errs []error
	for {
		p, err := ps.await(ctx, to, proto, failed)
		if err != nil {
			return nil, causes.Join(append(errs, err)...)
		}
		octx, cancel := context.WithTimeout(ctx, openTimeout)
		s, err := p.open(octx, proto)
		cancel()
		if err == nil {
			ps.mu.Lock()
			p.r.wanted = time.Time{}
			p.r.tell(ladder.Use{})
			ps.mu.Unlock()
			return s, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // nobody waits any more: that says nothing of the path
			return nil, ctx.Err()
		}
		if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
			// It answers, and has yet to start: no other path, and no round of dialing that
			// takes seconds, leads to anything else. The caller tries again sooner.
			return nil, fmt.Errorf("%w: %s path: %w", ErrUnreachable, p.describe().Kind, err)
		}
		failed[p] = true
		ps.mu.Lock()
		p.r.tell(ladder.Doubt{Path: p.id})
		ps.mu.Unlock()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s path: %w", p.describe().Kind, ctx.Err())
		}
		errs = append(errs, fmt.Errorf("%s path: %w", p.describe().Kind, err))
		if len(failed) > 8 {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, causes.Join(errs...))
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
		if err := ps.n.gater.Refusal(to); err != nil {
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
		r.welcome()
		r.tell(ladder.Want{})
		changed := r.changed.Next()
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

// netChanged has every peer's paths probed, and better ones tried.
func (ps *peerSet) netChanged() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, r := range ps.m {
		r.punch.NetChanged()
		r.tell(ladder.NetChanged{})
	}
}
