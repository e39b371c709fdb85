package members

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Gater admits members, relays and controllers only, on both sides of a connection, and no
// connection that would run inside the cluster's own ranges (a tunnel inside the
// tunnel), but those of controllers: they do not carry the tunnel, and the kernel delivers what a controller's pod sends to
// its own node with the pod's address. The gater reads the view again for every decision.
type Gater struct {
	rules       Rules
	view        atomic.Pointer[View]
	quarantined sync.Map // peer.ID → quarantine
}

// Rules are what the owner of a Gater adds to the membership. All are optional.
type Rules struct {
	// Dialable reports whether an address of a member may be dialed. Addresses of
	// relays that are not members come from the operator and are not checked.
	Dialable func(endpoint.Endpoint) bool
	// Owns reports whether an address is known to be a member's. At others the swarm does
	// not dial it of its own accord.
	Owns func(peer.ID, netip.Addr) bool
	// Met is called when a member has shown its key at an address.
	Met func(peer.ID, netip.Addr)
	// Refused is called with the reason, the peer if it has shown who it is, and the address when a connection is refused.
	Refused func(reason string, p peer.ID, from string)
}

var _ connmgr.ConnectionGater = (*Gater)(nil)

// NewGater returns a gater that enforces r.
func NewGater(r *View, rules Rules) *Gater {
	g := &Gater{rules: rules}
	if g.rules.Refused == nil {
		g.rules.Refused = func(string, peer.ID, string) {}
	}
	g.view.Store(r)
	return g
}

// View is the one in force.
func (g *Gater) View() *View { return g.view.Load() }

// SetView puts r in force and returns the one before.
func (g *Gater) SetView(r *View) *View { return g.view.Swap(r) }

// admits reports whether p may be connected now.
func (g *Gater) admits(p peer.ID) bool { return g.View().Known(p) && g.Refusal(p) == nil }

// InterceptPeerDial is called before a peer is dialed.
func (g *Gater) InterceptPeerDial(p peer.ID) bool { return g.admits(p) }

// MayDial reports whether p may be dialed at a.
func (g *Gater) MayDial(p peer.ID, a ma.Multiaddr) bool {
	r := g.View()
	if e, ok := endpoint.Target(a); ok && g.rules.Dialable != nil && !r.IsOperators(p) && !g.rules.Dialable(e) {
		return false
	}
	return g.admits(p) && r.Outside(a)
}

// InterceptAddrDial is called by the swarm: the DHT dials the peers it searches at
// whatever addresses it was given.
func (g *Gater) InterceptAddrDial(p peer.ID, a ma.Multiaddr) bool {
	if e, ok := endpoint.Target(a); ok && g.rules.Owns != nil && !g.View().IsOperators(p) && !g.rules.Owns(p, e.Addr.Addr()) {
		return false
	}
	return g.MayDial(p, a)
}

// InterceptAccept is called before the handshake: only the addresses are known. Where there are controllers, whoever comes from an
// address of the cluster may be one.
func (g *Gater) InterceptAccept(c network.ConnMultiaddrs) bool {
	if r := g.View(); r.Outside(c.LocalMultiaddr()) && (r.Outside(c.RemoteMultiaddr()) || r.HasControllers()) {
		return true
	}
	g.rules.Refused(refusals.Inside, "", c.RemoteMultiaddr().String())
	return false
}

// InterceptSecured is called as soon as the handshake has shown who the peer is,
// before a stranger learns any protocol.
func (g *Gater) InterceptSecured(_ network.Direction, p peer.ID, c network.ConnMultiaddrs) bool {
	if !g.admits(p) {
		reason := refusals.Stranger
		if v := g.View(); v.Known(p) || v.Banned(p) {
			reason = refusals.Banned
		}
		g.rules.Refused(reason, p, c.RemoteMultiaddr().String())
		return false
	}
	if !g.MayCome(p, c) {
		return true // InterceptUpgraded says why to the peer, which the membership lists
	}
	if e, ok := endpoint.Target(c.RemoteMultiaddr()); ok && g.rules.Met != nil && g.View().Outside(c.RemoteMultiaddr()) {
		g.rules.Met(p, e.Addr.Addr())
	}
	return true
}

// MayCome reports whether p may have a connection with these ends, and counts it as refused if not.
func (g *Gater) MayCome(p peer.ID, c network.ConnMultiaddrs) bool {
	may := g.View().MayComeFrom(p, c.RemoteMultiaddr())
	if !may {
		g.rules.Refused(refusals.Inside, p, c.RemoteMultiaddr().String())
	}
	return may
}

// InterceptUpgraded is called last.
func (g *Gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	if !g.View().MayComeFrom(c.RemotePeer(), c.RemoteMultiaddr()) {
		conns.End(c, conns.Inside)
		return false, 0
	}
	return g.admits(c.RemotePeer()), 0
}

// quarantine is the refusal of one member.
type quarantine struct {
	until time.Time
	why   string
}

// Quarantine refuses p for d, in both directions. why is what an operator reads.
// The caller closes the connections that exist.
func (g *Gater) Quarantine(p peer.ID, d time.Duration, why string) {
	g.quarantined.Store(p, quarantine{time.Now().Add(d), why})
}

// Refusal says why p is refused now, in an error that wraps ErrQuarantined; nil if it is
// not.
func (g *Gater) Refusal(p peer.ID) error {
	v, ok := g.quarantined.Load(p)
	if !ok {
		return nil
	}
	if s, ok := v.(quarantine); ok && time.Now().Before(s.until) {
		return fmt.Errorf("%w until %s: %s", ErrQuarantined, s.until.Format(time.TimeOnly), s.why)
	}
	g.quarantined.CompareAndDelete(p, v)
	return nil
}
