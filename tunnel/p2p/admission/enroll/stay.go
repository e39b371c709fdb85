package enroll

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"

	"edgemesh/internal/seldom"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// lookEvery is how often a controller checks its reservations; renewEvery is how long it believes in one while it stays
	// connected.
	lookEvery  = 2 * time.Second
	renewEvery = time.Minute
	// reserveTime bounds one try.
	reserveTime = 10 * time.Second
)

// Controller is a controller's end of its connections to relays and, through them, to nodes.
type Controller struct {
	host     host.Host
	close    func() error
	relays   map[peer.ID]bool // Run's
	known    sync.Map         // peer IDs of relays that it chose
	greet    Greet            // nil: no relay requires anything
	log      *slog.Logger
	reported seldom.Log
	held     map[peer.ID]time.Time // when a reservation was made, of the goroutine in Run
}

// NewController returns a controller with that key whose requests v answers; nil: it takes none. greet may be nil. Close it.
func NewController(key crypto.PrivKey, v *Server, greet Greet, log *slog.Logger) (*Controller, error) {
	c := &Controller{greet: greet, log: log, held: make(map[peer.ID]time.Time), relays: make(map[peer.ID]bool)}
	g, err := newGate(func(p peer.ID) bool { _, ok := c.known.Load(p); return ok }, log)
	if err != nil {
		return nil, err
	}
	h, err := newHost(key, nil, nil, g)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	c.host = h
	if v != nil {
		h.SetStreamHandler(identity.EnrollProtocol, v.Serve)
	}
	ctx, end := context.WithCancel(context.Background())
	var sweeps sync.WaitGroup
	sweeps.Go(func() { g.Run(ctx) })
	c.close = func() error {
		end()
		sweeps.Wait()
		return h.Close()
	}
	return c, nil
}

// Close ends everything.
func (c *Controller) Close() error { return c.close() }

// Run keeps reservations at all of relays until ctx ends, and reports to held at which it has one, in their order.
func (c *Controller) Run(ctx context.Context, relays func() []peer.AddrInfo, held func([]peer.ID)) {
	for ; ctx.Err() == nil; wake.Sleep(ctx, lookEvery) {
		held(c.look(ctx, relays()))
	}
}

// look keeps a reservation at each of relays, and forgets those that are no longer listed. It returns at which there is one.
func (c *Controller) look(ctx context.Context, relays []peer.AddrInfo) (held []peer.ID) {
	for id := range c.relays {
		if !slices.ContainsFunc(relays, func(r peer.AddrInfo) bool { return r.ID == id }) {
			delete(c.relays, id)
			delete(c.held, id)
			c.known.Delete(id)
			_ = c.host.Network().ClosePeer(id)
		}
	}
	for _, r := range relays {
		failed := slog.LevelWarn
		if !c.relays[r.ID] { // the first time: a new cluster's relay listens once it has the membership, too
			failed = slog.LevelInfo
		}
		c.relays[r.ID] = true
		if c.stays(ctx, r, failed) {
			held = append(held, r.ID)
		}
	}
	return held
}

// stays keeps a reservation at r, and reports whether there is one. A failure is logged at that level.
func (c *Controller) stays(ctx context.Context, r peer.AddrInfo, failed slog.Level) bool {
	connected := c.host.Network().Connectedness(r.ID) == network.Connected
	if at, ok := c.held[r.ID]; ok && connected && time.Since(at) < renewEvery {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, reserveTime)
	defer cancel()
	c.known.Store(r.ID, true)
	err := connect(ctx, c.host, r, c.greet)
	if err == nil {
		over := c.host.Network().ConnsToPeer(r.ID)
		if _, err = client.Reserve(ctx, c.host, peer.AddrInfo{ID: r.ID}); err != nil {
			for _, conn := range over {
				if conn.IsClosed() {
					err = cmp.Or(conns.Told(conn), err)
				}
			}
		}
	}
	if err != nil {
		delete(c.held, r.ID)
		if c.reported.Due(failed.String() + r.ID.String()) {
			c.log.Log(ctx, failed, "a relay refuses this controller: edges cannot reach it there; check that the relay runs, and reads the PodNetwork's controllers, or that the join secret is its own", "relay", r.ID, "err", err)
		}
		return false
	}
	if _, was := c.held[r.ID]; !was {
		c.log.Info("edges reach this controller by a relay", "relay", r.ID)
	}
	c.held[r.ID] = time.Now()
	return true
}
