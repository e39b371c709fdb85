// Package lobby is where a relay lets nodes in before they are members, for as long as it takes to ask a controller: each
// connection may open one circuit to a controller, and nothing else. Addresses share the places (package places).
//
//	lobby.go   who is here
//	guard.go   what a guest may use
package lobby

import (
	"context"
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

const (
	// CircuitData is what a guest's circuit carries at most, in bytes each way: two handshakes, a request and its answer.
	CircuitData = 128 << 10
	// stay is how long a guest's connection lasts. Over a slow link the handshakes and the request take some seconds.
	stay = 20 * time.Second
	// sweepEvery is how often connections are closed whose time is over.
	sweepEvery = 500 * time.Millisecond
	// maxGuests bounds all guests' connections, maxPerAddress those from one IPv4 address or IPv6 /56: the nodes of a site
	// are behind one, and ask again when they find no place.
	maxGuests     = 256
	maxPerAddress = 32
)

// Lobby knows the guests' connections.
type Lobby struct {
	refused func(reason string, p peer.ID, from string) // counts and logs

	mu     sync.Mutex // a leaf: guards what follows
	pool   *places.Pool[*guest]
	guests []*guest
}

// guest is one connection.
type guest struct {
	peer    peer.ID
	addr    string       // the remote multiaddr
	conn    network.Conn // nil until the swarm has it
	prefix  netip.Prefix
	until   time.Time
	circuit bool // it has had its circuit
}

// Near implements places.Holder.
func (g *guest) Near() netip.Prefix { return g.prefix }

// Until implements places.Holder.
func (g *guest) Until() time.Time { return g.until }

// New returns an empty lobby; refused is told of each refusal.
func New(refused func(reason string, p peer.ID, from string)) *Lobby {
	return &Lobby{refused: refused, pool: places.New[*guest](maxGuests)}
}

// Enter gives an incoming connection a place, if there is one. The handshake has shown who the peer is.
func (l *Lobby) Enter(p peer.ID, remote ma.Multiaddr) bool {
	g := &guest{peer: p, addr: remote.String(), prefix: places.Near(remote), until: time.Now().Add(stay)}
	victim, ok := l.add(g)
	if victim != nil {
		l.refused(refusals.Lobby, victim.peer, victim.addr)
		if victim.conn != nil {
			go victim.conn.Close() // else Connected will not know it
		}
	}
	if !ok {
		l.refused(refusals.Lobby, p, g.addr)
	}
	return ok
}

func (l *Lobby) add(g *guest) (victim *guest, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pool.At(g.prefix) >= maxPerAddress {
		return nil, false
	}
	if victim, ok = l.pool.Room(g.prefix); !ok {
		return nil, false
	}
	if victim != nil {
		l.removeLocked(victim)
	}
	l.pool.Add(g)
	l.guests = append(l.guests, g)
	return victim, true
}

func (l *Lobby) removeLocked(g *guest) {
	l.pool.Remove(g)
	l.guests = slices.DeleteFunc(l.guests, func(x *guest) bool { return x == g })
}

// Connected takes note that the swarm has c. It reports false if c has no place.
func (l *Lobby) Connected(c network.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := -1
	for i, g := range l.guests {
		if g.conn == c {
			return true
		}
		// Which one of several does not matter: they are one peer's.
		if g.conn == nil && g.peer == c.RemotePeer() && g.addr == c.RemoteMultiaddr().String() {
			free = i
		}
	}
	if free < 0 {
		return false
	}
	l.guests[free].conn = c
	return true
}

// Disconnected takes note that c ended.
func (l *Lobby) Disconnected(c network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guests {
		if g.conn == c {
			l.removeLocked(g)
			return
		}
	}
}

// Has reports whether p is a guest.
func (l *Lobby) Has(p peer.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.guests, func(g *guest) bool { return g.peer == p })
}

// Circuit takes the one circuit that each of p's connections has, and reports false if none is left.
func (l *Lobby) Circuit(p peer.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guests {
		if g.peer == p && g.conn != nil && !g.circuit {
			g.circuit = true
			return true
		}
	}
	return false
}

// Run closes the connections of guests whose time is over, until ctx ends. served says who is no longer a guest: a member's
// connections stay.
func (l *Lobby) Run(ctx context.Context, served func(peer.ID) bool) {
	for wake.Sleep(ctx, sweepEvery) {
		for _, g := range l.late(time.Now()) {
			if g.conn != nil && !served(g.peer) {
				go g.conn.Close()
			}
		}
	}
}

// late takes back the places whose time is over, and returns who had them.
func (l *Lobby) late(now time.Time) (out []*guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range slices.Clone(l.guests) {
		if !now.Before(g.until) {
			out = append(out, g)
			l.removeLocked(g)
		}
	}
	return out
}
