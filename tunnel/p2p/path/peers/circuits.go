package peers

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/relay/relays"
)

// circuits are the circuits of all peers.
type circuits struct{ t *Table }

var _ relays.Peers = circuits{}

// Circuits is what package relays needs to know about the peers.
func (t *Table) Circuits() relays.Peers { return circuits{t} }

// Traffic returns the traffic of the relays that have circuits.
func (c circuits) Traffic() map[peer.ID]relays.Traffic {
	out := make(map[peer.ID]relays.Traffic)
	for _, x := range c.t.registry.connections() {
		if x.Relay == "" {
			continue
		}
		sum := out[x.Relay]
		sum.Bytes += x.Moved()
		if at := x.HeardAt(); at.After(sum.Heard) {
			sum.Heard = at
		}
		if at := x.SentAt(); at.After(sum.Sent) {
			sum.Sent = at
		}
		out[x.Relay] = sum
	}
	return out
}

// HeardThrough says when something last came in through a relay.
func (c circuits) HeardThrough(relay peer.ID) time.Time { return c.Traffic()[relay].Heard }

// InUse reports whether a peer carries more than a few packets now and then.
func (t *Table) InUse() bool {
	return slices.ContainsFunc(t.registry.all(), func(p *Peer) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.state.paths) > 0 && p.state.m.HasBulk(t.Now())
	})
}

// InUse is Table.InUse.
func (c circuits) InUse() bool { return c.t.InUse() }

// Conns returns one connection to every connected peer.
func (c circuits) Conns() []network.Conn {
	var out []network.Conn
	for _, p := range c.t.registry.all() {
		p.mu.Lock()
		if x := p.state.best(); x != nil {
			out = append(out, x.Conn)
		}
		p.mu.Unlock()
	}
	return out
}

// Has reports whether conn is a member's connection, which it then has a path on.
func (c circuits) Has(conn network.Conn) bool { return c.t.registry.at(conn) != nil }

// Improve moves the circuits of peers that are in use, and reached through relays only, to
// the best relays.
func (c circuits) Improve(now time.Time) {
	for _, p := range c.t.registry.all() {
		p.mu.Lock()
		have := p.state.relaysInUse()
		p.mu.Unlock()
		if have != nil && p.search.Improve(have, now) {
			p.look() // the order of its paths has changed
		}
	}
}

// relaysInUse are the relays that carry circuits of the peer; nil if it is not in use, or
// has a direct path.
func (s *state) relaysInUse() map[peer.ID]bool {
	if x := s.best(); x == nil || !x.Relayed() || !s.m.InDemand(s.Now()) {
		return nil
	}
	have := make(map[peer.ID]bool)
	for _, x := range s.paths {
		if !x.Dead() && x.Relayed() {
			have[x.Relay] = true
		}
	}
	return have
}
