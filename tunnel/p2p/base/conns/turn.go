package conns

import (
	"context"
	"time"
)

// TurnLatest is how long a relay may leave a connection that it has accepted without an answer: it lets it wait for 12 s
// at most (package gate).
const TurnLatest = 16 * time.Second

// turnKey marks the context of a dial that may wait for its turn.
type turnKey struct{}

// WithTurn has a dial over TCP wait longer for a relay that has accepted the connection and not begun the handshake: of
// many that come at the same time it takes a few at a time. accepted is called once it has accepted.
func WithTurn(ctx context.Context, accepted func()) context.Context {
	return context.WithValue(ctx, turnKey{}, accepted)
}

// Turn returns what WithTurn was given, and whether ctx is one of its contexts.
func Turn(ctx context.Context) (accepted func(), ok bool) {
	accepted, ok = ctx.Value(turnKey{}).(func())
	return accepted, ok
}
