package p2p

import (
	"errors"

	"edgemesh/tunnel/p2p/dialer"
)

var (
	// ErrUnreachable means that no path to the peer could be made.
	ErrUnreachable = errors.New("peer is unreachable")
	// ErrClosed means that the node was closed.
	ErrClosed = dialer.ErrClosed
	// ErrListen means that an address of Config.Listen cannot be listened on.
	ErrListen = dialer.ErrListen
)
