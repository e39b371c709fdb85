// Package gate carries each incoming connection from its first packet to admission, and bounds what it may use until then.
// It is a libp2p resource manager: the scope that libp2p hands through all stages of a connection drives its state. DESIGN.md
// of the wing draws the states.
//
//	gate.go    the resource manager
//	scope.go   the scope of a connection: lets it in or refuses it (OpenConnection), and each stream (OpenStream)
//	listen.go  handshakes over TCP: time limits and turns
//	secret.go  the relay's side of the join protocol
//	table.go   all connections: slots, deadlines, admission
//	state.go   one connection: its states
//	policy.go  who may wait, for how long, how many
//	turns.go   few handshakes compute at a time
//
// Sealed datagrams and STUN are no connections of libp2p and do not come here: carrier/packet receives them.
package gate

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
)

const (
	// verifyPart: when more than this part of the slots are taken, QUIC has each new address show that it receives (RFC
	// 9000 section 8.1.2). That costs a round trip, and forged addresses no longer take a slot.
	verifyPart = 8
	// sweepEvery is how often connections are closed whose time is over.
	sweepEvery = 250 * time.Millisecond
)

// Gate is a resource manager that admits connections.
type Gate struct {
	network.ResourceManager
	cfg     Config
	table   *table
	turns   *turns
	closing closers
}

// New returns a Gate in front of rm, which it closes.
func New(rm network.ResourceManager, c Config) *Gate {
	return &Gate{ResourceManager: rm, cfg: c, table: newTable(c), turns: newTurns()}
}

// VerifySourceAddress implements network.ResourceManager.
func (g *Gate) VerifySourceAddress(a net.Addr) bool {
	all, taken := g.table.load()
	return taken > all/verifyPart || g.ResourceManager.VerifySourceAddress(a)
}

// Handshakes returns the number of slots for handshakes, and how many are taken.
func (g *Gate) Handshakes() (all, taken int) { return g.table.load() }

// Patience is how long to wait for an unauthenticated peer: calm while nobody else is here, and the shorter the more slots
// are taken, down to pressed.
func (g *Gate) Patience(calm, pressed time.Duration) time.Duration {
	all, taken := g.table.load()
	return calm - (calm-pressed)*time.Duration(taken)/time.Duration(all)
}

// serves reports whether p may use everything.
func (g *Gate) serves(p peer.ID) bool { return g.cfg.IsMember(p) || g.table.admits(p) }

// awaits waits until p is admitted, loses its last connection or time is over, and reports whether it was admitted. Streams of one peer
// share its proof: they have no connection where they are counted. Each connection needs its own to stay.
func (g *Gate) awaits(p peer.ID, most time.Duration) (yes bool) {
	of := g.table.of(p)
	if of == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	_ = of.changed.Until(ctx, func() bool {
		yes = g.serves(p)
		return yes || g.table.empty(of)
	})
	return yes
}

// Decides reports whether the gate, and not the connection gater, decides about an incoming connection of p.
func (g *Gate) Decides(p peer.ID) bool {
	return g.cfg.Policy != nil && !g.cfg.IsMember(p) && g.cfg.Policy.judge(p) != LeftToGater
}

// Stays reports whether a connection may stay: its peer is a member, has proved a secret on it, or may still be admitted.
func (g *Gate) Stays(nc network.Conn) bool {
	s, ok := nc.Scope().(*scope)
	return ok && g.table.stays(s.conn)
}

// Admits reports whether p has proved a secret on a connection that it still has.
func (g *Gate) Admits(p peer.ID) bool { return g.table.admits(p) }

// Proved is how many connected peers have proved a secret.
func (g *Gate) Proved() int { return g.table.proved() }

// TakeCircuit takes the one circuit to a controller that each of p's connections may have, and reports false if none is left.
func (g *Gate) TakeCircuit(p peer.ID) bool { return g.table.takeCircuit(p) }

// Follow has the gate notified of n's connections. It closes those that have neither a slot nor been admitted: the
// membership may change between a handshake and the swarm's notice.
func (g *Gate) Follow(n network.Network) {
	n.Notify(&network.NotifyBundle{ConnectedF: func(_ network.Network, nc network.Conn) {
		if !g.connected(nc) {
			g.closing.close(nc)
		}
	}})
}

func (g *Gate) connected(nc network.Conn) bool {
	s, ok := nc.Scope().(*scope)
	return ok && g.table.attach(s.conn, nc)
}

// Run closes connections whose time is over, until ctx ends.
func (g *Gate) Run(ctx context.Context) {
	for g.cfg.Policy != nil && wake.Sleep(ctx, sweepEvery) {
		g.sweep(time.Now())
	}
}

func (g *Gate) sweep(now time.Time) {
	late, unproved := g.table.sweep(now)
	for _, c := range unproved {
		g.cfg.Refused(g.cfg.Policy.late, c.peer, c.address())
	}
	for _, c := range late {
		g.closing.close(c.conn)
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
