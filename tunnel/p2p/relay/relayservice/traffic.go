package relayservice

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

const (
	// stallTime is how long a circuit's far end may take nothing of what waits for it: a buffer, some kilobytes. What it
	// has not taken stands in this relay's memory. A link that is down for that long has lost its connection to the relay
	// anyway (yamux's keep-alive).
	stallTime = 60 * time.Second
	// stallLooks is how often a circuit is looked at within that time.
	stallLooks = 6
)

// errAllowance ends a stranger's circuit.
var errAllowance = errors.New("relay: a circuit of no member carries no more")

// traffic is what circuits carry: it divides the bandwidth among senders, and ends circuits that have stalled.
type traffic struct {
	shares  *shares
	stalled func(network.Conn) // is told who takes nothing
	// allowance is how many bytes in each direction a peer's circuits may carry, 0 for any number; set before the first one.
	allowance func(peer.ID) int64

	stop    chan struct{}
	stopped sync.Once
	done    sync.WaitGroup

	mu      sync.Mutex // a leaf: guards what follows
	streams map[*stream]struct{}
}

// newTraffic starts; look is how often circuits are looked at, bandwidth is in bytes a second.
func newTraffic(bandwidth float64, look time.Duration, metrics *Metrics, stalled func(network.Conn)) *traffic {
	t := &traffic{shares: newShares(bandwidth, metrics), stalled: stalled, stop: make(chan struct{}), streams: make(map[*stream]struct{})}
	if bandwidth > 0 {
		t.done.Go(func() { t.shares.run(t.stop) })
	}
	t.done.Go(func() { t.watch(look) })
	return t
}

// Close ends the division and the watch; nobody waits for a share after that.
func (t *traffic) Close() {
	t.stopped.Do(func() { close(t.stop) })
	t.done.Wait()
}

func (t *traffic) watch(look time.Duration) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
			t.shares.metrics.carried.tidy()
			for _, s := range t.stuck() {
				t.stalled(s.Conn())
				_ = s.Reset() // its copy ends, and the circuit's other end with it
			}
		}
	}
}

// stuck looks at all streams, and returns those whose far end has taken nothing for so many looks.
func (t *traffic) stuck() (out []*stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.streams {
		n := s.writes.Load()
		if n%2 == 0 || n != s.seen {
			s.seen, s.looks = n, 0
			continue
		}
		if s.looks++; s.looks == stallLooks {
			out = append(out, s)
		}
	}
	return out
}

// stream is one end of a circuit, at the relay.
type stream struct {
	network.Stream
	traffic *traffic
	from    *sender       // its peer
	writes  atomic.Uint64 // begun and ended: odd while one waits
	left    sync.Once
	limit   int64        // bytes that may be read, and written; 0 = any number
	read    atomic.Int64 // bytes, counted where there is a limit
	written atomic.Int64

	// Guarded by traffic.mu.
	seen  uint64 // writes, at the last look
	looks int    // for which it has been the same and odd
}

func (t *traffic) wrap(s network.Stream) *stream {
	p := s.Conn().RemotePeer()
	w := &stream{Stream: s, traffic: t, from: t.shares.join(p)}
	if t.allowance != nil {
		w.limit = t.allowance(p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams[w] = struct{}{}
	return w
}

// Read reads what the peer sends, within its share.
func (s *stream) Read(b []byte) (int, error) {
	s.from.wait()
	n, err := s.Stream.Read(b)
	s.from.received(n)
	if s.limit > 0 && s.read.Add(int64(n)) > s.limit {
		return 0, errAllowance
	}
	return n, err
}

func (s *stream) Write(b []byte) (int, error) {
	s.writes.Add(1)
	defer s.writes.Add(1)
	if s.limit > 0 && s.written.Add(int64(len(b))) > s.limit {
		return 0, errAllowance
	}
	return s.Stream.Write(b)
}

// Close implements network.Stream.
func (s *stream) Close() error { s.leave(); return s.Stream.Close() }

// Reset implements network.Stream.
func (s *stream) Reset() error { s.leave(); return s.Stream.Reset() }

// ResetWithError implements network.Stream.
func (s *stream) ResetWithError(code network.StreamErrorCode) error {
	s.leave()
	return s.Stream.ResetWithError(code)
}

func (s *stream) leave() {
	s.left.Do(func() {
		s.traffic.shares.leave(s.Conn().RemotePeer())
		s.traffic.mu.Lock()
		defer s.traffic.mu.Unlock()
		delete(s.traffic.streams, s)
	})
}

// trafficHost hands circuit relay streams whose traffic is watched.
type trafficHost struct {
	host.Host
	traffic *traffic
}

// SetStreamHandler implements host.Host.
func (h trafficHost) SetStreamHandler(id protocol.ID, handle network.StreamHandler) {
	h.Host.SetStreamHandler(id, func(s network.Stream) { handle(h.traffic.wrap(s)) })
}

// NewStream implements host.Host.
func (h trafficHost) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, p, ids...)
	if err != nil {
		return nil, err
	}
	return h.traffic.wrap(s), nil
}
