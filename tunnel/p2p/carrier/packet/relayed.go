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
	// unusedTime is how long a relay keeps a channel that nobody sends with.
	unusedTime = time.Minute
	// olderPause is the pause before a relay or a peer is asked again which knew no channels.
	olderPause = time.Hour
	// Forwarded packets are slow that take longer than the circuit by this part and this time. The circuit carries all then, for
	// worseRest.
	slowPart  = 1.25
	slowTime  = 20 * time.Millisecond
	worseRest = time.Minute
)

// via is sealed packets beside a circuit: the relay forwards them, and they carry datagrams only. There is a channel as long as they
// are agreed on, which begins when the datagram lane has used the circuit.
type via struct {
	open   func(context.Context) (*Channel, error)
	trip   func() time.Duration // the circuit's round trip
	tls    *tls.ConnectionState // of the circuit
	used   atomic.Bool          // since it was looked at last
	spare  atomic.Bool          // there is a better path
	wanted wake.One
	why    atomic.Pointer[string] // not forwarded now; nil: they are, or are not to be

	mu    sync.Mutex // held while a channel is opened: no other lock is taken under it
	now   *Channel
	uses  int
	rests time.Time // until when the circuit carries all
}

// Relayed returns sealed packets beside circuit c, which ctx ends with and whose round trip is trip. open opens a channel to its
// peer at its relay. The result is nil if c has no TLS session to take keys from.
func (s *Service) Relayed(ctx context.Context, c network.Conn, p Path, trip func() time.Duration,
	open func(context.Context) (*Channel, error)) *Flight {
	var state *tls.ConnectionState
	if !c.As(&state) {
		return nil
	}
	return s.beside(link{node: s.node, path: p, ctx: ctx, via: &via{open: open, trip: trip, tls: state, wanted: wake.NewOne()}}, c)
}

// route is how packets leave. It is given back by release, and lost is called when it ends before.
func (f *Flight) route(ctx context.Context, lost func()) (r route, release func(), err error) {
	r.quic, release = f.quic, func() {}
	if f.via != nil {
		c, giveBack, err := f.via.take(ctx)
		if err != nil {
			return r, nil, err
		}
		stop := context.AfterFunc(c.Ctx, lost)
		r.quic, r.head, release = c.Over, appendChannel(nil, c.Number), func() { stop(); giveBack() }
	}
	if r.sock, r.src, err = f.on.socketOf(r.quic); err != nil {
		release()
	}
	return r, release, err
}

// Want notes that the datagram lane uses the circuit; of a direct connection it notes nothing.
func (f *Flight) Want() {
	if f != nil && f.via != nil && !f.via.used.Load() {
		f.via.used.Store(true)
		f.via.wanted.Wake()
	}
}

// Spare says whether the datagram lane has a better path: nothing is sent beside a circuit then.
func (f *Flight) Spare(spare bool) {
	if f == nil || f.via == nil || f.via.spare.Swap(spare) == spare {
		return
	}
	if x := f.active(); x != nil {
		x.woken.Wake() // to end
	}
	f.via.wanted.Wake()
}

// spare reports whether nothing is to be sent beside the connection.
func (f *Flight) spare() bool { return f.via != nil && f.via.spare.Load() }

// await waits until the lane uses the circuit; false: ctx has ended before.
func (v *via) await(ctx context.Context) bool {
	for !v.used.Load() || v.spare.Load() {
		select {
		case <-ctx.Done():
			return false
		case <-v.wanted:
		}
	}
	return true
}

// failed notes why nothing is forwarded, and returns the pause before the next attempt, which only the lane's use brings.
func (v *via) failed(err error, pause time.Duration) time.Duration {
	v.used.Store(false)
	v.note(err)
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		return olderPause // an update ends the circuit
	}
	return max(pause, v.rest())
}

// note notes why nothing is forwarded now.
func (v *via) note(err error) {
	if errors.Is(err, errUnused) || errors.Is(err, errEnded) {
		v.why.Store(nil)
		return
	}
	why := err.Error()
	switch none := (mss.ErrNotSupported[protocol.ID]{}); {
	case errors.As(err, &none) && slices.Contains(none.Protos, identity.ChannelProtocol):
		why = "the relay's version forwards no packets"
	case errors.As(err, &none):
		why = "the peer takes no sealed packets"
	case errors.Is(err, errNotYet):
		why = errNotYet.Error()
	case errors.Is(err, errWorse):
		v.mu.Lock()
		v.rests = time.Now().Add(worseRest)
		v.mu.Unlock()
	}
	v.why.Store(&why)
}

// rest is for how long the circuit carries all from now on.
func (v *via) rest() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Until(v.rests)
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

// Forwarding is why no relay forwards packets now, "" where one does; ok: a relay is between.
func (f *Flight) Forwarding() (why string, ok bool) {
	switch {
	case f == nil || f.via == nil:
		return "", false
	case f.active() != nil:
		return "", true
	}
	if why := f.via.why.Load(); why != nil {
		return *why, true
	}
	return "no datagrams yet", true
}
