package decide

import (
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Exchange is one exchange of offers with a member, in progress.
type Exchange struct {
	Peer      mesh.PeerID
	Us        Offer
	peer      *peer
	ticket    int
	initiator bool
}

// offer begins an exchange with a peer when it is time, nil when it is not.
func (m *Machine) offer(p *peer, now time.Time, connected func(mesh.PeerID) bool) *Exchange {
	if m.off.mutes(p) || !p.wantsOffer(now) {
		return nil
	}
	if !connected(p.id) {
		p.nextOffer = now.Add(offerSoon)
		if p.sess != nil && !p.hopeful(now) {
			m.endSession(p, now) // it begins again with the next connection
		}
		return nil
	}
	x := &Exchange{Peer: p.id, peer: p, ticket: p.offered(now), Us: m.ownOffer(), initiator: true}
	x.Us.Round = p.roundFor(x.Us)
	return x
}

// Answer begins the answer to an exchange that a member began. The error is ErrNoMember
// or ErrBusy.
func (m *Machine) Answer(id mesh.PeerID) (*Exchange, error) {
	p := m.peer(id)
	if p == nil {
		return nil, ErrNoMember
	}
	ticket, ok := p.answers()
	if !ok {
		return nil, ErrBusy
	}
	return &Exchange{Peer: id, peer: p, ticket: ticket, Us: m.ownOffer()}, nil
}

// Take brings the two offers of an exchange into force. It reports whether the exchange
// counts: the peer is a member, and no other exchange with it has begun since.
func (m *Machine) Take(now time.Time, x *Exchange, them Offer) bool {
	if m.peers[x.Peer] != x.peer || x.peer.ticket != x.ticket {
		return false
	}
	p, first, second, a, b := x.peer, x.Us, them, m.cfg.Self, x.Peer
	if !x.initiator {
		first, second, a, b = them, x.Us, x.Peer, m.cfg.Self
	}
	if p.old != nil {
		delete(m.sessions, p.old.id)
	}
	all := candidates(x.Us, them, m.uplinks, p.low, first.Round, p.pods[0], p.pods[1])
	sess := newSession(first, second, a, b, x.initiator)
	p.install(sess, x.Us, them, first.Round, all, now)
	m.sessions[sess.id] = p
	if now := m.ownOffer(); !slices.Equal(x.Us.Addrs, now.Addrs) || !slices.Equal(x.Us.Global, now.Global) || x.Us.PodsOnly != now.PodsOnly { // they changed meanwhile
		p.stale = true
	}
	m.choose(p, now)
	return true
}

// Ended says that an exchange is over, and why if it failed.
func (m *Machine) Ended(now time.Time, x *Exchange, err error) {
	if !x.initiator {
		x.peer.answering--
		return
	}
	x.peer.offerEnded(now, x.ticket, err)
}

// Candidates describes a member's candidates, for a log.
func (m *Machine) Candidates(id mesh.PeerID) []string {
	var out []string
	if p := m.peers[id]; p != nil {
		for _, t := range p.tracks {
			out = append(out, t.c.String())
		}
	}
	slices.Sort(out)
	return out
}

// ownOffer describes this node.
func (m *Machine) ownOffer() Offer {
	lan := m.plan.Host.LAN
	return Offer{
		Version: offerVersion, Secret: m.cfg.Secret(), ProbePort: m.cfg.ProbePort, Addrs: offered(m.plan, m.uplinks, mesh.PrivateUnderlay),
		Global:    offered(m.plan, m.uplinks, mesh.GlobalUnderlay),
		VXLANPort: lan.VXLANPort, VXLANIPv6: lan.IPv6Underlay, NoNative: m.off.Native, NoVXLAN: m.off.VXLAN, trust: m.plan.Trust,
		PodsOnly: m.plan.Host.Access.HostAccess.Closed(),
	}
}

// offered are the addresses of a kind that other members get to know: global ones, too, that nobody trusts, to say so.
func offered(plan mesh.Plan, uplinks []mesh.Uplink, kind func(netip.Addr) bool) []Address {
	var out []Address
	for _, u := range uplinks {
		if len(out) < maxAddrs && kind(u.Addr) && (plan.Underlay(u.Addr) || mesh.GlobalUnderlay(u.Addr)) {
			out = append(out, Address{u.Addr, u.Bits, u.MTU, u.MAC})
		}
	}
	return out
}
