package main

import (
	"cmp"
	"context"
	"errors"
	"slices"

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

// NewStream opens a stream on the best connection there is; it does not dial,
// as circuit relay never does.
func (h stopHost) NewStream(ctx context.Context, p peer.ID, pids ...protocol.ID) (network.Stream, error) {
	conns := h.Network().ConnsToPeer(p)
	slices.Reverse(conns) // newest first: an older one may belong to an address the member has lost
	slices.SortStableFunc(conns, func(a, b network.Conn) int { return cmp.Compare(rank(a), rank(b)) })
	var err error = network.ErrNoConn
	for _, c := range conns {
		if c.IsClosed() || len(pids) != 1 {
			continue
		}
		s, e := openOn(ctx, c, pids[0])
		if e == nil {
			return s, nil
		}
		err = errors.Join(err, e)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
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
