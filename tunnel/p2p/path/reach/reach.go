// Package reach finds a first path to a peer: through relays and, at the same time, at its
// last addresses and on the local network; if all of that fails, at addresses from the DHT.
//
//	reach.go     a round of attempts, in all those ways
//	search.go    what is remembered of finding one peer, and what is needed of the node
//	circuits.go  circuits through relays, and better ones
//	lan.go       the local network
//	dht.go       the DHT
package reach

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/targets"
)

const (
	// roundTimeout bounds one round of attempts to reach a peer.
	roundTimeout = 10 * time.Second
	// directTimeout bounds the direct dials of a round: failing ones must not delay the
	// next round, in which a relay may know better.
	directTimeout = 4 * time.Second
	// acceptTime is how long direct dials continue beside another path. The peer may have accepted one whose end here is not told to it:
	// it would send into that until a reset answers.
	acceptTime = 500 * time.Millisecond
	// relayAgain is the pause until relays are tried again in a round.
	relayAgain = 400 * time.Millisecond
)

// Connect makes one round of attempts. It returns nil as soon as there is a path. While other ways than relays may still
// lead to one, relays are tried again: this node may just have reached one, or the peer may.
func (s *Search) Connect(ctx context.Context) error {
	dctx, dcancel := context.WithTimeout(ctx, directTimeout)
	defer time.AfterFunc(acceptTime, dcancel)
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	direct := s.dialDirect(dctx)
	err := s.ByRelay(ctx)
	if err == nil || s.peer.Connected() {
		return nil
	}
	var derr error
	ended := make(chan struct{})
	if !s.Spawn(func() { defer close(ended); derr = s.byDHT(ctx); direct.Wait() }) {
		return dialer.ErrClosed
	}
	for {
		select {
		case <-ended:
			if derr == nil || s.peer.Connected() {
				return nil
			}
			return wording.Join(err, derr)
		case <-time.After(relayAgain):
		}
		if err = s.ByRelay(ctx); err == nil || s.peer.Connected() {
			return nil
		}
	}
}

// dialDirect dials, in goroutines that the group waits for, the addresses where the peer was
// last and where it answers on the local network.
func (s *Search) dialDirect(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	beside := func(f func()) {
		wg.Add(1)
		if !s.Spawn(func() { defer wg.Done(); f() }) {
			wg.Done()
		}
	}
	beside(func() { // what LAN probes have proved may take a moment to read, and a circuit does not wait for it
		known := s.places.Known()
		slices.SortStableFunc(known, func(a, b endpoint.Endpoint) int { return cmp.Compare(s.distance(a), s.distance(b)) })
		for _, e := range known {
			if !s.places.Worth(e) {
				continue
			}
			most, err := s.Targets.Take(s.peer.ID(), e, targets.LastBudget)
			if err != nil {
				s.Log.Debug("not dialed where the peer was last", "peer", s.peer.Name(), "at", e, "why", err)
				continue
			}
			beside(func() {
				if err := s.dial(ctx, e, most); err != nil {
					s.places.NoteStranger(e, err)
					s.Log.Debug("dial where the peer was last", "peer", s.peer.Name(), "at", e, "err", err)
				}
			})
		}
	})
	if s.LAN != nil {
		beside(func() { s.onLAN(ctx) })
	}
	if slices.ContainsFunc(s.Relays.Infos(), func(r peer.AddrInfo) bool { return r.ID == s.peer.ID() }) { // a member may be a relay
		beside(func() { s.Relays.Visit(ctx, s.peer.ID()) })
	}
	return &wg
}

// distance orders addresses: those in this node's own networks first, since they cost the least and work without relays.
func (s *Search) distance(e endpoint.Endpoint) int {
	if s.Addrs.Near(e.Addr.Addr()) {
		return 0
	}
	return 1
}
