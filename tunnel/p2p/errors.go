package p2p

import "errors"

var (
	// ErrUnreachable means that no path to the peer could be made.
	ErrUnreachable = errors.New("peer is unreachable")
	// ErrClosed means that the node was closed.
	ErrClosed = errors.New("node is closed")
	// ErrListen means that an address of Config.Listen cannot be listened on.
	ErrListen = errors.New("cannot listen")
)
