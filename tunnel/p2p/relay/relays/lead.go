package relays

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/p2p/base/conns"
)

const (
	// tcpHead is what TCP has before QUIC where members are many: a SYN that was lost comes again after a second.
	tcpHead = 1500 * time.Millisecond
	// turnTimeout bounds a dial over TCP to a relay that takes handshakes in turns; package dialer knows more of it.
	turnTimeout = DialTimeout + conns.TurnLatest + DialTimeout
)

// lead is what a client knows of TCP, from round to round. Where members are many a relay is dialed over TCP first: one
// handshake is all that a reservation needs, and two take a relay that was restarted twice the time until all are back.
type lead struct {
	works  bool // it got through once
	misses int  // rounds since then, or since the start, in which it did not
}

// both reports whether this round dials all transports side by side: TCP may be what this network does not let through.
func (l *lead) both() bool { return l.misses%4 == 3 || !l.works && l.misses > 0 }

// ended notes the end of a round that began without any connection.
func (l *lead) ended(tcp bool) {
	l.misses++
	if tcp {
		l.works, l.misses = true, 0
	}
}

// tcpFirst is one round in which QUIC waits for TCP.
type tcpFirst struct {
	works    bool          // TCP has got through before: that it fails is the relay's fault
	left     atomic.Int32  // dials over TCP
	accepted chan struct{} // closed when one of them has reached the relay
	failed   chan struct{} // closed when all of them have ended
	accept   func()        // closes accepted
}

func newTCPFirst(works bool, dials int) *tcpFirst {
	f := &tcpFirst{works: works, accepted: make(chan struct{}), failed: make(chan struct{})}
	f.accept = sync.OnceFunc(func() { close(f.accepted) })
	f.left.Store(int32(dials)) //nolint:gosec // addresses of one relay
	return f
}

// ended notes the end of a dial over TCP.
func (f *tcpFirst) ended(err error) {
	if err == nil {
		f.accept()
	}
	if f.left.Add(-1) == 0 {
		close(f.failed)
	}
}

// wait reports whether QUIC is dialed in this round: the relay does not answer over TCP.
func (f *tcpFirst) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-f.accepted:
		return false
	case <-f.failed:
	case <-time.After(tcpHead):
	}
	select {
	case <-f.accepted:
		return false
	case <-f.failed:
		return !f.works
	default:
		return true
	}
}
