package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/who/identity"
)

// errAnswer is the relay's answer that is none.
var errAnswer = errors.New("malformed answer of the relay")

// Open opens a channel to a peer at the relay that a QUIC connection leads to, in one round trip. spawn runs a goroutine that
// the caller waits for. The error wraps mss.ErrNotSupported when the relay knows no channels.
func Open(ctx context.Context, relay network.Conn, to peer.ID, spawn func(func()) bool) (*packet.Channel, error) {
	var q *quic.Conn
	if !relay.As(&q) {
		return nil, fmt.Errorf("%s is no QUIC connection", relay.RemoteMultiaddr())
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	st, err := conns.Begin(ctx, relay, identity.ChannelProtocol)
	if err != nil {
		return nil, err
	}
	number, err := request(ctx, st, to)
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	if err == nil && !spawn(func() {
		defer end()
		_, _ = st.Read(make([]byte, 1)) // until it ends
		_ = st.Reset()
	}) {
		err = context.Canceled
	}
	if err != nil {
		end()
		_ = st.Reset()
		return nil, fmt.Errorf("open a channel at the relay: %w", err)
	}
	return &packet.Channel{Over: q, Number: number, Ctx: live, Close: func() { end(); _ = st.SetDeadline(time.Unix(1, 0)) }}, nil
}

// request requests a channel on a stream.
func request(ctx context.Context, st network.Stream, to peer.ID) (number uint32, err error) {
	defer context.AfterFunc(ctx, func() { _ = st.SetDeadline(time.Unix(1, 0)) })()
	var answer [answerLen]byte
	if _, err = st.Write(append([]byte{version, byte(len(to))}, to...)); err == nil {
		_, err = io.ReadFull(st, answer[:])
	}
	if reset := (*network.StreamError)(nil); errors.As(err, &reset) && reset.ErrorCode == network.StreamProtocolNegotiationFailed {
		return 0, mss.ErrNotSupported[protocol.ID]{Protos: []protocol.ID{identity.ChannelProtocol}}
	}
	if err != nil {
		return 0, err
	}
	return parseAnswer(answer)
}

// parseAnswer reads what the relay says.
func parseAnswer(b [answerLen]byte) (number uint32, err error) {
	number = binary.BigEndian.Uint32(b[2:])
	switch why := outcome(b[1]); {
	case b[0] != version || number > packet.MaxChannel:
		return 0, errAnswer
	case why != opened:
		return 0, errors.New(why.String())
	}
	return number, nil
}
