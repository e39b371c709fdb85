package relayservice

import (
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
	}
	if c.next != nil {
		c.next.ReservationAllowed(renewal)
	}
}

func (c *counter) ReservationClosed(n int) {
	c.reservations.Add(-int64(n))
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
