package herd

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/identity"
)

// As in package relays, whose loop (run.go, session.go) this follows.
const (
	shortPause  = choice.Backoff / 8
	soundAfter  = 5 * choice.Backoff
	renewAtMost = 10 * time.Minute
)

// errLost is why a session with the relay ends.
var errLost = errors.New("the connection over TCP is gone")

// Member is one light member.
type Member struct {
	ID     peer.ID
	herd   *Herd
	tls    *identity.TLS
	quicID *libp2ptls.Identity
	at     udpPlace
	who    []byte // its answer to identify
	// arrived is called whenever it has reserved.
	arrived func()

	mu    sync.Mutex // a leaf: guards what follows
	links [2]*link   // TCP, QUIC; nil: there is none
	held  bool       // the reservation
	since time.Time  // of held
	err   error      // of the last attempt
}

func (m *Member) tcp() *link  { m.mu.Lock(); defer m.mu.Unlock(); return m.links[0] }
func (m *Member) quic() *link { m.mu.Lock(); defer m.mu.Unlock(); return m.links[1] }

// Err is why the last attempt failed.
func (m *Member) Err() error { m.mu.Lock(); defer m.mu.Unlock(); return m.err }

// Site is the address that the relay sees.
func (m *Member) Site() netip.Addr { return m.at.site }

// ReservedAt is since when it holds its reservation, zero where it holds none.
func (m *Member) ReservedAt() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		return time.Time{}
	}
	return m.since
}

func (m *Member) hold(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if yes == m.held {
		return
	}
	m.held, m.since = yes, time.Now()
	if yes {
		m.herd.reserved.Add(1)
	} else {
		m.herd.reserved.Add(-1)
	}
}

// run stays with the relay until ctx ends.
func (m *Member) run(ctx context.Context, r Relay) {
	backoff := shortPause
	var away time.Time // since when
	for ctx.Err() == nil {
		start := time.Now()
		err := m.session(ctx, r)
		m.hold(false)
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
		if away.IsZero() || time.Since(start) > soundAfter {
			away, backoff = time.Now(), shortPause
		}
		if !wake.Sleep(ctx, backoff/2+rand.N(backoff/2)) {
			return
		}
		backoff = min(2*backoff, choice.Pause(time.Since(away), true))
	}
}

// session connects, reserves and stays until TCP is lost.
func (m *Member) session(ctx context.Context, r Relay) error {
	m.herd.Attempts.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	t, err := m.dialTCP(ctx, r)
	if err != nil {
		return err
	}
	defer m.keep(ctx, &tasks, 0, t)()
	if err := t.ping(ctx); err != nil {
		return err
	}
	if !m.herd.TCPFirst {
		tasks.Go(func() { m.beside(ctx, &tasks, r) })
	}
	refused := time.Time{}
	for {
		next := renewAtMost
		// What client.Reserve waits for the answer, whatever its context says.
		rctx, done := context.WithTimeout(ctx, client.ReserveTimeout)
		err := t.reserve(rctx)
		done()
		m.hold(err == nil)
		if err != nil {
			m.herd.Refused.Add(1)
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
			if refused.IsZero() {
				refused = time.Now()
			}
			wait := choice.Pause(time.Since(refused), true)
			next = wait/2 + rand.N(wait/2)
		} else {
			refused = time.Time{}
			m.arrived()
		}
		timer := time.NewTimer(next)
		select {
		case <-t.ended:
			timer.Stop()
			return errLost
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// beside keeps the QUIC connection beside the one over TCP.
func (m *Member) beside(ctx context.Context, tasks *sync.WaitGroup, r Relay) {
	pause := shortPause
	for ctx.Err() == nil {
		if q, err := m.dialQUIC(ctx, r); err == nil {
			drop := m.keep(ctx, tasks, 1, q)
			if q.ping(ctx) == nil {
				select {
				case <-q.ended:
				case <-ctx.Done():
				}
			}
			drop()
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, 15*time.Minute)
	}
}

// keep has a link served until it is dropped.
func (m *Member) keep(ctx context.Context, tasks *sync.WaitGroup, i int, l *link) (drop func()) {
	tasks.Go(func() { m.serve(l) })
	stop := context.AfterFunc(ctx, l.close)
	m.mu.Lock()
	m.links[i] = l
	m.mu.Unlock()
	tasks.Go(func() { _ = l.identify(ctx) })
	return func() {
		stop()
		m.mu.Lock()
		m.links[i] = nil
		m.mu.Unlock()
		l.close()
	}
}
