// Package peers has the members that are, were or should be connected: their paths, the
// machine that decides about these (package ladder), and what carries out its decisions.
//
//	table.go    all peers, as the node sees them
//	circuits.go what circuits carry, as relays need it
//	status.go   what an operator is shown
//	open.go     a stream on the best path; connecting where there is none
//	watch.go    when the machine looks at the paths, and what it sees
//	registry.go all peers and the paths of all connections, by name
//	peer.go     one peer, as its paths, its punching and the search for it see it
//	state.go    its state: what happens is applied to its machine, which is obeyed
//	opening.go  a stream that is being opened
//	owed.go     dead paths that the peer is to hear of
//	punching.go what was tried to get direct paths, and what follows
//	carried.go  bytes of all paths, by kind
//	events.go   changes of the best path, for the owner of the streams
//	config.go   what is handed in
package peers

import (
	"maps"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

// Table has all peers.
//
// Locks are taken in this order: registry.mu; Peer.mu; that of a peer's circuits; then those of its attempts, its
// connections, of relays and of the node's tasks, all of them leaves.
type Table struct {
	*env
	registry registry
}

// New returns a Table without peers.
func New(c Config) *Table {
	t := &Table{env: &env{Config: c, events: newDispatcher(c.Log)}}
	t.registry = registry{t: t.env, peers: make(map[peer.ID]*Peer), conns: make(map[network.Conn]*located)}
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

// Unbound gives up the path of c, if it has one: this node has lost its address.
func (t *Table) Unbound(c network.Conn, why string) {
	if x := t.registry.at(c); x != nil {
		x.peer.Apply(ladder.Broken{Path: x.ID, Why: why, Unbound: true})
	}
}

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
		x.peer.attempts.Answer(t.Ctx, s, x.Path().RTT)
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

// AddressGone has peers hear of paths that have just ended here: this node has lost an address, and quic-go's connections end before that
// is certain.
func (t *Table) AddressGone() {
	for _, p := range t.registry.all() {
		p.mu.Lock()
		p.state.announce()
		p.mu.Unlock()
	}
}

// NetChanged probes all paths and tries better ones: this node's addresses have changed.
func (t *Table) NetChanged() {
	for _, p := range t.registry.all() {
		p.attempts.NetChanged()
		p.Apply(ladder.IPv6{Both: p.attempts.IPv6()})
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

// CarriedBy is what all paths of t have carried, by kind.
func CarriedBy(t *Table) map[paths.Kind]Carried {
	r := &t.registry
	r.mu.Lock() // none ends meanwhile
	defer r.mu.Unlock()
	for _, x := range r.conns {
		r.carried.note(x.Conn)
	}
	return maps.Clone(r.carried.total)
}
