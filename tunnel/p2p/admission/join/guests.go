package join

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/admission/places"
	"edgemesh/tunnel/p2p/who/refusals"
)

// guests are who has proved the secret, and who may still do so. A peer is admitted as long as it has a connection that
// proved the secret.
type guests struct {
	mu         sync.Mutex // guards what follows; nothing outside this package is called while it is held, except wake
	secrets    []Secret
	banned     map[peer.ID]bool // refused although they know the secret
	visitors   map[peer.ID]*visitor
	strangers  *places.Pool[*candidate]  // places of those whose address nobody knows
	atHome     *places.Pool[*candidate]  // and of those from addresses that members have come from
	homes      map[netip.Prefix]struct{} // these addresses
	remembered map[peer.ID]struct{}      // have proved the secret
}

func newGuests(secrets []Secret) *guests {
	return &guests{secrets: secrets, visitors: make(map[peer.ID]*visitor), strangers: places.New[*candidate](maxStrangers), atHome: places.New[*candidate](maxAtHome),
		homes: make(map[netip.Prefix]struct{}), remembered: make(map[peer.ID]struct{})}
}

// visitor is a peer with a connection here.
type visitor struct {
	waiting []*candidate            // at most maxPerPeer
	in      map[network.Conn]Secret // what each connection has proved
	changed wake.All
}

// candidate returns what waits for c, or nil.
func (v *visitor) candidate(c network.Conn) *candidate {
	for _, x := range v.waiting {
		if x.conn == c {
			return x
		}
	}
	return nil
}

// claim gives c a place that was taken for a connection from its address. Which one of several does not matter: they
// are one peer's.
func (v *visitor) claim(c network.Conn) bool {
	for _, x := range v.waiting {
		if x.conn == nil && x.addr == c.RemoteMultiaddr().String() {
			x.conn = c
			return true
		}
	}
	return false
}

// Admitted reports whether p has proved the secret on a connection that it still has.
func (g *guests) Admitted(p peer.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.visitors[p]
	return v != nil && len(v.in) > 0
}

// Waits reports whether p has a connection that may still prove the secret.
func (g *guests) Waits(p peer.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.visitors[p]
	return v != nil && len(v.waiting) > 0
}

// Len is the number of peers admitted now.
func (g *guests) Len() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range g.visitors {
		if len(v.in) > 0 {
			n++
		}
	}
	return n
}

// place takes one, or says why not. victim has lost its own for it.
func (g *guests) place(p peer.ID, remote ma.Multiaddr, now time.Time) (victim *candidate, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.banned[p] {
		return nil, refusals.Banned
	}
	if v := g.visitors[p]; v != nil && len(v.waiting) >= maxPerPeer {
		return nil, refusals.Waiting
	}
	c := &candidate{peer: p, addr: remote.String(), prefix: places.Near(remote), until: now.Add(patience)}
	if _, ok := g.remembered[p]; !ok {
		from := g.strangers
		if _, home := g.homes[c.prefix]; home {
			from = g.atHome
		}
		var ok bool
		if victim, ok = from.Room(c.prefix); !ok {
			return nil, refusals.Waiting
		}
		if victim != nil {
			g.leaveLocked(victim)
		}
		c.pool = from
		from.Add(c)
	}
	v := g.visitors[p]
	if v == nil {
		v = &visitor{in: make(map[network.Conn]Secret)}
		g.visitors[p] = v
	}
	v.waiting = append(v.waiting, c)
	return victim, ""
}

// leaveLocked takes c's place back.
func (g *guests) leaveLocked(c *candidate) {
	c.leave()
	v := g.visitors[c.peer]
	v.waiting = slices.DeleteFunc(v.waiting, func(x *candidate) bool { return x == c })
	g.tidyLocked(c.peer, v)
}

// tidyLocked forgets a visitor without connections, and has those look again who wait for it.
func (g *guests) tidyLocked(p peer.ID, v *visitor) {
	if len(v.waiting)+len(v.in) == 0 {
		delete(g.visitors, p)
	}
	v.changed.Broadcast()
}

// Connected takes note that the swarm has c. It reports false if c has neither a place nor proved anything.
func (g *guests) Connected(c network.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.visitors[c.RemotePeer()]
	if v == nil {
		return false
	}
	_, proved := v.in[c]
	return proved || v.candidate(c) != nil || v.claim(c)
}

// left forgets c and reports whether it ended without a proof that it had time for.
func (g *guests) left(c network.Conn, now time.Time) (unproved bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.visitors[c.RemotePeer()]
	if v == nil {
		return false
	}
	delete(v.in, c)
	x := v.candidate(c)
	if x == nil {
		g.tidyLocked(c.RemotePeer(), v)
		return false
	}
	g.leaveLocked(x)
	return !x.told && x.until.Sub(now) <= patience-enough
}

// admit lets c's peer in: it has proved s.
func (g *guests) admit(c network.Conn, s Secret) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := c.RemotePeer()
	v := g.visitors[p]
	if v == nil || c.IsClosed() || g.banned[p] {
		return // Disconnected may have been called before
	}
	v.in[c] = s
	if x := v.candidate(c); x != nil {
		g.leaveLocked(x)
	}
	g.tidyLocked(p, v)
	remember(g.remembered, p)
	remember(g.homes, places.Near(c.RemoteMultiaddr()))
}

// shorten leaves c lastWords, and remembers that its refusal was told.
func (g *guests) shorten(c network.Conn, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v := g.visitors[c.RemotePeer()]; v != nil {
		if x := v.candidate(c); x != nil {
			x.until, x.told = now.Add(lastWords), true
		}
	}
}

// Set replaces the secrets. Connections that proved a secret which is gone are closed: their peers may come back with
// another one.
func (g *guests) Set(secrets []Secret) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.secrets = secrets
	for p, v := range g.visitors {
		for c, s := range v.in {
			if !slices.Contains(secrets, s) {
				delete(v.in, c)
				go c.Close() // its last words may take some 100 ms
			}
		}
		g.tidyLocked(p, v)
	}
}

// Ban replaces the peers that are refused although they know the secret. Those that are connected are no longer admitted;
// the caller closes their connections.
func (g *guests) Ban(peers map[peer.ID]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.banned = peers
	for p, v := range g.visitors {
		if !peers[p] {
			continue
		}
		clear(v.in)
		for _, c := range slices.Clone(v.waiting) {
			g.leaveLocked(c)
		}
		g.tidyLocked(p, v)
	}
}

// strays returns those of conns that have neither a place nor proved anything. Whoever is here by another connection's proof
// has to prove it, too.
func (g *guests) strays(conns []network.Conn) []network.Conn {
	return slices.DeleteFunc(conns, func(c network.Conn) bool { return c.IsClosed() || g.Connected(c) })
}

// late takes back the places whose time is over, and returns who had them.
func (g *guests) late(now time.Time) (out []*candidate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range g.visitors {
		for _, c := range slices.Clone(v.waiting) {
			if !now.Before(c.until) {
				out = append(out, c)
				g.leaveLocked(c)
			}
		}
	}
	return out
}
