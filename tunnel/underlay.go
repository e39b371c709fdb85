package tunnel

import (
	"context"
	"time"
)

// PeerID names a peer; the tunnel only compares it.
type PeerID string

// Lane is one of the ways inside the tunnel to one peer. Lanes share nothing, so
// that a lost bulk segment delays neither a ping nor a DNS answer.
type Lane uint8

const (
	// StreamLane carries TCP packets, in order.
	StreamLane Lane = iota
	// DatagramLane carries everything else.
	DatagramLane
	numLanes = 2
)

// Carrier is an ordered, reliable byte stream to one peer over one path, and beside it, where the path has them, single
// datagrams, which may get lost, change their order, but come at most once. It is used in one direction only: each side
// opens the carriers it sends on, and so chooses its own path. The peer's tunnel gets the stream through Tunnel.Receive
// and the datagrams through Tunnel.Datagrams.
type Carrier interface {
	// Write blocks while the path is full. It returns an error once the carrier
	// is reset or its path is gone.
	Write(p []byte) (int, error)
	// CloseWrite ends the carrier in order: what was written is delivered
	// first, then the peer reads io.EOF. It does not block on the network. It is
	// the last call: the carrier frees itself once the peer has closed its end.
	CloseWrite() error
	// Reset abandons the carrier at once and unblocks Write. It may be called at
	// any time, more than once and beside Write.
	Reset()

	// Lost reports whether the path is known to be dead. PathLost leaves the other carriers alone: two lanes to one
	// peer may run on different paths.
	Lost() bool
	// RTT is the path's round trip, 0 while it is unknown. What may stand in a queue before a flow is told to slow
	// down follows it.
	RTT() time.Duration

	// DatagramSize is the longest datagram that passes now, bytes; 0: none.
	DatagramSize() int
	// PutDatagram takes one whose first byte is below 128; b is not kept. After an
	// error the carrier is as good as before. It may block, as Write may.
	PutDatagram(b []byte) error
	// FlushDatagrams sends those put before. An error says that some are lost.
	FlushDatagrams() error
}

// Stream is the receiving end of a carrier.
type Stream interface {
	// Read returns io.EOF after the peer's CloseWrite.
	Read(p []byte) (int, error)
	// Reset abandons the stream and unblocks Read. It may be called at any time, more than once and beside Read.
	Reset()
}

// Underlay finds paths to peers; p2p provides it.
type Underlay interface {
	// Open returns a new carrier for lane over the best path to peer that is
	// known now; it connects first where there is none, which may take until
	// ctx ends. The peer's tunnel gets the other end through Tunnel.Receive.
	Open(ctx context.Context, peer PeerID, lane Lane) (Carrier, error)
}
