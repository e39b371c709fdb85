package conns

import (
	"context"
	"errors"
	"time"
)

// arrival bounds the wait for a connection that was dialed to be taken in.
const arrival = time.Second

// ErrRefused: the far end ended a connection that had just been dialed.
var ErrRefused = errors.New("refused after the handshake")

// Arrived waits until a connection that was dialed is there for the rest of the node: dialing ends before the far end has
// judged who dials. await waits until its second argument returns true. The error is ErrRefused, or that of ctx.
func Arrived(ctx context.Context, await func(context.Context, func() bool) error, there func() bool) error {
	soon, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	if await(soon, there) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrRefused
}
