package knock

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Reasons of refusals, as a metric's label has them.
const (
	full  = "handshakes" // all places are taken
	share = "address"    // this address has taken its share
)

// logEvery bounds how often refusals are told.
const logEvery = time.Minute

// Config is what a Guard needs; all but Refused is required.
type Config struct {
	Places   int                // how many handshakes may be under way
	IsMember func(peer.ID) bool // whose addresses are remembered
	Refused  func(reason string)
	Log      *slog.Logger
}

// Guard returns rm, which also takes a place for each incoming connection until it is known whose it is.
func Guard(rm network.ResourceManager, c Config) network.ResourceManager {
	return &guard{ResourceManager: rm, cfg: c, pool: newPool(c.Places)}
}

type guard struct {
	network.ResourceManager
	cfg  Config
	pool *pool

	mu     sync.Mutex // a leaf: guards what follows
	told   time.Time
	untold int // refusals since then
}

// refuse counts a refusal, and tells of it once in a while.
func (g *guard) refuse(from netip.Addr, err error) {
	reason := full
	if errors.Is(err, errShare) {
		reason = share
	}
	if g.cfg.Refused != nil {
		g.cfg.Refused(reason)
	}
	g.mu.Lock()
	g.untold++
	n, due := g.untold, time.Since(g.told) >= logEvery
	if due {
		g.told, g.untold = time.Now(), 0
	}
	g.mu.Unlock()
	if due {
		g.cfg.Log.Warn("connections refused before their handshake: a stranger opens many and does not say who it is; members have places of their own",
			"refused", n, "reason", reason, "last", from)
	}
}

// VerifySourceAddress implements network.ResourceManager.
func (g *guard) VerifySourceAddress(a net.Addr) bool {
	return g.pool.busy() || g.ResourceManager.VerifySourceAddress(a)
}

// OpenConnection implements network.ResourceManager.
func (g *guard) OpenConnection(dir network.Direction, usefd bool, remote ma.Multiaddr) (network.ConnManagementScope, error) {
	if dir != network.DirInbound || remote == nil {
		return g.ResourceManager.OpenConnection(dir, usefd, remote)
	}
	from, err := manet.ToIP(remote)
	if err != nil { // a circuit: its peer is known
		return g.ResourceManager.OpenConnection(dir, usefd, remote)
	}
	addr, _ := netip.AddrFromSlice(from)
	if err := g.pool.take(addr); err != nil {
		g.refuse(addr, err)
		return nil, err
	}
	scope, err := g.ResourceManager.OpenConnection(dir, usefd, remote)
	if err != nil {
		g.pool.leave(addr)
		return nil, err
	}
	return &knocking{ConnManagementScope: scope, guard: g, from: addr}, nil
}

// knocking is the scope of an incoming connection.
type knocking struct {
	network.ConnManagementScope
	guard *guard
	from  netip.Addr
	left  sync.Once
}

// SetPeer implements network.ConnManagementScope: the handshake is over.
func (k *knocking) SetPeer(p peer.ID) error {
	if k.guard.cfg.IsMember(p) {
		k.guard.pool.remember(k.from)
	}
	k.leave()
	return k.ConnManagementScope.SetPeer(p)
}

// Done implements network.ConnManagementScope.
func (k *knocking) Done() {
	k.leave()
	k.ConnManagementScope.Done()
}

func (k *knocking) leave() { k.left.Do(func() { k.guard.pool.leave(k.from) }) }
