package lan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"edgemesh/agent/lan/decide"
)

// exchangeTime bounds one exchange of offers.
const exchangeTime = 5 * time.Second

// Stream is a stream to or from a member, authenticated and encrypted.
type Stream interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	// CloseWrite ends the stream in order. Nothing more can be read here.
	CloseWrite() error
	Reset()
}

// confirm is what the initiator sends at the end, if the exchange still counts: the
// peer's own may have overtaken it.
const confirm = 1

// offerOn sends our offer on a stream of ours, and gives the peer's to take, which reports whether the exchange counts.
// After decide.ErrUnconfirmed the peer may not have our offer in force.
func offerOn(ctx context.Context, st Stream, us decide.Offer, take func(them decide.Offer) bool) error {
	defer st.Reset()
	stop := context.AfterFunc(ctx, st.Reset)
	defer stop()
	if err := decide.WriteOffer(st, us); err != nil {
		return err
	}
	them, err := decide.ReadOffer(st)
	if err != nil {
		return err
	}
	if !take(them) { // not a member any longer, or the peer's exchange counts
		return nil
	}
	if _, err := st.Write([]byte{confirm}); err != nil {
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	}
	switch _, err := st.Read(make([]byte, 1)); { // the peer ends its side when it has taken ours
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return fmt.Errorf("%w: the peer keeps sending", decide.ErrUnconfirmed)
	default:
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	}
}

// answerOn sends our offer on a stream of the peer's, and returns once the peer has confirmed the exchange.
func answerOn(st Stream, us decide.Offer) error {
	err := decide.WriteOffer(st, us)
	if err == nil {
		_, err = io.ReadFull(st, make([]byte, 1))
	}
	return err
}
