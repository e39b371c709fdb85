package packet

import "edgemesh/tunnel/p2p/carrier/flight"

// Lanes are what sealed packets with repair carry to and from one peer. The calls come with a lock of this package held, one after the
// other: they must not block, nor call back.
type Lanes interface {
	// Up says that packets can be sent: wake is to be called when something begins to wait. It may be called at any time, with any lock held.
	Up(wake func())
	// Waits, Take and TakeDatagram are a flight.Source. Rate is what the path carries, in bytes per second; now is later than any before.
	Waits() (stream, datagram bool)
	Take(line Line) (f flight.Frame, bucket int)
	TakeDatagram(line Line, room int) []byte
	// Down says that nothing can be sent until Up is called again. Left are the frames that the peer may not have whole, in the order of
	// each bucket; they are the caller's again.
	Down(left []flight.Frame)

	// Carries reports whether packets are taken, now that they can be: the lanes may have a better carrier. It may be called at any time.
	Carries() bool

	// Stream, Restart and Datagram are a flight.Sink; Flush says that no more came with those before.
	flight.Sink
	Flush()
	// Close is the last call; Down came before, if Up did.
	Close()
}

// datagramHeader is what package flight puts before a datagram, bytes.
const datagramHeader = 3

// Line is what a path is known to be like.
type Line struct {
	RTT   float64 // seconds; 0: unknown
	Least float64 // the same without a queue
	Rate  float64 // bytes per second
	Room  int     // the longest datagram, bytes
	Loss  float64 // share of the packets, without a queue
	Grows bool    // its rate is being learnt
	Full  bool    // a queue or losses have shown what it carries
	Path  Path    // which it is
}
