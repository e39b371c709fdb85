package ladder

import (
	"math"
	"time"
)

// Time is the time since some moment before the machine was made. It must not go back; a jump ahead, as after the host
// slept, is noticed.
type Time = time.Duration

// Never is later than everything.
const Never Time = math.MaxInt64

// OpenID names a stream that is being opened.
type OpenID uint64

// PathID names a path; never 0.
type PathID uint64

// Transport is what a path runs over.
type Transport uint8

const (
	TCP Transport = iota
	QUIC
)

func (t Transport) String() string {
	if t == QUIC {
		return "quic"
	}
	return "tcp"
}

// Link is what is known of a path from its beginning.
type Link struct {
	Relayed   bool
	Relay     string    // names the relay of a relayed path
	Transport Transport // to the peer, or to the relay
	IPv6      bool      // of a direct path
	Order     int       // see Sample
}

// like reports whether one of the two would do: direct over the same transport, or through the same relay.
func (l Link) like(k Link) bool {
	return l.Relay == k.Relay && (l.Relayed || l.Transport == k.Transport)
}

// PathState is how far a path is to be believed.
type PathState uint8

const (
	// Unproven: no probe has come back yet. Used only where there is no proven one.
	Unproven PathState = iota
	// Proven: the last probes came back.
	Proven
	// Suspected: it was proven, then suspected. Used like an unproven one.
	Suspected
)

func (s PathState) String() string {
	return [...]string{"unproven", "proven", "suspected"}[s]
}

// Lane is a kind of traffic; each has a best path of its own.
type Lane uint8

const (
	// StreamLane carries bulk data: TCP is faster.
	StreamLane Lane = iota
	// DatagramLane prefers QUIC, so that bulk data is not in its way.
	DatagramLane
	lanes = 2
)
