package p2p

import (
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/ladder"
)

// maxFailures is how many lost paths are remembered for an operator.
const maxFailures = 3

// tell tells the machine what happened and begins what it says. Nothing of that
// blocks. The caller holds mu.
func (r *remote) tell(e ladder.Event) {
	actions := r.m.Handle(r.set.n.now(), e)
	if _, since := r.m.Using(ladder.StreamLane); since != r.moved {
		r.moved, r.since = since, time.Now()
	}
	for _, a := range actions {
		r.do(a)
	}
	for id, p := range r.paths {
		v, _ := r.m.Path(id)
		p.quiet.Store(v.Quiet)
		if v.Quiet && p.moved() != p.sampled { // a moment ago
			p.stir()
		}
	}
	if r.driven {
		post(r.replan)
	} else if r.m.Next() != ladder.Never {
		r.driven = r.set.n.spawn(r.drive)
	}
}

// do begins one action. The caller holds mu.
func (r *remote) do(a ladder.Action) {
	n := r.set.n
	switch a := a.(type) {
	case ladder.Connect:
		n.spawn(r.connect)
	case ladder.Standby:
		n.spawn(r.standby)
	case ladder.Punch:
		if via := r.paths[a.Via]; via != nil {
			n.spawn(func() { r.attempt(via, a) })
		}
	case ladder.Probe:
		if p := r.paths[a.Path]; p != nil {
			post(p.due) // full: the request before is still stuck
		}
	case ladder.Close:
		r.giveUp(a)
	case ladder.Moved:
		e := Event{Peer: r.id, Kind: PathChanged, Path: r.pathLocked()}
		if a.Lost {
			e.Kind = PathLost
		}
		n.log.Info(e.Kind.String(), "peer", r.name(), "path", e.Path.Kind, "transport", e.Path.Transport)
		n.events.emit(e)
	case ladder.Nudge:
		if via := r.paths[a.Via]; via != nil {
			n.spawn(via.sendNudge)
		}
	}
}

// post leaves a note in a channel that holds one.
func post(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stir has the machine look at paths that were quiet.
func (r *remote) stir() { post(r.stirred) }

// drive wakes the machine when it wants to be woken. It ends when there is nothing
// to wait for.
func (r *remote) drive() {
	n := r.set.n
	for {
		r.set.mu.Lock()
		next := r.m.Next()
		if next == ladder.Never || n.ctx.Err() != nil {
			r.driven = false
			r.set.mu.Unlock()
			return
		}
		r.set.mu.Unlock()
		timer := time.NewTimer(next - n.now())
		select {
		case <-r.replan:
			timer.Stop()
			continue
		case <-r.stirred:
		case <-timer.C:
		case <-n.ctx.Done():
		}
		timer.Stop()
		r.wake()
	}
}

// wake tells the machine what is known of the paths.
func (r *remote) wake() {
	n := r.set.n
	overTCP := n.relays.OverTCP()
	kept := r.needed()
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	before := len(r.paths)
	var samples []ladder.Sample
	var narrow []ladder.PathID
	for id, p := range r.paths {
		switch p.verdict() {
		case holed:
			narrow = append(narrow, id)
		case suspect:
			p.confirmSiblings()
			r.lookAgain()
		}
		p.sampled = p.moved()
		s := ladder.Sample{Path: id, Moved: p.sampled, Heard: time.Since(p.heardAt()),
			Carrier: ladder.Never, Streams: len(p.streams)}
		if at := p.carrierHeard(); !at.IsZero() {
			s.Carrier = time.Since(at)
		}
		if p.relayed() {
			s.Order, s.Poor = p.relayOrder(), p.udp && overTCP[p.relay]
		}
		samples = append(samples, s)
	}
	r.tell(ladder.Wake{Samples: samples, Kept: kept})
	for _, id := range narrow {
		r.tell(ladder.Broken{Path: id, Why: "takes smaller packets than before"})
	}
	if len(r.paths) != before {
		r.changed.Broadcast()
	}
}

// giveUp ends a path. Where it was lost, what is on it is reset, and the peer is told
// over another path, because it may not notice. The caller holds mu.
func (r *remote) giveUp(c ladder.Close) {
	n := r.set.n
	p := r.paths[c.Path]
	if p == nil {
		return
	}
	p.dead = true
	delete(r.paths, c.Path)
	n.goClose(p.conn)
	switch c.Why {
	case ladder.Silent, ladder.Failed:
	default:
		n.log.Debug("path is closed", "peer", r.name(), "path", p.kind(), "transport", p.transport())
		return
	}
	n.log.Info("path is dead", "peer", r.name(), "path", p.kind(), "transport", p.transport(), "why", c.Text)
	r.failures = append(r.failures, fmt.Sprintf("%s path %s", p.transport(), c.Text))
	if len(r.failures) > maxFailures {
		r.failures = r.failures[1:]
	}
	n.spawn(n.relays.SuspectAll)
	streams := make([]*Stream, 0, len(p.streams))
	for s := range p.streams {
		streams = append(streams, s)
	}
	n.spawn(func() {
		for _, s := range streams {
			s.Reset()
		}
	})
	if over, token := r.paths[c.Over], p.peerToken; over != nil && token != 0 {
		n.spawn(func() { over.sendDrop(token) })
	}
	r.changed.Broadcast()
}

// standby gets a relayed path beside the direct ones.
func (r *remote) standby() {
	n := r.set.n
	if err := r.reachByRelay(n.ctx); err != nil {
		n.log.Debug("no relayed path beside the direct one", "peer", r.name(), "err", err)
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.tell(ladder.StandbyDone{})
}

// attempt punches once.
func (r *remote) attempt(via *path, a ladder.Punch) {
	n := r.set.n
	err := r.punch.Coordinate(n.ctx, via.conn, via.describe().RTT, a)
	if err != nil {
		n.log.Debug("punch", "peer", r.name(), "attempt", a.Attempt, "err", err)
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.tell(ladder.Punched{})
}

// welcome takes back a refusal that has ended. The caller holds mu.
func (r *remote) welcome() {
	if r.m.State() == ladder.Gone {
		r.tell(ladder.Admit{})
	}
}

// LetGo disconnects from a peer that the owner of its streams has no more use
// for, unless somebody else, a ping, is just using it. Whoever has a packet for it
// connects again. It does not block.
func (n *Node) LetGo(p peer.ID) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if r := n.peers.m[p]; r != nil && !r.needed() {
		r.tell(ladder.LetGo{})
		r.changed.Broadcast()
	}
}

// needed says whether the peer stays connected although nobody talks to it: one is
// the other's relay.
func (r *remote) needed() bool { return r.set.n.relays.Wants(r.id) || r.set.n.serves(r.id) }
