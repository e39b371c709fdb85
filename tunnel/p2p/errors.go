package p2p

import (
	"edgemesh/internal/cause"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/path/reach"
)

// Cause is why there is no path to a peer, by the error of what was to take it.
func Cause(err error) cause.Cause { return reach.Cause(err) }

var (
	// ErrUnreachable means that no path to the peer could be made.
	ErrUnreachable = peers.ErrUnreachable
	// ErrClosed means that the node was closed.
	ErrClosed = dialer.ErrClosed
	// ErrListen means that an address of Config.Listen cannot be listened on.
	ErrListen = dialer.ErrListen
)
