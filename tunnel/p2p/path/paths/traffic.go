package paths

import (
	"sync/atomic"
	"time"
)

// traffic counts what a connection carries.
type traffic struct {
	opened  time.Time
	wake    func()        // called when a connection that was quiet carries data
	tx, rx  atomic.Uint64 // bytes moved by streams and datagrams
	heard   atomic.Int64  // when something last arrived: nanoseconds after opened
	own     atomic.Int64  // likewise, by the connection itself
	wrote   atomic.Int64  // when something was last sent, likewise
	quiet   atomic.Bool   // wake is to be called
	sampled atomic.Uint64 // bytes, as of the last Sample
}

// besideFor is how long after a circuit was heard packets that its relay forwards speak for it, too: otherwise each that is
// answered beside it would have the circuit probed.
const besideFor = 2 * time.Second

// hear records that something arrived.
func (t *traffic) hear() {
	now := int64(time.Since(t.opened))
	t.own.Store(now)
	t.heard.Store(now)
}

// hearBeside records that something arrived through the same relay, not by this connection.
func (t *traffic) hearBeside() {
	if now := int64(time.Since(t.opened)); now-t.own.Load() < int64(besideFor) {
		t.heard.Store(now)
	}
}

// Heard reports whether anything has arrived.
func (t *traffic) Heard() bool { return t.heard.Load() != 0 }

// HeardAt returns when something last arrived.
func (t *traffic) HeardAt() time.Time { return t.opened.Add(time.Duration(t.heard.Load())) }

// SentAt returns when something was last sent.
func (t *traffic) SentAt() time.Time { return t.opened.Add(time.Duration(t.wrote.Load())) }

// Moved counts the bytes that were sent and received.
func (t *traffic) Moved() uint64 { return t.tx.Load() + t.rx.Load() }

// Carried is the bytes that were sent, and received.
func (t *traffic) Carried() (tx, rx uint64) { return t.tx.Load(), t.rx.Load() }

// Sample is Moved, and remembers it for Quiet.
func (t *traffic) Sample() uint64 {
	n := t.Moved()
	t.sampled.Store(n)
	return n
}

// Quiet sets whether the owner wants to be woken when data move; data since the last Sample
// count.
func (t *traffic) Quiet(quiet bool) {
	t.quiet.Store(quiet)
	if quiet && t.Moved() != t.sampled.Load() {
		t.noticed()
	}
}

func (t *traffic) sent(n int) {
	t.tx.Add(uint64(n))
	t.wrote.Store(int64(time.Since(t.opened)))
	t.noticed()
}

func (t *traffic) received(n int) {
	t.rx.Add(uint64(n))
	t.hear()
	t.noticed()
}

// noticed wakes the owner, once, of a connection that was quiet.
func (t *traffic) noticed() {
	if t.quiet.Load() && t.quiet.CompareAndSwap(true, false) {
		t.wake()
	}
}
