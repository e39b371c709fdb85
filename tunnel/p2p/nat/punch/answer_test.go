package punch

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/targets"
)

// wanting is a peer without direct paths.
type wanting struct{ silent }

func (wanting) Wanted() []ladder.Transport { return []ladder.Transport{ladder.TCP, ladder.QUIC} }

// noted is a Dialer that notes when it dials, and what this host is.
type noted struct {
	Dialer
	Addrs
	Sense
	at chan time.Time
}

func (noted) Local() []endpoint.Endpoint               { return nil }
func (noted) Dialable(endpoint.Endpoint) bool          { return true }
func (noted) ReachesIPv6(endpoint.Endpoint) bool       { return false }
func (noted) Near(a netip.Addr) bool                   { return false }
func (noted) Owns(a netip.Addr) bool                   { return false }
func (noted) View() sense.View                         { return sense.View{Kind: ladder.NATStable} }
func (noted) Predict(context.Context) []netip.AddrPort { return nil }
func (noted) ListenAddrs() []ma.Multiaddr              { return nil }
func (d noted) Dial(context.Context, ma.Multiaddr, peer.ID) error {
	d.at <- time.Now()
	return net.ErrClosed
}

// piped is a stream.
type piped struct {
	network.Stream
	end net.Conn
}

func (p piped) Read(b []byte) (int, error)    { return p.end.Read(b) }
func (p piped) Write(b []byte) (int, error)   { return p.end.Write(b) }
func (p piped) SetDeadline(t time.Time) error { return p.end.SetDeadline(t) }
func (p piped) Reset() error                  { return p.end.Close() }

// The answerer takes the round trip from its probes: the coordinator's sync waits for relays. And it queries relays once more
// about an address that none of them saw before the offer.
func TestAnswer(t *testing.T) {
	const late, rtt = 600 * time.Millisecond, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := endpoints([]string{"/ip4/5.5.2.1/udp/40007/quic-v1"}, 1)
		var queries atomic.Int32
		host := noted{at: make(chan time.Time, 9)}
		guard := targets.New(targets.Config{Near: host.Near, Public: endpoint.IsPublic, Log: slog.New(slog.DiscardHandler), Name: func(peer.ID) string { return "peer" },
			Now: func() time.Duration { return time.Since(start) },
			Witness: func(context.Context, peer.ID) [][]endpoint.Endpoint {
				if queries.Add(1) == 1 {
					return nil
				}
				return [][]endpoint.Endpoint{at}
			}})
		u := New(Config{Dialer: host, Addrs: host, Sense: host, Targets: guard, Ctx: t.Context(), Log: slog.New(slog.DiscardHandler),
			Seen: func() ([]endpoint.Endpoint, bool) { return nil, false }, Mapped: func() []endpoint.Endpoint { return nil },
			ViaNAT64: func(context.Context) bool { return false },
			Spawn:    func(f func()) bool { go f(); return true }, Now: func() ladder.Time { return time.Since(start) }})
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			u.With(wanting{}, nil).Answer(t.Context(), piped{end: here}, rtt)
		}()
		if err := writeOffer(there, offer{Addrs: []string{at[0].Multiaddr().String()}, Want: []string{"tcp", "quic"}, Turn: turnCoordinator}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readOffer(there); err != nil {
			t.Fatal(err)
		}
		time.Sleep(late)
		synced := time.Now()
		if _, err := there.Write([]byte{'\n'}); err != nil {
			t.Fatal(err)
		}
		if waited := (<-host.at).Sub(synced); waited != max(serverDelay, 2*rtt) {
			t.Errorf("dialed %v after the sync, with a round trip of %v", waited, rtt)
		}
		<-done
		if n := queries.Load(); n != 2 || guard.Spent() > 0 {
			t.Errorf("%d queries of relays, %d packets of a stranger's budget", n, guard.Spent())
		}
	})
}
