// Package conns has what several packages do with libp2p's connections: open a stream on exactly one of them
// (open.go), try several one after the other (first.go), and wait for a relay where others come first (turn.go).
package conns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"
)

// ErrRefused: the far end ended a connection that had just been dialed. Dialing ends before the far end has judged who dials.
var ErrRefused = errors.New("refused after the handshake")

// Open opens and negotiates a stream on c, within ctx; the host's own NewStream would choose the connection itself.
// The error wraps mss.ErrNotSupported when the peer does not serve proto.
func Open(ctx context.Context, c network.Conn, proto protocol.ID) (network.Stream, error) {
	s, err := c.NewStream(network.WithAllowLimitedConn(ctx, "edgemesh"))
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	abort := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	err = s.SetProtocol(proto)
	if err == nil {
		err = mss.SelectProtoOrFail(proto, s)
	}
	if !abort() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = s.SetDeadline(time.Unix(1, 0))
		_ = s.Reset()
		return nil, fmt.Errorf("negotiate %s: %w", proto, err)
	}
	return s, nil
}
