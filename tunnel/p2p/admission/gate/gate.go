// Package gate carries each incoming connection from its first packet to admission, and bounds what it may use until then.
// It wraps libp2p's resource manager, whose scope of a connection is the machine; DESIGN.md above draws the states.
//
//	gate.go     the resource manager
//	conn.go     one connection: its states
//	listen.go   handshaking over TCP: time limits and turns
//	turns.go    few handshakes compute at a time
//	policy.go   who may wait, for how long, how many
//	preauth.go  waiting and asking: slots, deadlines, admission
//	secret.go   the relay's side of the join protocol
//	streams.go  what peers may use before admission
package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/admission/pool"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Config is what a Gate needs; all but Policy is required. Its functions do not call the Gate.
type Config struct {
	Handshakes int                // how many may be under way
	IsMember   func(peer.ID) bool // whether the membership lists a peer
	Policy     *Policy            // for other peers; nil: the connection gater refuses them
	// Refused counts and logs a refusal; the reasons are those of package refusals. The peer is "" before the handshake,
	// and the address may be.
	Refused func(reason string, p peer.ID, from string)
}

const (
	// circuitPart: over each relay as many handshakes may be under way as that part of the direct ones, beside these.
	circuitPart = 8
	// verifyPart: when more than this part of the slots are taken, QUIC has each new address show that it receives (RFC
	// 9000 section 8.1.2). That costs a round trip, and forged addresses no longer take a slot.
	verifyPart = 8
	// maxAddresses and maxPeers bound what is remembered of those that were admitted.
	maxAddresses, maxPeers = 1 << 16, 1 << 14
)

// Gate is a resource manager that admits connections.
type Gate struct {
	network.ResourceManager
	cfg     Config
	turns   *turns
	closing closers

	mu         sync.Mutex // guards what follows, and the state of each conn; nothing else is locked below it but a wake.All
	handshakes *pool.Pool[*conn]
	circuits   map[string]int             // handshakes over circuits, by relay
	homes      *pool.Memory[netip.Prefix] // addresses that members have come from
	peers      map[peer.ID]*connsOf       // whose handshake is over
	pre        preauth
}

// connsOf are a peer's connections.
type connsOf struct {
	conns   []*conn // the latest last
	changed wake.All
}

// New returns a Gate in front of rm, which it closes.
func New(rm network.ResourceManager, c Config) *Gate {
	return &Gate{ResourceManager: rm, cfg: c, turns: newTurns(), handshakes: pool.New[*conn](c.Handshakes),
		circuits: make(map[string]int), homes: pool.NewMemory[netip.Prefix](maxAddresses), peers: make(map[peer.ID]*connsOf), pre: newPreauth(c.Policy)}
}

// VerifySourceAddress implements network.ResourceManager.
func (g *Gate) VerifySourceAddress(a net.Addr) bool {
	return g.busy() || g.ResourceManager.VerifySourceAddress(a)
}

func (g *Gate) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.handshakes.Len() > g.handshakes.Slots()/verifyPart
}

// Handshakes is how many may be under way, and are.
func (g *Gate) Handshakes() (all, taken int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.handshakes.Slots(), g.handshakes.Len()
}

// Patience is how long to wait for an unauthenticated peer: calm while nobody else is here, and the shorter the more slots
// are taken, down to pressed.
func (g *Gate) Patience(calm, pressed time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return calm - time.Duration(g.handshakes.Pressure()*float64(calm-pressed))
}

// known reports whether members have come from an address.
func (g *Gate) known(site netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.homes.Has(site)
}

// OpenConnection implements network.ResourceManager.
func (g *Gate) OpenConnection(dir network.Direction, usefd bool, remote ma.Multiaddr) (network.ConnManagementScope, error) {
	c := &conn{gate: g, inbound: dir == network.DirInbound, addr: remote}
	if c.inbound && remote != nil {
		if err := g.claim(c); err != nil {
			reason, from := refusals.Handshakes, c.address()
			if errors.Is(err, pool.ErrShare) {
				reason = refusals.Address
			}
			if ip, ok := endpoint.IP(remote); ok && c.direct {
				from = ip.String()
			}
			g.cfg.Refused(reason, "", from)
			return nil, err
		}
	}
	scope, err := g.ResourceManager.OpenConnection(dir, usefd, remote)
	if err != nil {
		g.end(c)
		g.cfg.Refused(refusals.Connections, "", c.address())
		return nil, err
	}
	c.ConnManagementScope = scope
	return c, nil
}

// claim takes a slot for a handshake. A circuit's address begins with its relay's, whose direct slots a flood may hold.
func (g *Gate) claim(c *conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if endpoint.IsCircuit(c.addr) {
		relay, _ := c.addr.ValueForProtocol(ma.P_P2P)
		if g.circuits[relay] >= max(g.cfg.Handshakes/circuitPart, 1) {
			return pool.ErrFull
		}
		g.circuits[relay]++
		c.release = func() {
			if g.circuits[relay]--; g.circuits[relay] == 0 {
				delete(g.circuits, relay)
			}
		}
		return nil
	}
	if c.site, c.direct = pool.SiteOf(c.addr); !c.direct {
		return nil
	}
	if err := g.handshakes.Share(c.site, g.homes.Has(c.site)); err != nil {
		return err
	}
	g.handshakes.Add(c, c.site)
	c.release = func() { g.handshakes.Remove(c, c.site) }
	return nil
}

// Run ends what takes too long, until ctx ends.
func (g *Gate) Run(ctx context.Context) {
	for g.cfg.Policy != nil && wake.Sleep(ctx, sweepEvery) {
		g.sweep(time.Now())
	}
}

// Close waits for the connections that are being closed, and closes the resource manager.
func (g *Gate) Close() error {
	g.closing.wait()
	return g.ResourceManager.Close()
}

// closers close connections, which may take some 100 ms each for their last words.
type closers struct {
	mu    sync.Mutex // guards ended against wg.Go; a leaf
	ended bool
	wg    sync.WaitGroup
}

func (x *closers) close(c network.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended { // else the host has closed it
		x.wg.Go(func() { _ = c.Close() })
	}
}

func (x *closers) wait() {
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	x.wg.Wait()
}
