package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/internal/quota"
)

// Config is what a Tunnel needs. Device and Underlay are required.
type Config struct {
	Device   Device // owned by the tunnel from New on: Close closes it
	Underlay Underlay
	Log      *slog.Logger // nil: slog.Default
	Limits   Limits
	// Idle, if set, is called some times after a peer had no traffic for IdleTimeout and its carriers have ended:
	// connections that are kept for the tunnel may be closed. It must not block.
	Idle func(PeerID)
	// TCP, if set, reports whether the carriers of the stream lane run over TCP, not over what Pulled sends on, and their path's shortest
	// round trip, 0: unknown; nil: they do. It may block.
	TCP func(PeerID) (leastRTT time.Duration, ok bool)
	// Quarantine, if set, is called when malformed frames put a peer into quarantine: all its streams were reset, and new
	// ones are refused for the time given. It must not block.
	Quarantine func(p PeerID, d time.Duration, why string)
	// Refused, if set, is called for each packet of a peer that is refused for another reason. It must not block.
	Refused func(p PeerID, r Reason)
}

// Tunnel moves packets between one device and all peers. Its methods may be called concurrently.
//
// Locks, in order: Tunnel.mu; lane.mu or streams.mu; the underlay's, in Lost, RTT, Waited, CloseWrite and Reset, which
// must not call the tunnel. chooser, acks.Thinner, acks.Passer, halves.mu, order.mu and dialLimit's are leaves. Device and carriers are
// written under none.
type Tunnel struct {
	cfg    Config
	lim    Limits
	log    *slog.Logger
	pools  *pools
	dials  *dialLimit
	nonce  uint64 // names this process in HELLO frames
	seed   uint64 // of the flow hash
	start  time.Time
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	icmp   *quota.PerSecond

	table atomic.Pointer[table]
	held  atomic.Int64  // memory in all queues, bytes
	reads atomic.Uint64 // of the device that returned
	lost  counters      // of packets that no peer was known for, and of peers that have left

	mu       sync.Mutex // of all below
	closed   bool
	closeErr error
	members  map[PeerID]*member // all that have routes
	peers    map[PeerID]*peer   // those of them that were talked to
	wg       sync.WaitGroup     // writers, attempts to open, Receive calls, late ACKs, watchIdle
}

// New makes a tunnel without routes. Run moves its packets, Close ends it.
func New(cfg Config) *Tunnel {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	t := &Tunnel{
		cfg:   cfg,
		lim:   cfg.Limits.withDefaults(),
		log:   cfg.Log,
		pools: newPools(),
		nonce: rand.Uint64(),
		seed:  rand.Uint64(),
		start: time.Now(),
		icmp:  quota.New(eachUnreachable, allUnreachable),
		peers: map[PeerID]*peer{}, members: map[PeerID]*member{},
	}
	t.dials = newDialLimit(t.lim.DialsPerPod, t.lim.Dials)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.table.Store(newTable())
	return t
}

// now is the tunnel's monotonic clock in nanoseconds.
func (t *Tunnel) now() int64 { return int64(time.Since(t.start)) }

// PathChanged says that a better path to the peer may exist. Lanes in use open a new carrier in the background and move
// to it without loss. Lanes that wait for a carrier try again immediately. Lanes of a peer that was quiet for QuietTime
// move with their next packet.
func (t *Tunnel) PathChanged(id PeerID) {
	if p := t.inUse(id); p != nil {
		for _, l := range p.lanes {
			l.pathChanged()
		}
	}
}

// PathLost says that a path in use is dead. Carriers on it are reset, and lanes with something to send open new ones;
// frames that the dead carriers had not taken whole are sent again. A carrier on another path is kept; its lane does the
// same as after PathChanged.
func (t *Tunnel) PathLost(id PeerID) {
	if p := t.inUse(id); p != nil {
		p.chooser.moved()
		for _, l := range p.lanes {
			l.forgetLine()
			l.pathLost()
		}
	}
}

// inUse is the state of a peer, nil if it has none.
func (t *Tunnel) inUse(id PeerID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[id]
}

// spawn runs f in a goroutine that Close waits for; false: the tunnel is closed.
func (t *Tunnel) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Add(1)
	go func() { defer t.wg.Done(); f() }()
	return true
}

// Run moves packets from the device until ctx ends or Close is called, then closes the tunnel as Close does. The error is
// nil in both cases, otherwise that of the device. Run is called once.
func (t *Tunnel) Run(ctx context.Context) error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return ErrClosed
	}
	t.wg.Add(1)
	t.mu.Unlock()
	go t.watchIdle()
	stop := context.AfterFunc(ctx, t.shut)
	defer stop()
	err := t.readDevice()
	cerr := t.Close()
	if err != nil {
		return fmt.Errorf("read from the device: %w", err)
	}
	return cerr
}

// shut begins to end everything, once. It does not wait.
func (t *Tunnel) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	t.cancel()
	for _, p := range t.peers {
		p.close()
		t.lost.add(p.counters.snapshot())
	}
	t.peers, t.members = nil, nil
	t.table.Store(newTable())
	if err := t.cfg.Device.Close(); err != nil {
		t.closeErr = fmt.Errorf("close the device: %w", err)
	}
}

// Drain waits until nothing that was read waits to be sent, or for the given time.
func (t *Tunnel) Drain(most time.Duration) {
	for end := time.Now().Add(most); t.held.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Close ends the tunnel: carriers end in order, stuck ones are reset, streams in Receive are reset, the device is closed.
// It returns after every goroutine of the tunnel and every Receive call has ended. The error is the device's.
func (t *Tunnel) Close() error {
	t.shut()
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closeErr
}

// watchIdle ends the carriers of peers without traffic.
func (t *Tunnel) watchIdle() {
	defer t.wg.Done()
	tick := time.NewTicker(max(t.lim.IdleTimeout/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		t.mu.Lock()
		var idle []PeerID
		for id, p := range t.peers {
			if p.idleAgain() {
				idle = append(idle, id)
			}
			if p.endIdle(t.now() - int64(t.lim.IdleTimeout)) {
				t.log.Debug("peer idle", "peer", id)
			}
		}
		t.mu.Unlock()
		for _, id := range idle {
			if t.cfg.Idle != nil {
				t.cfg.Idle(id)
			}
		}
	}
}
