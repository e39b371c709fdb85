package tunnel

import "errors"

var (
	// ErrClosed is returned once the tunnel was closed.
	ErrClosed = errors.New("tunnel closed")
	// ErrUnknownPeer means that no route leads to the peer: nothing is taken from it.
	ErrUnknownPeer = errors.New("peer has no route")
	// ErrBadLane means a lane that does not exist, or a HELLO for another lane
	// than the one its stream was opened for.
	ErrBadLane = errors.New("bad lane")
	// ErrVersion means that the peer speaks another version of the frame format.
	ErrVersion = errors.New("unknown tunnel version")
	// ErrMalformed means that a stream was given up: its framing is broken, or
	// the peer sent too many frames that no correct sender sends and is in quarantine for it.
	ErrMalformed = errors.New("malformed frames")
)
