package relayservice

import (
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
)

// counter counts for the ACL, and passes everything on.
type counter struct {
	circuits     atomic.Int64
	reservations atomic.Int64
	next         relayv2.MetricsTracer // may be nil
	collect      func(percent int) int // sets Go's collector and returns what was set before; nil: the operator has set it
	mu           sync.Mutex            // guards tight and before, and the calls of collect
	tight        bool
	before       int // what the collector was set to
}

// From manyReservations on the collector lets the heap grow by tightPercent only, and as before once there are
// fewReservations: what connections hold is then hundreds of megabytes, of which idle members make little garbage. On a
// small heap that would cost more than it gives.
const (
	manyReservations, fewReservations = 1000, 500
	tightPercent                      = 30
)

// setCollector is how a process sets Go's collector, nil where $GOGC does.
func setCollector() func(int) int {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return debug.SetGCPercent
}

// weigh follows the number of reservations.
func (c *counter) weigh() {
	if c.collect == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := c.Reservations(); {
	case !c.tight && n >= manyReservations:
		c.tight = true
		c.before = c.collect(tightPercent)
	case c.tight && n <= fewReservations:
		c.tight = false
		c.collect(c.before)
	}
}

var _ relayv2.MetricsTracer = (*counter)(nil)

// Circuits is how many circuits are open now, Reservations how many are held.
func (c *counter) Circuits() int     { return int(c.circuits.Load()) }
func (c *counter) Reservations() int { return int(c.reservations.Load()) }

func (c *counter) RelayStatus(enabled bool) {
	if c.next != nil {
		c.next.RelayStatus(enabled)
	}
}

func (c *counter) ConnectionOpened() {
	c.circuits.Add(1)
	if c.next != nil {
		c.next.ConnectionOpened()
	}
}

func (c *counter) ConnectionClosed(d time.Duration) {
	c.circuits.Add(-1)
	if c.next != nil {
		c.next.ConnectionClosed(d)
	}
}

func (c *counter) ConnectionRequestHandled(s pbv2.Status) {
	if c.next != nil {
		c.next.ConnectionRequestHandled(s)
	}
}

func (c *counter) ReservationAllowed(renewal bool) {
	if !renewal {
		c.reservations.Add(1)
		c.weigh()
	}
	if c.next != nil {
		c.next.ReservationAllowed(renewal)
	}
}

func (c *counter) ReservationClosed(n int) {
	c.reservations.Add(-int64(n))
	c.weigh()
	if c.next != nil {
		c.next.ReservationClosed(n)
	}
}

func (c *counter) ReservationRequestHandled(s pbv2.Status) {
	if c.next != nil {
		c.next.ReservationRequestHandled(s)
	}
}

func (c *counter) BytesTransferred(n int) {
	if c.next != nil {
		c.next.BytesTransferred(n)
	}
}
