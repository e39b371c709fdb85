package p2p

import (
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/path/peers"
)

var (
	// ErrUnreachable means that no path to the peer could be made.
	ErrUnreachable = peers.ErrUnreachable
	// ErrClosed means that the node was closed.
	ErrClosed = dialer.ErrClosed
	// ErrListen means that an address of Config.Listen cannot be listened on.
	ErrListen = dialer.ErrListen
)
