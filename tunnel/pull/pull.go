// Package pull is what the tunnel's queues and an underlay agree on that takes packets when they may leave.
package pull

import "time"

// Buckets is how many flows of a lane are kept apart, each with an order of its own, a power of two.
const Buckets = 128

// Frame is one that was taken, and leaves in a bucket. It is kept until the peer has it.
type Frame interface {
	// Bytes are the whole frame, the same each time and not empty.
	Bytes() []byte
	// Done is called once, when the frame is not needed any longer.
	Done()
}

// Line is what a path is known to be like.
type Line struct {
	RTT   float64 // seconds; 0: unknown
	Least float64 // the same without a queue
	Rate  float64 // bytes per second
	Room  int     // the longest datagram, bytes
	Loss  float64 // share of the packets, without a queue
	Grows bool    // its rate is being learnt: that packets wait is no fault of their flow
	Full  bool    // a queue or losses have shown what it carries
	Path  Waiter  // is told how long packets wait; nil: nobody is
}

// cleanLoss is the share of packets below which a path counts as one that loses none.
const cleanLoss = 0.0005

// Clean says that it loses nothing, and has shown what it carries.
func (l Line) Clean() bool { return l.Loss < cleanLoss && l.Full }

// Waiter is told now and then how long a packet has waited that is sent now.
type Waiter interface{ Waited(d time.Duration) }
