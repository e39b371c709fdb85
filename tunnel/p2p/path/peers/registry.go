package peers

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/path/paths"
)

// registry finds peers by ID, and paths by their connection.
type registry struct {
	t *env

	mu    sync.Mutex // guards what follows, not the peers; see Table for the order of locks
	peers map[peer.ID]*Peer
	// conns has the path of every connection until that has ended, also those of peers
	// that are no longer members, and those given up.
	conns map[network.Conn]*located
	last  ladder.PathID // given out

	carried carried
}

// located is a path and the peer it leads to.
type located struct {
	*paths.Conn
	peer *Peer
}

// lock returns the peer with that ID, a new one if there is none, with its mu held. If
// Retain forgets it meanwhile, the refusal waits for mu and ends what was begun.
func (r *registry) lock(id peer.ID) *Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.getLocked(id)
	p.mu.Lock()
	return p
}

func (r *registry) getLocked(id peer.ID) *Peer {
	p := r.peers[id]
	if p == nil {
		p = newPeer(r.t, id)
		r.peers[id] = p
	}
	return p
}

// known returns the peer with that ID, nil if there is none.
func (r *registry) known(id peer.ID) *Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peers[id]
}

// all returns the peers, in order of ID.
func (r *registry) all() []*Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.peers), func(a, b *Peer) int { return cmp.Compare(a.id, b.id) })
}

// forget removes the peers that member does not accept, and returns them.
func (r *registry) forget(member func(peer.ID) bool) (gone []*Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.peers {
		if !member(id) {
			gone = append(gone, p)
			delete(r.peers, id)
		}
	}
	return gone
}

// add makes c a path. It does not wait.
func (r *registry) add(c network.Conn) {
	t, id := r.t, c.RemotePeer()
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Members.Refusal(id) != nil { // it came just before
		t.Spawn(func() { _ = c.Close() })
		return
	}
	if r.conns[c] != nil || c.IsClosed() || !t.Members.View().IsMember(id) {
		return
	}
	p := r.getLocked(id)
	r.last++
	x := &located{paths.New(&t.Paths, p, c, r.last), p}
	r.conns[c] = x
	p.mu.Lock()
	defer p.mu.Unlock()
	x.Doubted = p.state.unheard
	t.Paths.Timeline.Note(id, timeline.Up)
	p.state.up(x.Conn)
}

// remove takes the path of a connection that has ended.
func (r *registry) remove(c network.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.conns[c]
	if x == nil {
		return
	}
	delete(r.conns, c)
	x.Ended()
	r.carried.end(x.Conn)
	x.peer.mu.Lock()
	defer x.peer.mu.Unlock()
	if !x.Heard() {
		x.peer.state.unheard = true
	}
	x.peer.state.down(x.Conn)
}

// at returns the path of c, nil if it has none. Streams can arrive before the swarm has
// announced the connection.
func (r *registry) at(c network.Conn) *located {
	if !r.t.Members.View().IsMember(c.RemotePeer()) {
		return nil
	}
	r.add(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns[c]
}

// connections returns the paths of all connections.
func (r *registry) connections() []*located {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.conns))
}
