package conns

import (
	"context"
	"errors"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-yamux/v5"
	"github.com/quic-go/quic-go"
)

// Inside is the code of a connection that was ended because it came from an address of the pod network, so it would be a tunnel inside the
// tunnel. Like libp2p's own codes (core/network) it is sent to the other end.
const Inside network.ConnErrorCode = 0xed01

// ErrInside is what the other end says by Inside.
var ErrInside = errors.New("the other end refuses connections from addresses of the pod network; check podCIDRs: this node's own addresses must not be in them")

// End ends a connection that the swarm does not have yet, and tells the other end why.
func End(c network.Conn, why network.ConnErrorCode) {
	var s *yamux.Session
	var q *quic.Conn
	switch {
	case c.As(&s):
		_ = s.CloseWithError(uint32(why))
	case c.As(&q):
		_ = q.CloseWithError(quic.ApplicationErrorCode(why), "")
	}
}

// Told is what the other end gave as the reason when it ended c; nil: none of ours. c has ended.
func Told(c network.Conn) error {
	s, err := c.NewStream(context.Background())
	if err == nil { // it has not ended
		_ = s.Reset()
	}
	if why := (*network.ConnError)(nil); errors.As(err, &why) && why.Remote && why.ErrorCode == Inside {
		return ErrInside
	}
	return nil
}
