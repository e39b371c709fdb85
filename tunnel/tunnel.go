package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
	"golang.org/x/time/rate"
)

// Config is what a Tunnel needs. Device and Underlay are required.
type Config struct {
	Device   Device // owned by the tunnel from New on: Close closes it
	Underlay Underlay
	Log      *slog.Logger // nil: slog.Default
	Limits   Limits
	// Idle, when set, is called once a peer had no traffic for IdleTimeout and
	// its carriers are being closed: whoever keeps connections for the tunnel may
	// end them. It must not block.
	Idle func(PeerID)
	// Shun, when set, is called when a peer is shunned for malformed frames: all
	// its streams were reset and new ones are refused for the time given.
	// It must not block.
	Shun func(p PeerID, d time.Duration, why string)
}

// Limits are bounds; a zero field takes its default.
type Limits struct {
	// QueueBytes bounds the memory of the packets queued in one lane of one peer,
	// 6 MiB: more than the usual 4 MiB window of one TCP flow. The worst a peer costs is in DESIGN.md.
	QueueBytes int
	// TotalBytes bounds the same over all peers, 64 MiB; above it each lane keeps
	// no more than 128 KiB.
	TotalBytes int
	// DelayTarget is the standing delay a flow may have in a queue at most, 30 ms; on
	// short paths it is 0.6 round trips, down to 5 ms. DelayInterval is how long it must
	// stand before a packet is marked or dropped, 150 ms: more than most round trips.
	DelayTarget, DelayInterval time.Duration
	// WaitTime is how long a packet waits at most, for a path to its peer or in the
	// queue of one, 3 s.
	WaitTime time.Duration
	// IdleTimeout lets go of a peer without traffic, 5 min.
	IdleTimeout time.Duration
	// QuietTime is how long after its last packet a peer's lanes still move to
	// better paths at once, 30 s; later they wait for the next packet.
	QuietTime time.Duration
	// HoldTime is how long frames of a new carrier wait for the end of the one
	// before it, 300 ms.
	HoldTime time.Duration
	// SwitchTime is how long a lane waits for a Write on a carrier that it is
	// leaving before it resets it, 300 ms.
	SwitchTime time.Duration
	// OpenTimeout bounds one Underlay.Open, 10 s.
	OpenTimeout time.Duration
	// RetryMin and RetryMax bound the pause between two attempts to open a
	// carrier, 50 ms and 2 s; it doubles.
	RetryMin, RetryMax time.Duration
	// MalformedPerMinute shuns a peer when more malformed frames than that came
	// within a minute on all its streams together, 16.
	MalformedPerMinute int
	// ShunMin and ShunMax bound how long a peer is shunned, 10 s and 5 min; it
	// doubles when it happens again.
	ShunMin, ShunMax time.Duration
	// StreamsPerLane bounds the live incoming streams of one lane of one peer,
	// 8; the oldest is reset.
	StreamsPerLane int
}

func (l Limits) withDefaults() Limits {
	setInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	setTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	setInt(&l.QueueBytes, 6<<20)
	setInt(&l.TotalBytes, 64<<20)
	setTime(&l.DelayTarget, 30*time.Millisecond)
	setTime(&l.DelayInterval, 150*time.Millisecond)
	setTime(&l.WaitTime, 3*time.Second)
	setTime(&l.IdleTimeout, 5*time.Minute)
	setTime(&l.QuietTime, 30*time.Second)
	setTime(&l.HoldTime, 300*time.Millisecond)
	setTime(&l.SwitchTime, 300*time.Millisecond)
	setTime(&l.OpenTimeout, 10*time.Second)
	setTime(&l.RetryMin, 50*time.Millisecond)
	setTime(&l.RetryMax, 2*time.Second)
	setInt(&l.MalformedPerMinute, 16)
	setTime(&l.ShunMin, 10*time.Second)
	setTime(&l.ShunMax, 5*time.Minute)
	setInt(&l.StreamsPerLane, 8)
	return l
}

// Tunnel moves packets between one device and all peers. Its methods may be
// called concurrently.
type Tunnel struct {
	cfg    Config
	lim    Limits
	log    *slog.Logger
	pools  *pools
	nonce  uint64 // names this process in HELLO frames
	seed   uint64 // of the flow hash
	start  time.Time
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	icmp   *rate.Limiter

	table atomic.Pointer[table]
	held  atomic.Int64 // memory in all queues, bytes
	lost  counters     // packets no peer was known for, and the numbers of peers that left

	mu       sync.Mutex
	closed   bool
	closeErr error
	peers    map[PeerID]*peer
	wg       sync.WaitGroup // lanes, openers, Run's janitor, Receive calls
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
		icmp:  rate.NewLimiter(100, 100),
		peers: map[PeerID]*peer{},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.table.Store(&table{})
	return t
}

// now is the tunnel's monotonic clock in nanoseconds.
func (t *Tunnel) now() int64 { return int64(time.Since(t.start)) }

// SetRoutes replaces the table. A peer that no route names any more is closed and
// its queues are freed; a peer whose prefixes merely changed keeps its carriers.
// Of two equal prefixes the later one holds.
func (t *Tunnel) SetRoutes(routes []Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	tab := &table{t: bart.Table[owner]{}}
	kept := map[PeerID]*peer{}
	for _, r := range routes {
		o := owner{prefix: unmap(r.Prefix).Masked()}
		if !r.Self {
			p := kept[r.Peer]
			if p == nil {
				if p = t.peers[r.Peer]; p == nil {
					p = newPeer(t, r.Peer)
				}
				kept[r.Peer] = p
			}
			o.peer = p
		}
		tab.t.Insert(o.prefix, o)
	}
	gone := t.peers
	t.peers = kept
	t.table.Store(tab)
	for id, p := range gone {
		if kept[id] == nil {
			p.close()
			t.lost.add(p.counters.snapshot())
		}
	}
}

// unmap turns an IPv4-in-IPv6 prefix into the IPv4 one.
func unmap(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// PathChanged says that a better path to the peer may exist. Lanes in use open a
// new carrier in the background and move to it without loss; lanes that wait for
// a carrier try again at once; those of a peer that was quiet for QuietTime move with
// their next packet.
func (t *Tunnel) PathChanged(id PeerID) {
	if p := t.peer(id); p != nil {
		for _, l := range p.lanes {
			l.pathChanged()
		}
	}
}

// PathLost says that a path in use is dead. The carriers in use are reset, and
// the lanes that have something to send open new ones; frames the dead carriers
// had not taken whole are sent again. A carrier whose own
// path is not the lost one is kept; its lane does as after PathChanged.
func (t *Tunnel) PathLost(id PeerID) {
	if p := t.peer(id); p != nil {
		for _, l := range p.lanes {
			l.pathLost()
		}
	}
}

func (t *Tunnel) peer(id PeerID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[id]
}

// Run moves packets from the device until ctx ends or Close is called, then
// closes the tunnel as Close does. The error is nil in both cases, otherwise
// that of the device. Run is called once.
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

// shut ends everything without waiting, once.
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
	t.peers = nil
	t.table.Store(&table{})
	if err := t.cfg.Device.Close(); err != nil {
		t.closeErr = fmt.Errorf("close the device: %w", err)
	}
}

// Close ends the tunnel: carriers are closed in order, those that are stuck are
// reset; streams in Receive are reset; the device is
// closed. It returns after every goroutine of the tunnel and every Receive call
// has ended; the error is the device's.
func (t *Tunnel) Close() error {
	t.shut()
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closeErr
}

// watchIdle lets go of peers without traffic.
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
			if p.letGo(t.now() - int64(t.lim.IdleTimeout)) {
				idle = append(idle, id)
			}
		}
		t.mu.Unlock()
		for _, id := range idle {
			t.log.Debug("peer idle", "peer", id)
			if t.cfg.Idle != nil {
				t.cfg.Idle(id)
			}
		}
	}
}
