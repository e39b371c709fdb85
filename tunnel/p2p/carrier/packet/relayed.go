package packet

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// unusedTime is how long a relay keeps a channel for datagrams that nobody sends.
	unusedTime = time.Minute
	// olderPause is the pause before a relay or a peer is asked again which knew no channels.
	olderPause = time.Hour
	// Forwarded packets are slow that take longer than the circuit by this part and this time.
	slowPart = 1.25
	slowTime = 20 * time.Millisecond
)

// via is the datagrams beside a circuit: the relay forwards them. It has a channel as long as one of the two directions is
// in use, and this node's begins when the datagram lane first looks for it.
type via struct {
	open   func(context.Context) (*Channel, error)
	trip   func() time.Duration // the circuit's round trip
	tls    *tls.ConnectionState // of the circuit
	used   atomic.Bool          // since it was looked at last
	wanted wake.One
	why    atomic.Pointer[string] // not forwarded now; nil: they are

	mu   sync.Mutex // held while a channel is opened: no other lock is taken under it
	now  *Channel
	uses int
}

// Relayed returns the datagrams beside circuit c, which ctx ends with and whose round trip is trip. open opens a channel to its
// peer at its relay. The result is nil if c has no TLS session to take keys from.
func (s *Service) Relayed(ctx context.Context, c network.Conn, p Path, trip func() time.Duration,
	open func(context.Context) (*Channel, error)) *Session {
	var state *tls.ConnectionState
	if !c.As(&state) {
		return nil
	}
	v := &via{open: open, trip: trip, tls: state, wanted: wake.NewOne()}
	return &Session{sending: sending{link: link{node: s.node, path: p, ctx: ctx, via: v}}, conn: c, in: &s.in, on: &s.sockets}
}

// protocol is that of offers on this path.
func (ss *Session) protocol() protocol.ID {
	if ss.via != nil {
		return identity.ForwardedProtocol
	}
	return identity.PacketProtocol
}

// route is how packets leave. It is given back by release, and lost is called when it ends before.
func (ss *Session) route(ctx context.Context, lost func()) (r route, release func(), err error) {
	r.quic, release = ss.quic, func() {}
	if ss.via != nil {
		c, giveBack, err := ss.via.take(ctx)
		if err != nil {
			return r, nil, err
		}
		stop := context.AfterFunc(c.Ctx, lost)
		r.quic, r.head, release = c.Over, appendChannel(nil, c.Number), func() { stop(); giveBack() }
	}
	if r.sock, r.src, err = ss.on.socketOf(r.quic); err != nil {
		release()
	}
	return r, release, err
}

// want notes that the lane uses the path.
func (v *via) want() {
	if !v.used.Load() {
		v.used.Store(true)
		v.wanted.Wake()
	}
}

// await waits until the lane uses the path; false: ctx has ended before.
func (v *via) await(ctx context.Context) bool {
	for !v.used.Load() {
		select {
		case <-ctx.Done():
			return false
		case <-v.wanted:
		}
	}
	return true
}

// watch closes unused when nothing was sent for a while.
func (v *via) watch(ctx context.Context, unused chan<- struct{}) {
	for wake.Sleep(ctx, unusedTime) {
		if !v.used.Swap(false) {
			close(unused)
			return
		}
	}
}

// failed notes why there are no datagrams, and returns the pause before the next attempt, which only the lane's use brings.
func (v *via) failed(err error, pause time.Duration) time.Duration {
	v.used.Store(false)
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		pause = olderPause // an update ends the circuit
	}
	v.note(err)
	return pause
}

// note notes why nothing is forwarded now; nil: something is, or nothing is to be.
func (v *via) note(err error) {
	if err == nil || errors.Is(err, errUnused) {
		v.why.Store(nil)
		return
	}
	why := err.Error()
	switch none := (mss.ErrNotSupported[protocol.ID]{}); {
	case errors.As(err, &none) && slices.Contains(none.Protos, identity.ChannelProtocol):
		why = "the relay's version forwards no packets"
	case errors.As(err, &none):
		why = "the peer's version knows no forwarded packets"
	case errors.Is(err, errNotYet):
		why = errNotYet.Error()
	}
	v.why.Store(&why)
}

// take returns the channel, which is given back by release.
func (v *via) take(ctx context.Context) (c *Channel, release func(), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now == nil || v.now.Ctx.Err() != nil {
		if v.now, err = v.open(ctx); err != nil {
			v.now = nil
			return nil, nil, err
		}
		v.uses = 0
	}
	c = v.now
	v.uses++
	return c, sync.OnceFunc(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.now != c {
			return
		}
		if v.uses--; v.uses == 0 {
			c.Close()
			v.now = nil
		}
	}), nil
}

// slow reports whether the circuit is faster than packets with such a round trip.
func (v *via) slow(rtt time.Duration) bool {
	trip := v.trip()
	return trip > 0 && rtt > time.Duration(slowPart*float64(trip))+slowTime
}

// Forwarding is why no relay forwards datagrams now, "" where one does; ok: a relay is between.
func (ss *Session) Forwarding() (why string, ok bool) {
	switch {
	case ss == nil || ss.via == nil:
		return "", false
	case ss.size() > 0:
		return "", true
	}
	if why := ss.via.why.Load(); why != nil {
		return *why, true
	}
	return "no datagrams yet", true
}
