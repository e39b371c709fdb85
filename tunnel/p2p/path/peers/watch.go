package peers

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
)

// runWatch makes the machine look until there is nothing to wait for.
func (p *Peer) runWatch() {
	watch := &p.state.watch
	for {
		p.mu.Lock()
		next := p.state.nextLook()
		if next == ladder.Never || p.t.Ctx.Err() != nil {
			watch.running = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-watch.replan:
			continue
		case <-watch.now:
		case <-time.After(next - p.t.Now()):
		case <-p.t.Ctx.Done():
		}
		p.look()
	}
}

// Wake makes the machine look now: a quiet path carries data. It takes no lock.
func (p *Peer) Wake() {
	p.state.watch.now.Wake()
	p.t.Carried.Wake()
}

// look passes what is known of the paths to the machine.
func (p *Peer) look() {
	overTCP := p.t.Relays.OverTCP()
	kept := p.t.kept(p.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	narrow := p.state.judgeMTU()
	p.state.apply(ladder.Wake{Samples: p.state.samples(overTCP), Kept: kept, Thrifty: p.t.Metered()})
	for _, id := range narrow {
		p.state.apply(ladder.Broken{Path: id, Why: "takes smaller packets than before"})
	}
}

// Narrowed records that an MTU black hole was found on a path.
func (p *Peer) Narrowed(x ladder.PathID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.watch.blackHole = time.Now()
	p.state.confirmSizes(x)
	p.Wake()
}

// samples are what is known of the paths; overTCP are the relays with a TCP connection.
func (s *state) samples(overTCP map[peer.ID]bool) []ladder.Sample {
	var out []ladder.Sample
	for id, x := range s.paths {
		sample := ladder.Sample{Path: id, Moved: x.Sample(), Heard: time.Since(x.HeardAt()), Sent: time.Since(x.SentAt()),
			RTT: x.Probes.RTT(), Carrier: ladder.Never, Sealed: x.Sealed()}
		sample.Streams, sample.Lanes = x.Streams()
		if at := x.CarrierHeard(); !at.IsZero() {
			sample.Carrier = time.Since(at)
		}
		if x.Relayed() {
			sample.Order, sample.Poor = s.search.Order(x.Relay), x.OverUDP() && overTCP[x.Relay]
		}
		out = append(out, sample)
	}
	return out
}

// judgeMTU returns the paths in an MTU black hole, and looks at suspects again soon.
func (s *state) judgeMTU() (narrow []ladder.PathID) {
	s.watch.again = 0
	for id, x := range s.paths {
		v, found := x.MTU(time.Since(s.watch.blackHole) < paths.BlackHoleFresh)
		if found {
			s.watch.blackHole = time.Now()
		}
		switch v {
		case paths.BlackHole:
			narrow = append(narrow, id)
		case paths.Suspect:
			s.confirmSizes(id)
			s.watch.again = s.Now() + paths.SuspectAgain
		}
	}
	return narrow
}

// confirmSizes confirms the sizes of datagrams on other paths than one: what has made one
// smaller has often made all smaller.
func (s *state) confirmSizes(x ladder.PathID) {
	for id, other := range s.paths {
		if id != x {
			other.ConfirmSize()
		}
	}
}
