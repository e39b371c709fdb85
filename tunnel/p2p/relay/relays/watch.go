package relays

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
)

const (
	// watchTick is how often the traffic through relays is looked at while there is some, and restTick otherwise: often enough
	// to notice that the host has slept. That costs nothing on the wire.
	watchTick = 250 * time.Millisecond
	restTick  = 10 * time.Second
	// improveEvery is how often the choice of relay for peers that are in use is looked at.
	improveEvery = time.Second
	// busyFor is how long circuits count as busy after their last byte, and quietFor how long data on them may be unanswered
	// meanwhile until the relay is pinged: by then a probe has followed, within ladder.ProbeBusy, and may be answered.
	busyFor  = 3 * time.Second
	quietFor = ladder.ProbeBusy + 300*time.Millisecond
	// overslept is how late a tick is after which the host has slept, or this process stood still.
	overslept = 15 * time.Second
)

// Start begins to look after relays on h, whose connections to peers are peers', until ctx ends.
func (s *Set) Start(ctx context.Context, h host.Host, peers Peers) error {
	s.ctx, s.host, s.Peers = ctx, h, peers
	sub, err := h.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted))
	if err != nil {
		return fmt.Errorf("subscribe to identification: %w", err)
	}
	s.Spawn(func() { s.Seen.run(ctx, sub) })
	s.Spawn(func() { newWatch(s).run(ctx) })
	return nil
}

// watch decides when relays are pinged. An idle relay is not: what keeps NATs open, and finds a dead connection within two
// minutes, is the kernel's keep-alive over TCP, QUIC's, and the probes of paths where a member is the relay. It is pinged
// immediately when something points to trouble: busy circuits fall silent, a path dies, a circuit is being opened, this
// host's addresses change.
type watch struct {
	set      *Set
	flows    map[peer.ID]flow
	last     time.Duration // of the clock, at the last tick
	improved time.Time     // when the choice of relays for peers was looked at
}

// flow is the traffic through one relay, as it was at the last tick.
type flow struct {
	bytes uint64
	at    time.Time // of the last byte
	since time.Time // data are unanswered, if later than what was heard last
}

func newWatch(s *Set) *watch { return &watch{set: s, flows: make(map[peer.ID]flow), last: s.Now()} }

// run watches until ctx ends. It also chooses relays again when there is a reason, and sends peers what changes.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTimer(watchTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.set.choose:
			w.set.reserve()
			w.set.Reports.sendAll()
			continue
		case <-w.set.Carried:
		case <-tick.C:
		}
		tick.Reset(w.look(time.Now()))
	}
}

// look compares the traffic with that of the last tick, and returns when to do so again.
func (w *watch) look(now time.Time) (again time.Duration) {
	clock := w.set.Now()
	if clock-w.last > overslept {
		w.set.SuspectAll()
	}
	w.last, again = clock, restTick
	w.set.keep.look(now, clock)
	if now.Sub(w.improved) >= improveEvery {
		w.improved = now
		w.set.Peers.Improve(now)
	}
	traffic := w.set.Peers.Traffic()
	for relay, t := range traffic {
		f := w.flows[relay]
		if t.Bytes > f.bytes {
			f.at = now
			if c := w.set.client(relay); c != nil {
				c.demand.visit()
			}
		}
		f.bytes = t.Bytes
		if !f.since.After(t.Heard) { // what came before was answered
			f.since = t.Sent
		}
		w.flows[relay] = f
		if now.Sub(f.at) >= busyFor {
			continue
		}
		again = watchTick
		if f.since.After(t.Heard) && now.Sub(f.since) > quietFor {
			w.set.Suspect(relay)
		}
	}
	for relay := range w.flows {
		if _, ok := traffic[relay]; !ok {
			delete(w.flows, relay)
		}
	}
	return again
}
