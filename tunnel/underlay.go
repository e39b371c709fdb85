package tunnel

import (
	"context"
	"log/slog"
	"time"

	"github.com/mr-tron/base58"
)

// PeerID names a peer; the tunnel only compares it.
type PeerID string

// LogValue writes the ID as everybody else does.
func (id PeerID) LogValue() slog.Value { return slog.StringValue(base58.Encode([]byte(id))) }

// Lane is a kind of traffic to one peer. Lanes share nothing, so that a lost bulk segment delays neither a ping nor a DNS
// answer.
type Lane uint8

const (
	// StreamLane carries TCP packets, in order.
	StreamLane Lane = iota
	// DatagramLane carries everything else.
	DatagramLane
	numLanes = 2
)

// Carrier is an ordered, reliable byte stream to one peer over one path. It is used in one direction: each side opens the
// carriers it sends on, and so chooses its own path. The peer's tunnel gets the stream through Tunnel.Receive.
type Carrier interface {
	// Write blocks while the path is full. It returns an error once the carrier is reset or its path is gone.
	Write(p []byte) (int, error)
	// CloseWrite ends the carrier in order: what was written is delivered, then the peer reads io.EOF. It does not
	// block on the network. It is the last call: the carrier frees itself once the peer has closed its end.
	CloseWrite() error
	// Reset abandons the carrier immediately and unblocks Write. It may be called at any time, more than once, and
	// during Write.
	Reset()

	// Lost reports whether the path is known to be dead. It decides which carriers PathLost resets: two lanes to one
	// peer may use different paths.
	Lost() bool
	// RTT is the path's round trip, 0 while it is unknown. The delay that a flow may have in a queue follows it.
	RTT() time.Duration
	// Clean reports whether the path is known neither to lose packets nor to reorder them: nothing that is sent waits for
	// what was sent before it.
	Clean() bool
	// Waited reports how long a packet that is sent now has waited here. These are samples; Waited counts, and must not block.
	Waited(d time.Duration)
}

// Stream is the receiving end of a carrier.
type Stream interface {
	// Read returns io.EOF after the peer's CloseWrite.
	Read(p []byte) (int, error)
	// Reset abandons the stream and unblocks Read. It may be called at any time, more than once, and during Read.
	Reset()
}

// Underlay opens carriers to peers.
type Underlay interface {
	// Open returns a new carrier for lane over the best path to peer that is known now. Without a path it connects
	// first, which may take until ctx ends.
	Open(ctx context.Context, peer PeerID, lane Lane) (Carrier, error)
}
