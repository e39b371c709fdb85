package packet

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/upkeep"
)

// Config is what a Service needs. All of it is required, except Renew, Sealed and Wire.
type Config struct {
	Self peer.ID
	// Control applies the options of an underlay socket before it is bound.
	Control func(network, address string, c syscall.RawConn) error
	// Renew is how long the keys of a path are used; 0: a day.
	Renew time.Duration
	// Spawn runs a function in a goroutine that the owner waits for; false: the owner is closed.
	Spawn func(func()) bool
	// Ending is closed when the whole node ends, just before its connections; nil: never.
	Ending <-chan struct{}
	// Sealed has sockets say when packets arrived, which rates are measured by.
	Sealed bool
	// Memory is what paths hold of all peers together, bytes; 0: 64 MiB.
	Memory int
	Wire   *upkeep.Wire // counts what its sockets send and receive; nil: nobody reads it
	Log    *slog.Logger
}

// node is what paths need of their Service.
type node struct {
	refusals
	cfg    Config
	trains sync.Pool // buffers of paths that are sending
}

// lateTime is how long a node that ends takes packets that were sent before their sender knew: a round trip.
const lateTime = 100 * time.Millisecond

// late keeps a path for these where the node ends.
func (n *node) late() {
	select {
	case <-n.cfg.Ending:
		time.Sleep(lateTime)
	default:
	}
}

// link is the connection that a path is beside.
type link struct {
	*node
	path Path
	ctx  context.Context //nolint:containedctx // ends with the connection
	quic *quic.Conn      // to the peer; nil: a relay is between
	via  *via            // likewise, through the relay; nil: there is none
}
