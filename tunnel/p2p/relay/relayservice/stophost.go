package relayservice

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// stopHost chooses the connection on which a circuit reaches its far end. A
// member keeps a TCP and a QUIC connection to its relay; the swarm would take
// whichever has more streams, TCP is the faster one (2.2 against 1.2 Gbit/s)
// and BBR bears loss.
type stopHost struct {
	host.Host
	standsBy func(network.Conn) bool // for another machine with its key
}

// stopStagger is how long a connection has to answer before the next one is tried
// beside it: one that died unseen must not keep a circuit from its end.
const stopStagger = 400 * time.Millisecond

// NewStream opens a stream on the best connection that answers; it does not dial,
// as circuit relay never does.
func (h stopHost) NewStream(ctx context.Context, p peer.ID, pids ...protocol.ID) (network.Stream, error) {
	ends := h.Network().ConnsToPeer(p)
	slices.Reverse(ends) // newest first: an older one may belong to an address the member has lost
	slices.SortStableFunc(ends, func(a, b network.Conn) int { return cmp.Compare(rank(a), rank(b)) })
	ends = slices.DeleteFunc(ends, func(c network.Conn) bool {
		return c.IsClosed() || endpoint.IsCircuit(c.RemoteMultiaddr()) || h.standsBy(c)
	})
	if len(ends) == 0 || len(pids) != 1 {
		return nil, network.ErrNoConn
	}
	if len(ends) == 1 { // if it has died, no other one would answer; the slot is free once nobody has
		return conns.Impatient(conns.Begin(ctx, ends[0], pids[0]))
	}
	return conns.Tries[network.Stream]{
		N: len(ends), Stagger: stopStagger,
		Try: func(ctx context.Context, i int, _ func()) (network.Stream, error) {
			return conns.Open(ctx, ends[i], pids[0])
		},
		Drop:  func(s network.Stream) { _ = s.Reset() },
		Spawn: func(f func()) bool { go f(); return true }, // ends with ctx
	}.First(ctx)
}

func rank(c network.Conn) int {
	if _, err := c.RemoteMultiaddr().ValueForProtocol(ma.P_TCP); err == nil {
		return 0
	}
	return 1
}
