package knock

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Config is what a Guard needs; all is required.
type Config struct {
	Places   int                // how many handshakes may be under way
	IsMember func(peer.ID) bool // whose addresses are remembered
	// Refused is told of everything that is refused, by the pool or by the resource manager; the peer is "" before the
	// handshake, and the address may be.
	Refused func(reason string, p peer.ID, from string)
}

// circuitPart: a relay has that part of as many places as there are for direct connections, beside these.
const circuitPart = 8

// Guard is a resource manager that also takes a place for each incoming connection until it is known whose it is.
type Guard struct {
	network.ResourceManager
	cfg   Config
	pool  *pool
	turns *turns
	via   circuits
	from  sync.Map // peer.ID → the *knocking of its latest connection, while that is open
}

// New returns a Guard of what rm manages.
func New(rm network.ResourceManager, c Config) *Guard {
	return &Guard{ResourceManager: rm, cfg: c, pool: newPool(c.Places), turns: newTurns(),
		via: circuits{each: max(c.Places/circuitPart, 1), by: make(map[string]int)}}
}

// VerifySourceAddress implements network.ResourceManager.
func (g *Guard) VerifySourceAddress(a net.Addr) bool {
	return g.pool.busy() || g.ResourceManager.VerifySourceAddress(a)
}

// OpenConnection implements network.ResourceManager.
func (g *Guard) OpenConnection(dir network.Direction, usefd bool, remote ma.Multiaddr) (network.ConnManagementScope, error) {
	k := &knocking{guard: g, at: remote}
	// A circuit's address begins with its relay's, which would take that one's places in the midst of a flood.
	if dir == network.DirInbound && remote != nil && endpoint.IsCircuit(remote) {
		relay, _ := remote.ValueForProtocol(ma.P_P2P)
		if !g.via.take(relay) {
			g.cfg.Refused(refusals.Handshakes, "", remote.String())
			return nil, errFull
		}
		k.leave = sync.OnceFunc(func() { g.via.leave(relay) })
	} else if from, err := manet.ToIP(remote); dir == network.DirInbound && err == nil {
		addr, _ := netip.AddrFromSlice(from)
		if err := g.pool.take(addr); err != nil {
			reason := refusals.Handshakes
			if errors.Is(err, errShare) {
				reason = refusals.Address
			}
			g.cfg.Refused(reason, "", addr.String())
			return nil, err
		}
		k.leave = sync.OnceFunc(func() { g.pool.leave(addr) })
		k.remember = func() { g.pool.remember(addr) }
	}
	scope, err := g.ResourceManager.OpenConnection(dir, usefd, remote)
	if err != nil {
		k.left()
		g.cfg.Refused(refusals.Connections, "", k.address())
		return nil, err
	}
	k.ConnManagementScope = scope
	return k, nil
}

// Places is how many places for handshakes there are, and are taken now.
func (g *Guard) Places() (all, taken int) {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.pool.places, g.pool.taken
}

// OpenStream implements network.ResourceManager.
func (g *Guard) OpenStream(p peer.ID, dir network.Direction) (network.StreamManagementScope, error) {
	s, err := g.ResourceManager.OpenStream(p, dir)
	if err != nil {
		from := ""
		if k, ok := g.from.Load(p); ok {
			from = k.(*knocking).address()
		}
		g.cfg.Refused(refusals.PeerStreams, p, from)
	}
	return s, err
}

// knocking is the scope of a connection.
type knocking struct {
	network.ConnManagementScope
	guard           *Guard
	at              ma.Multiaddr
	leave, remember func() // nil: it has no place

	mu   sync.Mutex // only the map's lock is taken below it
	peer peer.ID    // "" until SetPeer
	done bool
}

func (k *knocking) address() string {
	if k.at == nil {
		return ""
	}
	return k.at.String()
}

// SetPeer implements network.ConnManagementScope: the handshake is over.
func (k *knocking) SetPeer(p peer.ID) error {
	if k.remember != nil && k.guard.cfg.IsMember(p) {
		k.remember()
	}
	k.left()
	err := k.ConnManagementScope.SetPeer(p)
	if err == nil {
		k.note(p)
	} else {
		k.guard.cfg.Refused(refusals.PeerConns, p, k.address())
	}
	return err
}

// Done implements network.ConnManagementScope.
func (k *knocking) Done() {
	k.left()
	k.mu.Lock()
	k.done = true
	k.guard.from.CompareAndDelete(k.peer, k)
	k.mu.Unlock()
	k.ConnManagementScope.Done()
}

// note notes where p is.
func (k *knocking) note(p peer.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peer = p; !k.done {
		k.guard.from.Store(p, k)
	}
}

func (k *knocking) left() {
	if k.leave != nil {
		k.leave()
	}
}

// PeerScope implements network.ConnManagementScope.
func (k *knocking) PeerScope() network.PeerScope {
	s := k.ConnManagementScope.PeerScope()
	if s == nil {
		return nil
	}
	return watched{s, k}
}

// watched is the scope of a connection's peer.
type watched struct {
	network.PeerScope
	conn *knocking
}

// BeginSpan implements network.PeerScope.
func (w watched) BeginSpan() (network.ResourceScopeSpan, error) {
	s, err := w.PeerScope.BeginSpan()
	if err != nil {
		return nil, err
	}
	return span{s, w}, nil
}

// span is what a session reserves for what waits to be read.
type span struct {
	network.ResourceScopeSpan
	of watched
}

// ReserveMemory implements network.ResourceScope. A window that cannot grow is no refusal.
func (s span) ReserveMemory(size int, priority uint8) error {
	err := s.ResourceScopeSpan.ReserveMemory(size, priority)
	if err != nil && priority > network.ReservationPriorityMedium {
		s.of.conn.guard.cfg.Refused(refusals.Memory, s.of.Peer(), s.of.conn.address())
	}
	return err
}
