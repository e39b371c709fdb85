package packet

import (
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/pull"
)

// Lanes are what sealed packets carry to and from one peer. The calls come with a lock of this package held, one after the
// other: they must not block, nor call back.
type Lanes interface {
	// Up says that packets can be sent, or unless all is set datagrams only: wake is to be called when something begins to wait. It may
	// be called at any time, with any lock held.
	Up(wake func(), all bool)
	// Waits, Take and TakeDatagram are a flight.Source, with what is known of the path that carries.
	Waits() (stream, datagram bool)
	Take(line pull.Line) (f pull.Frame, bucket int)
	TakeDatagram(line pull.Line, room int) []byte
	// Down says that nothing can be sent until Up is called again. Left are the frames that the peer may not have whole, in the order of
	// each bucket; they are the caller's again.
	Down(left []pull.Frame)

	// Carries reports whether frames are taken, now that they can be: the lanes may have a better carrier. It may be called at any time.
	Carries() bool

	// Stream, Restart and Datagram are a flight.Sink; Flush says that no more came with those before.
	flight.Sink
	Flush()
	// Close is the last call; Down came before, if Up did.
	Close()
}

// datagramHeader is what package flight puts before a datagram, bytes.
const datagramHeader = 3
