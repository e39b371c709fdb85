package herd

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/libp2p/go-libp2p/core/peer"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
)

// Circuit opens a circuit to another member, has a few bytes come back through it, calls open, and ends it when done is
// closed.
func (m *Member) Circuit(ctx context.Context, to peer.ID, open func(), done <-chan struct{}) error {
	l := m.tcp()
	if l == nil {
		return errLost
	}
	s, err := l.talk(ctx, proto.ProtoIDv2Hop)
	if err != nil {
		return err
	}
	defer s.reset()
	msg := pbv2.HopMessage{Type: pbv2.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(peer.AddrInfo{ID: to})}
	if err := util.NewDelimitedWriter(s).WriteMsg(&msg); err != nil {
		return err
	}
	if err := ok(s, &msg); err != nil {
		return err
	}
	said, heard := []byte("are you there?"), make([]byte, 14)
	if _, err := s.Write(said); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, heard); err != nil {
		return err
	}
	if !bytes.Equal(said, heard) {
		return errors.New("what came back is not what was sent")
	}
	open()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return nil
}
