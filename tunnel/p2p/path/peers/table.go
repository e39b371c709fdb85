// Package peers has the members that are, were or should be connected: their paths, the
// machine that decides about these (package ladder), and what carries out its decisions.
//
//	table.go    all peers, as the node sees them
//	registry.go all peers and the paths of all connections, by name
//	peer.go     one peer, as its paths, its punching and the search for it see it
//	state.go    its state: what happens is applied to its machine, which is obeyed
//	watch.go    when the machine looks at the paths, and what it sees
//	open.go     a stream on the best path; connecting where there is none
//	circuits.go what circuits carry, as relays need it
//	owed.go     dead paths that the peer is to hear of
//	status.go   what an operator is shown
//	punching.go what was tried to get direct paths, and what follows
//	carried.go  bytes of all paths, by kind
//	events.go   changes of the best path, for the owner of the streams
package peers

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/path/book"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
	"edgemesh/tunnel/p2p/who/members"
)

// Config is what a Table needs; all of it is required.
type Config struct {
	Self    peer.ID
	Members *members.Gater
	Paths   paths.Config
	Punch   *punch.Puncher
	Reach   *reach.Config
	Relays  Relays
	// Carried is woken when a path that is new, or was quiet, carries data.
	Carried wake.One
	Book    *book.Book
	// Serves reports whether this node is a peer's relay.
	Serves func(peer.ID) bool
	Ctx    context.Context //nolint:containedctx // the node's lifetime
	Spawn  func(func()) bool
	Now    func() ladder.Time
	Log    *slog.Logger
}

// Relays are those that this node uses.
type Relays interface {
	// Wants reports whether p is a relay that this node wants to be connected to, OverTCP returns those with a TCP connection.
	Wants(p peer.ID) bool
	OverTCP() map[peer.ID]bool
	// SuspectAll has all of them pinged immediately.
	SuspectAll()
}

// Table has all peers.
//
// Locks are taken in this order: registry.mu; Peer.mu; that of a peer's circuits; then those of its attempts, its
// connections, of relays and of the node's tasks, all of them leaves.
type Table struct {
	Config
	registry registry
	events   *dispatcher
}

// New returns a Table without peers.
func New(c Config) *Table {
	t := &Table{Config: c, events: newDispatcher()}
	t.registry = registry{t: t, peers: make(map[peer.ID]*Peer), conns: make(map[network.Conn]*located)}
	return t
}

// Run starts what runs until the node is closed.
func (t *Table) Run() { t.Spawn(func() { t.events.run(t.Ctx) }) }

// SetNotify sets what is called, one event after the other, for every change of path of a
// peer that has streams.
func (t *Table) SetNotify(f func(Event)) { t.events.set(f) }

// Add makes c a path. It does not wait.
func (t *Table) Add(c network.Conn) {
	t.registry.add(c)
	t.Carried.Wake()
}

// Remove takes the path of a connection that has ended.
func (t *Table) Remove(c network.Conn) { t.registry.remove(c) }

// Conn returns the path of c, nil if it has none.
func (t *Table) Conn(c network.Conn) *paths.Conn {
	if x := t.registry.at(c); x != nil {
		return x.Conn
	}
	return nil
}

// AnswerPunch serves an attempt of a coordinator, on its stream.
func (t *Table) AnswerPunch(s network.Stream) {
	defer s.Reset()
	if x := t.registry.at(s.Conn()); x != nil {
		x.peer.attempts.Answer(t.Ctx, s)
	}
}

// Retain forgets the peers that member does not accept.
func (t *Table) Retain(member func(peer.ID) bool) {
	for _, p := range t.registry.forget(member) {
		p.refuse(members.ErrNotMember)
	}
}

// Refuse disconnects from a peer that the gate refuses from now on.
func (t *Table) Refuse(id peer.ID) {
	if p := t.registry.known(id); p != nil {
		p.refuse(t.Members.Refusal(id))
	}
}

// Disconnect disconnects a peer that the owner of its streams no longer needs, unless
// another user, a ping, needs it right now. The next stream connects again. It does not
// block.
func (t *Table) Disconnect(id peer.ID) {
	if p := t.registry.known(id); p != nil && !t.kept(id) {
		p.Apply(ladder.Disconnect{})
	}
}

// kept reports whether a peer stays connected while nobody uses it: one of the two is the
// other's relay.
func (t *Table) kept(id peer.ID) bool { return t.Relays.Wants(id) || t.Serves(id) }

// Suspect says that a path to a peer which is not of this package has just failed: direct
// paths may have failed with it, and would show it late while idle. They are probed
// immediately; until they answer, relayed ones are used. It does not block.
func (t *Table) Suspect(id peer.ID) {
	if p := t.registry.known(id); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.state.suspectDirect()
	}
}

// Wake makes a peer's machine look at its paths now.
func (t *Table) Wake(id peer.ID) {
	if p := t.registry.known(id); p != nil {
		p.Wake()
	}
}

// NetChanged probes all paths and tries better ones: this node's addresses have changed.
func (t *Table) NetChanged() {
	for _, p := range t.registry.all() {
		p.attempts.NetChanged()
		p.Apply(ladder.NetChanged{})
	}
}

// NATChanged passes what is known of this node's NAT to every peer's machine.
func (t *Table) NATChanged() {
	mine := t.Punch.NAT()
	for _, p := range t.registry.all() {
		p.Apply(ladder.NATs{Mine: mine, Theirs: p.attempts.NAT()})
	}
}
