package upkeep

import (
	"net"
	"sync/atomic"
)

// What UDP and IP add to a datagram, in bytes.
const (
	Header  = 8 + 20
	header6 = 8 + 40
)

// HeaderOf is what a datagram to or from an address has before its payload, in bytes.
func HeaderOf(a *net.UDPAddr) int {
	if a != nil && a.IP.To4() == nil {
		return header6
	}
	return Header
}

// Wire counts the datagrams of sockets that QUIC and sealed packets share, as they leave and arrive, in IP bytes.
type Wire struct{ All, Sealed Tally }

// Tally is a sum in both directions.
type Tally struct{ tx, rx atomic.Uint64 }

// Sent counts bytes that left, Received what arrived.
func (t *Tally) Sent(n int)     { t.tx.Add(uint64(n)) } //nolint:gosec // a length
func (t *Tally) Received(n int) { t.rx.Add(uint64(n)) } //nolint:gosec // a length

// Sums returns both.
func (t *Tally) Sums() (tx, rx uint64) { return t.tx.Load(), t.rx.Load() }

func (t *Tally) bytes() Bytes { return Bytes{t.tx.Load(), t.rx.Load()} }

// plus and less are b and o together, and b without o, at least nothing: counters are read one after the other.
func (b Bytes) plus(o Bytes) Bytes { return Bytes{b.Tx + o.Tx, b.Rx + o.Rx} }
func (b Bytes) less(o Bytes) Bytes { return Bytes{b.Tx - min(b.Tx, o.Tx), b.Rx - min(b.Rx, o.Rx)} }
