// Package epoch keeps the carriers of one lane in order, on both ends. A lane moves from carrier to carrier while packets
// flow; each carrier has an epoch, and says in its HELLO which one it follows. Both machines are pure: no I/O, no clock, no
// goroutine, no lock.
//
//	sender.go    which carrier a lane sends on, and when it opens, leaves or ends one
//	receiver.go  which carrier's frames have to wait for the end of the one before
//
// The states of the sending side, and the orders that lead from one to the other:
//
//	              Open                 Switch
//	no carrier ──────────▶ connecting ────────▶ up ◀─────────────────┐
//	  ▲  ▲                                      │ │ Open: better path │ Switch
//	  │  └──────────── Finish: idle ────────────┘ └────▶ moving ──────┘
//	  └─────── Abandon: path lost, Write failed or stuck ──┘
package epoch

import (
	"math"
	"time"
)

// Time is the time since some moment before the machine was made.
type Time = time.Duration

// Never is later than everything.
const Never Time = math.MaxInt64

// Carrier is what a HELLO says of a carrier.
type Carrier struct {
	Nonce uint64 // random per sending process: epochs of another one do not compare
	Epoch uint64 // counts the carriers of one lane, from 1
	After uint64 // the epoch whose frames come before the ones here; 0: none
}
