package relayservice

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
	mss "github.com/multiformats/go-multistream"
)

// stopHost chooses the connection on which a circuit reaches its far end. A
// member keeps a TCP and a QUIC connection to its relay; the swarm would take
// whichever has more streams, TCP is the faster one (2.2 against 1.2 Gbit/s)
// and BBR bears loss.
type stopHost struct{ host.Host }

// stopStagger is how long a connection has to answer before the next one is tried
// beside it: one that died unseen must not keep a circuit from its end.
const stopStagger = 400 * time.Millisecond

// NewStream opens a stream on the best connection that answers; it does not dial,
// as circuit relay never does.
func (h stopHost) NewStream(ctx context.Context, p peer.ID, pids ...protocol.ID) (network.Stream, error) {
	conns := h.Network().ConnsToPeer(p)
	slices.Reverse(conns) // newest first: an older one may belong to an address the member has lost
	slices.SortStableFunc(conns, func(a, b network.Conn) int { return cmp.Compare(rank(a), rank(b)) })
	conns = slices.DeleteFunc(conns, func(c network.Conn) bool { return c.IsClosed() || isCircuit(c) })
	if len(conns) == 0 || len(pids) != 1 {
		return nil, network.ErrNoConn
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return firstStream(ctx, len(conns), func(ctx context.Context, i int) (network.Stream, error) { return openOn(ctx, conns[i], pids[0]) })
}

// firstStream calls open for 0 to n-1, each stopStagger after the one before or as
// soon as that has failed, and returns the first stream.
func firstStream(ctx context.Context, n int, open func(context.Context, int) (network.Stream, error)) (network.Stream, error) {
	type result struct {
		s   network.Stream
		err error
	}
	results := make(chan result)
	done := make(chan struct{})
	defer close(done)
	var errs []error
	for started, running := 0, 0; ; {
		if started < n {
			i := started
			go func() { // ends with ctx at the latest
				s, err := open(ctx, i)
				select {
				case results <- result{s, err}:
				case <-done:
					if err == nil {
						_ = s.Reset()
					}
				}
			}()
			started++
			running++
		}
		if running == 0 {
			return nil, errors.Join(errs...)
		}
		var next <-chan time.Time
		if started < n {
			next = time.After(stopStagger)
		}
		select {
		case r := <-results:
			if r.err == nil {
				return r.s, nil
			}
			errs = append(errs, r.err)
			running--
		case <-next:
		case <-ctx.Done():
			return nil, errors.Join(append(errs, ctx.Err())...)
		}
	}
}

func isCircuit(c network.Conn) bool {
	_, err := c.RemoteMultiaddr().ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}

func rank(c network.Conn) int {
	if _, err := c.RemoteMultiaddr().ValueForProtocol(ma.P_TCP); err == nil {
		return 0
	}
	return 1
}

func openOn(ctx context.Context, c network.Conn, pid protocol.ID) (network.Stream, error) {
	s, err := c.NewStream(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.SetProtocol(pid); err != nil {
		_ = s.Reset()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	err = mss.SelectProtoOrFail(pid, s)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = s.Reset()
		return nil, err
	}
	return s, nil
}
