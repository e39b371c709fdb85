package reach

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/keytest"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// world is what surrounds a search: one relay, and a peer whose last address does not answer.
type world struct {
	relay, far peer.ID
	start      time.Time
	relayAt    time.Duration // from then on the relay is connected
	peerAt     time.Duration // from then on it has the peer
	changed    wake.All

	mu       sync.Mutex
	path     bool
	circuits int // asked for
}

func (w *world) since(d time.Duration) bool { return time.Since(w.start) >= d }

func (w *world) Infos() []peer.AddrInfo { return []peer.AddrInfo{{ID: w.relay}} }
func (w *world) Position(peer.ID) int   { return 0 }
func (w *world) AwaitAny(_ context.Context, d time.Duration) {
	time.Sleep(min(d, max(0, time.Until(w.start.Add(w.relayAt))))) // sleep: in a bubble
}
func (w *world) Connect(context.Context, peer.ID) (ma.Multiaddr, error) {
	if !w.since(w.relayAt) {
		return nil, errors.New("the relay is not connected")
	}
	return ma.StringCast("/ip4/192.0.2.1/tcp/443"), nil
}
func (w *world) Visit(context.Context, peer.ID) {}
func (w *world) Suspect(peer.ID)                {}

func (w *world) ID() peer.ID  { return w.far }
func (w *world) Name() string { return "far" }
func (w *world) Connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.path
}
func (w *world) Await(ctx context.Context, done func() bool) error { return w.changed.Until(ctx, done) }

func (w *world) Known() []endpoint.Endpoint {
	return []endpoint.Endpoint{{Addr: netip.MustParseAddrPort("198.51.100.1:4501")}}
}
func (w *world) Worth(endpoint.Endpoint) bool          { return true }
func (w *world) NoteStranger(endpoint.Endpoint, error) {}
func (w *world) Dialable(endpoint.Endpoint) bool       { return true }
func (w *world) Near(netip.Addr) bool                  { return false }
func (w *world) Close() error                          { return nil }
func (w *world) candidates(peer.ID) []choice.Candidate {
	return []choice.Candidate{{Relay: w.relay}}
}

// FindPeer is a DHT whose only server is the relay.
func (w *world) FindPeer(ctx context.Context, _ peer.ID) (peer.AddrInfo, error) {
	if w.since(w.relayAt) {
		return peer.AddrInfo{}, errors.New("not found")
	}
	<-ctx.Done()
	return peer.AddrInfo{}, ctx.Err()
}

func (w *world) Dial(ctx context.Context, a ma.Multiaddr, _ peer.ID) error {
	if !endpoint.IsCircuit(a) {
		<-ctx.Done()
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.circuits++
	if !w.since(w.peerAt) {
		return errors.New("no reservation")
	}
	w.path = true
	w.changed.Broadcast()
	return nil
}

// A relay that is reached, or that has the peer, while other ways still fail slowly, is used immediately.
func TestRoundUsesRelayThatComesBack(t *testing.T) {
	_, far := keytest.New(t)
	_, relay := keytest.New(t)
	for name, x := range map[string]struct {
		relayAt, peerAt time.Duration
		fails           bool
	}{
		"all is there":                     {},
		"relay is back soon":               {relayAt: time.Second, peerAt: time.Second},
		"relay is back later":              {relayAt: relayPatience + 500*time.Millisecond},
		"the peer has lost its relay":      {peerAt: 1500 * time.Millisecond},
		"neither is there for a long time": {relayAt: time.Minute, peerAt: time.Minute, fails: true},
		"the peer is off":                  {peerAt: time.Minute, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{relay: relay, far: far, start: time.Now(), relayAt: x.relayAt, peerAt: x.peerAt}
				log := slog.New(slog.DiscardHandler)
				yes := func(netip.Addr) bool { return true }
				c := Config{Dialer: w, Addrs: w, Relays: w, Candidates: w.candidates, DHT: w, Ctx: t.Context(), Log: log,
					Targets: targets.New(targets.Config{Near: w.Near, Public: yes, Now: func() time.Duration { return time.Since(w.start) }, Log: log}),
					Spawn:   func(f func()) bool { go f(); return true }}
				err := c.With(w, w).Connect(t.Context())
				took := time.Since(w.start)
				if (err != nil) != x.fails {
					t.Fatal(err)
				}
				if most := max(x.relayAt, x.peerAt) + relayAgain; err == nil && took > most {
					t.Errorf("a path after %v, want at most %v", took, most)
				}
				if x.fails && took > roundTimeout {
					t.Errorf("the round took %v", took)
				}
				if most := int(took/relayAgain) + 1; w.circuits > most {
					t.Errorf("%d circuits in %v, want at most %d", w.circuits, took, most)
				}
				synctest.Wait()
			})
		})
	}
}

// What takes long to find out of a peer's last addresses does not keep its circuit waiting.
func TestCircuitDoesNotWaitForAddresses(t *testing.T) {
	_, far := keytest.New(t)
	_, relay := keytest.New(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{relay: relay, far: far, start: time.Now()}
		log := slog.New(slog.DiscardHandler)
		guard := targets.New(targets.Config{Near: w.Near, Public: func(netip.Addr) bool { return true }, Now: func() time.Duration { return time.Since(w.start) }, Log: log})
		guard.SetProved(func(peer.ID) []netip.Addr { time.Sleep(time.Second); return nil })
		c := Config{Dialer: w, Addrs: w, Relays: w, Candidates: w.candidates, DHT: w, Ctx: t.Context(), Log: log, Targets: guard,
			Spawn: func(f func()) bool { go f(); return true }}
		if err := c.With(w, w).Connect(t.Context()); err != nil || time.Since(w.start) > 0 {
			t.Errorf("a path after %v, want it immediately: %v", time.Since(w.start), err)
		}
		time.Sleep(2 * time.Second)
	})
}

// A peer is off where every relay that answers says so: one that gives no circuit for another reason may have it.
func TestAbsent(t *testing.T) {
	_, far := keytest.New(t)
	_, relay := keytest.New(t)
	none, full, dead := dialer.RefusedCircuit(pb.Status_NO_RESERVATION), dialer.RefusedCircuit(pb.Status_RESOURCE_LIMIT_EXCEEDED), errors.New("i/o timeout")
	for _, c := range []struct {
		all  []error
		want bool
	}{{[]error{none}, true}, {[]error{none, dead}, true}, {[]error{none, full}, false}, {[]error{full, none}, false}, {[]error{dead}, false}, {nil, false}} {
		var err error
		for _, said := range c.all {
			log := slog.New(slog.DiscardHandler)
			c := Config{Dialer: says{said}, Relays: &world{relay: relay}, Ctx: t.Context(), Log: log}
			err = errors.Join(err, c.With(&world{far: far}, nil).circuit(t.Context(), relay, func() {}))
		}
		if Absent(err) != c.want {
			t.Errorf("%v: %v, want %v", c.all, Absent(err), c.want)
		}
	}
}

// says is a dialer that fails.
type says struct{ err error }

func (s says) Dial(context.Context, ma.Multiaddr, peer.ID) error { return s.err }
