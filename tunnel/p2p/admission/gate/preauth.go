package gate

import (
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/admission/pool"
	"edgemesh/tunnel/p2p/who/refusals"
)

const (
	// sweepEvery is how often connections are closed whose time is over.
	sweepEvery = 250 * time.Millisecond
	// enough is more than a member needs for the proof: a round trip or two.
	enough = time.Second
	// lastWords is what a refused connection has left to read the verdict.
	lastWords = time.Second
)

var errRefused = errors.New("gate: the peer is not admitted")

// preauth has the connections that wait or ask. The gate's lock guards it.
type preauth struct {
	conns      map[*conn]struct{}
	elsewhere  *pool.Pool[*conn]     // slots of those from addresses that no member has come from
	home       *pool.Pool[*conn]     // slots of the others
	remembered *pool.Memory[peer.ID] // peers that have proved a secret; they need no slot
	secrets    []join.Secret
}

func newPreauth(p *Policy) preauth {
	if p == nil {
		return preauth{}
	}
	x := preauth{conns: make(map[*conn]struct{}), elsewhere: pool.New[*conn](p.slots), remembered: pool.NewMemory[peer.ID](maxPeers), secrets: p.secrets}
	if x.home = x.elsewhere; p.homeSlots > 0 {
		x.home = pool.New[*conn](p.homeSlots)
	}
	return x
}

// authenticated takes c out of its handshake.
func (g *Gate) authenticated(c *conn, p peer.ID) error {
	listed, ruling := !c.inbound || g.cfg.IsMember(p), LeftToGater
	if !listed && g.cfg.Policy != nil {
		ruling = g.cfg.Policy.judge(p)
	}
	victim, reason := g.enter(c, p, listed, ruling)
	if victim != nil {
		g.cfg.Refused(g.cfg.Policy.full, victim.peer, victim.address())
		if victim.conn != nil { // else connected does not take it
			g.closing.close(victim.conn)
		}
	}
	if reason == "" {
		return nil
	}
	g.cfg.Refused(reason, p, c.address())
	g.end(c)
	return errRefused
}

// enter admits c, or has it wait; or says why not. victim has lost its slot for it.
func (g *Gate) enter(c *conn, p peer.ID, listed bool, ruling Ruling) (victim *conn, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.state != handshaking {
		return nil, "" // it has ended
	}
	if ruling == Banned {
		return nil, refusals.Banned
	}
	if ruling == MayWait {
		if victim, reason = g.wait(c, p); reason != "" {
			return nil, reason
		}
	} else {
		c.to(admitted)
	}
	if c.direct && (listed || g.admits(p)) {
		g.homes.Add(c.site)
	}
	c.peer = p
	of := g.peers[p]
	if of == nil {
		of = &connsOf{}
		g.peers[p] = of
	}
	of.conns = append(of.conns, c)
	return victim, ""
}

// wait takes a slot for c. The caller holds mu.
func (g *Gate) wait(c *conn, p peer.ID) (victim *conn, reason string) {
	policy := g.cfg.Policy
	if of := g.peers[p]; of != nil && policy.perPeer > 0 {
		n := 0
		for _, other := range of.conns {
			if other.mayProve() {
				n++
			}
		}
		if n >= policy.perPeer {
			return nil, policy.full
		}
	}
	var from *pool.Pool[*conn]
	if !g.pre.remembered.Has(p) {
		if from = g.pre.elsewhere; g.homes.Has(c.site) {
			from = g.pre.home
		}
		if policy.perSite > 0 && from.At(c.site) >= policy.perSite {
			return nil, policy.full
		}
		var ok bool
		if victim, ok = from.Displace(c.site); !ok {
			return nil, policy.full
		}
		if victim != nil {
			g.leave(victim)
		}
	}
	c.to(waiting)
	if from != nil {
		from.Add(c, c.site)
		c.release = func() { from.Remove(c, c.site) }
	}
	c.deadline = time.Now().Add(policy.stay)
	g.pre.conns[c] = struct{}{}
	return victim, ""
}

// leave closes c's state. The caller holds mu.
func (g *Gate) leave(c *conn) {
	if !c.to(closed) {
		return
	}
	delete(g.pre.conns, c)
	if of := g.peers[c.peer]; of != nil {
		if of.conns = slices.DeleteFunc(of.conns, func(x *conn) bool { return x == c }); len(of.conns) == 0 {
			delete(g.peers, c.peer)
		}
		of.changed.Broadcast()
	}
}

// admit closes the books on c: its peer may use everything. The caller holds mu.
func (g *Gate) admit(c *conn) {
	if c.to(admitted) {
		delete(g.pre.conns, c)
		g.peers[c.peer].changed.Broadcast()
	}
}

// end notes that c has ended. A peer that had time for a proof and left has none: nodes without a secret do not wait for
// their deadline.
func (g *Gate) end(c *conn) {
	g.mu.Lock()
	unproved := (c.state == waiting || c.state == asking) && g.cfg.Policy.late != "" && time.Until(c.deadline) <= g.cfg.Policy.stay-enough
	g.leave(c)
	g.mu.Unlock()
	if unproved {
		g.cfg.Refused(g.cfg.Policy.late, c.peer, c.address())
	}
}

// sweep closes the connections whose time is over, unless the membership lists their peer meanwhile.
func (g *Gate) sweep(now time.Time) {
	g.mu.Lock()
	var late, unproved []*conn
	for c := range g.pre.conns {
		if now.Before(c.deadline) {
			continue
		}
		if g.cfg.IsMember(c.peer) {
			g.admit(c)
			continue
		}
		if c.state != refused && g.cfg.Policy.late != "" && c.conn != nil {
			unproved = append(unproved, c)
		}
		g.leave(c)
		late = append(late, c)
	}
	g.mu.Unlock()
	for _, c := range unproved {
		g.cfg.Refused(g.cfg.Policy.late, c.peer, c.address())
	}
	for _, c := range late {
		if c.conn != nil { // else connected does not take it
			g.closing.close(c.conn)
		}
	}
}

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
	c := scope(nc)
	if c == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c.conn = nc
	return g.stays(c)
}

// stays reports whether c has been admitted, or may still be. The caller holds mu.
func (g *Gate) stays(c *conn) bool {
	if c.state == closed {
		return false
	}
	return g.cfg.IsMember(c.peer) || (c.mayProve() || c.secret != (join.Secret{})) && g.cfg.Policy.judge(c.peer) == MayWait
}

// scope returns the gate's part of a connection, nil if it has none.
func scope(nc network.Conn) *conn {
	c, _ := nc.Scope().(*conn)
	return c
}

// Decides reports whether the gate, and not the connection gater, decides about an incoming connection of p.
func (g *Gate) Decides(p peer.ID) bool {
	return g.cfg.Policy != nil && !g.cfg.IsMember(p) && g.cfg.Policy.judge(p) != LeftToGater
}

// Stays reports whether a connection may stay: its peer is a member, has proved a secret on it, or may still be admitted.
func (g *Gate) Stays(nc network.Conn) bool {
	c := scope(nc)
	g.mu.Lock()
	defer g.mu.Unlock()
	return c != nil && g.stays(c)
}

// Admits reports whether p has proved a secret on a connection that it still has.
func (g *Gate) Admits(p peer.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admits(p)
}

func (g *Gate) admits(p peer.ID) bool {
	of := g.peers[p]
	return of != nil && g.cfg.Policy != nil && g.cfg.Policy.judge(p) == MayWait &&
		slices.ContainsFunc(of.conns, func(c *conn) bool { return c.secret != (join.Secret{}) })
}

// Proved is how many connected peers have proved a secret.
func (g *Gate) Proved() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.peers {
		if g.admits(p) {
			n++
		}
	}
	return n
}

// Ask takes the one circuit to a controller that each of p's connections may have, and reports false if none is left.
func (g *Gate) Ask(p peer.ID) bool {
	if !g.cfg.Policy.circuit {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.peers[p]
	return of != nil && slices.ContainsFunc(of.conns, func(c *conn) bool { return c.conn != nil && c.to(asking) })
}
