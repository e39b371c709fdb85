package tunnel

import "errors"

var (
	// ErrClosed means that the tunnel was closed.
	ErrClosed = errors.New("tunnel closed")
	// ErrUnknownPeer means that no route leads to the peer: nothing is accepted from it.
	ErrUnknownPeer = errors.New("peer has no route")
	// ErrBadLane means that the lane does not exist, or that the HELLO is for another lane than the stream.
	ErrBadLane = errors.New("bad lane")
	// ErrVersion means that the peer speaks another version of the frame format.
	ErrVersion = errors.New("unknown tunnel version")
	// ErrMalformed means that a stream was given up: its framing is broken, or the peer is in quarantine because it sent
	// too many frames that no correct sender sends.
	ErrMalformed = errors.New("malformed frames")
)
