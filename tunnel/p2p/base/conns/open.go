// Package conns has what several packages do with libp2p's connections: open a stream on exactly one of them
// (open.go) and give it up if it is not answered (patience.go), try several one after the other (first.go), and wait for a relay where
// others come first (turn.go).
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
	s, err := open(ctx, c, proto)
	if err != nil {
		return nil, err
	}
	abort := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	err = mss.SelectProtoOrFail(proto, s)
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

func open(ctx context.Context, c network.Conn, proto protocol.ID) (network.Stream, error) {
	s, err := c.NewStream(network.WithAllowLimitedConn(ctx, "edgemesh"))
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	if err := s.SetProtocol(proto); err != nil {
		_ = s.Reset()
		return nil, fmt.Errorf("open stream for %s: %w", proto, err)
	}
	return s, nil
}

// Begin is Open without the round trip: proto is requested with the first data that are written, and that the peer does not serve it
// is the error of the first Read.
func Begin(ctx context.Context, c network.Conn, proto protocol.ID) (network.Stream, error) {
	s, err := open(ctx, c, proto)
	if err != nil {
		return nil, err
	}
	return begun{s, mss.NewMSSelect(s, proto)}, nil
}

// begun is a stream that is negotiated with its first data.
type begun struct {
	network.Stream
	lazy mss.LazyConn
}

func (s begun) Read(b []byte) (int, error)  { return s.lazy.Read(b) }  //nolint:wrapcheck // the stream's own
func (s begun) Write(b []byte) (int, error) { return s.lazy.Write(b) } //nolint:wrapcheck // likewise

// Close implements network.Stream: the peer gets to know of a stream on which nothing was written, too.
func (s begun) Close() error {
	_ = s.lazy.Flush()
	return s.Stream.Close() //nolint:wrapcheck // likewise
}
