package decide

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

const (
	offerMin  = 15 * time.Second // between two rounds of offers that led to nothing
	offerMax  = 10 * time.Minute
	offerSoon = time.Second      // after a failure, or a change of addresses
	keepOld   = 10 * time.Second // requests of the session before are answered for so long
)

// peer is what is known of one member.
type peer struct {
	id       mesh.PeerID
	low      bool          // our ID is the lower one
	pods     [2]bool       // IP versions that both nodes have blocks of: IPv4, IPv6
	gateways [2]netip.Addr // the peer's

	tracks map[trackKey]*track
	using  [2]*track        // by pod IP version; nil is the tunnel
	wanted []mesh.Candidate // what the kernel is to hold

	received uint64 // bytes past the tunnel
	forwards [2]forwarding

	agreement
	offers
}

// agreement is what the last exchange of offers brought.
type agreement struct {
	sess, old *session // in use; the one before
	oldUntil  time.Time
	us, them  Offer
}

// sessionOf returns the session with an ID, nil when it is no longer the peer's.
func (a *agreement) sessionOf(id uint64, now time.Time) *session {
	switch {
	case a.sess != nil && a.sess.id == id:
		return a.sess
	case a.old != nil && a.old.id == id && now.Before(a.oldUntil):
		return a.old
	}
	return nil
}

// offers is when offers are exchanged, and the outcome.
type offers struct {
	round     int
	nextOffer time.Time // no own offer before
	pause     time.Duration
	offering  bool // ours is in progress
	answering int  // exchanges that the peer began, in progress
	ticket    int  // of the last exchange begun by either: only that one counts
	stale     bool // our addresses have changed since the offer
	offerErr  string
}

func newPeer(self, id mesh.PeerID) *peer {
	return &peer{id: id, low: self < id, tracks: map[trackKey]*track{}, forwards: [2]forwarding{newForwarding(false), newForwarding(true)}}
}

// describe fills in what the membership says of the peer. It reports whether that changed.
// versions are the IP versions of which this node has a gateway.
func (p *peer) describe(blocks []netip.Prefix, versions [2]bool) bool {
	pods, gateways := p.pods, p.gateways
	for v, have := range versions {
		of := mesh.OfVersion(blocks, v == 1)
		p.gateways[v], p.pods[v] = netip.Addr{}, have && len(of) > 0
		if p.pods[v] {
			p.gateways[v] = mesh.Gateway(of[0])
		}
	}
	return pods != p.pods || gateways != p.gateways
}

// install brings a new session, of a round, and its candidates into force. A track whose
// candidate is among them continues as it is.
func (p *peer) install(s *session, us, them Offer, round int, all []candidate, now time.Time) {
	p.round = round + 1
	p.pause = max(p.pause, offerMin)
	p.nextOffer = now.Add(p.pause)
	p.old, p.oldUntil = p.sess, now.Add(keepOld)
	p.sess, p.us, p.them = s, us, them
	p.stale, p.offerErr = false, ""
	for v := range p.forwards {
		p.forwards[v].again(now)
	}
	before := p.tracks
	p.tracks = make(map[trackKey]*track, len(all))
	for _, c := range all {
		t := newTrack(c, now)
		for _, o := range before {
			if o.c.same(c) {
				if t = o; t.state == down || t.state == proving { // the peer is new, or has changed
					t = newTrack(c, now)
					t.pause, t.why, t.answered = o.pause, o.why, o.answered // what it failed of is true until it is proved
				}
				t.c.slot = c.slot
				break
			}
		}
		p.tracks[c.key()] = t
	}
}

// drop ends the session: its paths go.
func (p *peer) drop() {
	p.sess, p.old = nil, nil
	clear(p.tracks)
}

// works reports whether any path is in use.
func (p *peer) works() bool { return p.using[0] != nil || p.using[1] != nil }

// proved reports whether gateway probes are answered on any path.
func (p *peer) proved() bool {
	for _, t := range p.tracks {
		if t.usable() {
			return true
		}
	}
	return false
}

// wantsOffer reports whether offers should be exchanged now, given that there is a
// connection.
func (p *peer) wantsOffer(now time.Time) bool {
	at, ok := p.nextExchange()
	return ok && !now.Before(at)
}

// nextExchange is when wantsOffer is true, as far as it is known.
func (p *peer) nextExchange() (at time.Time, ok bool) {
	return p.nextOffer, !p.offering && p.answering == 0 && (p.sess == nil || p.stale || !p.works())
}

// offered notes that we sent an offer and returns its ticket. The pause before the next
// one grows as long as offers do not lead to a path.
func (p *peer) offered(now time.Time) int {
	p.offering = true
	p.ticket++
	p.pause = min(max(2*p.pause, offerMin), offerMax)
	p.nextOffer = now.Add(p.pause)
	return p.ticket
}

// answers notes an exchange that the peer began and returns its ticket; false means that
// ours counts: both began at the same time, and our ID is the lower one.
func (p *peer) answers() (int, bool) {
	if p.offering && p.low {
		return 0, false
	}
	p.answering++
	p.ticket++
	return p.ticket, true
}

// roundFor is the round in which VXLAN stays on the pair of addresses that works now, as
// far as the peer's addresses are known; otherwise the next round.
func (p *peer) roundFor(us Offer) int {
	for _, v6 := range []bool{false, true} {
		t := p.tracks[trackKey{v6, vxlanSlot}]
		if t == nil || !t.usable() {
			continue
		}
		for i, x := range vxlanPairs(pairsOf(us, p.them, p.low), us) {
			if x.us.Addr == t.c.local && x.them.Addr == t.c.via && x.mac == t.c.mac {
				return i
			}
		}
	}
	return p.round
}

// offerEnded notes that the exchange which our offer began is over, and why if it failed. A failure counts only as long as
// no other exchange has begun.
func (p *peer) offerEnded(now time.Time, ticket int, err error) {
	p.offering = false
	if err == nil || p.ticket != ticket {
		return
	}
	p.offerErr = err.Error()
	p.stale = p.stale || errors.Is(err, ErrUnconfirmed)
	if p.sess == nil || p.stale {
		p.nextOffer = now.Add(max(offerSoon, p.pause/8))
	}
}

// hopeful reports whether any track works or receives the peer's probes.
func (p *peer) hopeful(now time.Time) bool {
	for _, t := range p.tracks {
		if t.accepts(now) {
			return true
		}
	}
	return false
}

// exclude gives up the tracks of a kind.
func (p *peer) exclude(kind mesh.PathKind) {
	for k, t := range p.tracks {
		if t.c.kind == kind {
			delete(p.tracks, k)
		}
	}
}

// distrust gives up VXLAN across routers, and global addresses, where the membership no longer has both ends in one network.
func (p *peer) distrust(trust mesh.Trust) {
	for k, t := range p.tracks {
		if (t.c.kind == mesh.VXLAN && t.c.mac == (MAC{}) || t.c.global()) && !trust.Covers(t.c.local, t.c.via) {
			delete(p.tracks, k)
		}
	}
}

// addressesChanged gives up the tracks whose address of ours is gone, and tries those
// again whose address is back.
func (p *peer) addressesChanged(uplinks []mesh.Uplink, now time.Time) {
	if p.sess == nil {
		return
	}
	for _, t := range p.tracks {
		there := slices.ContainsFunc(uplinks, func(u mesh.Uplink) bool {
			return u.Addr == t.c.local && (t.c.kind == mesh.VXLAN || u.Link == t.c.link)
		})
		if !there && !t.lost {
			t.lose(now, fmt.Sprintf("our address %s is gone", t.c.local))
		}
		if there {
			t.regain(now)
		}
	}
	p.stale = true
	p.pause = 0
	p.nextOffer = minTime(p.nextOffer, now.Add(offerSoon/4))
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// next is when tick is due.
func (p *peer) next() (at time.Time, ok bool) {
	for _, t := range p.tracks {
		if !ok || t.next.Before(at) {
			at, ok = t.next, true
		}
	}
	for v := range p.forwards {
		if f := &p.forwards[v]; f.works() && !f.sends.IsZero() && (!ok || f.sends.Before(at)) {
			at, ok = f.sends, true
		}
	}
	return at, ok
}

// better says whether a should be used rather than b.
func better(a, b *track) bool {
	if b == nil {
		return true
	}
	if (a.c.kind == mesh.Native) != (b.c.kind == mesh.Native) {
		return a.c.kind == mesh.Native
	}
	return a.c.slot < b.c.slot
}

// choose takes the best usable track of each IP version; it returns the versions
// whose choice changed. A path in use is only left for a better kind, or for one that passes what it loses.
func (p *peer) choose() (changed []int) {
	for v := range p.using {
		f, old := &p.forwards[v], p.using[v]
		var best *track
		for _, t := range p.ranked(v == 1) {
			proved := !t.tested.IsZero() || !f.proves() || t == old
			if proved && (best == nil || passes(t, best)) {
				best = t
			}
		}
		if old != nil && best != nil && old.usable() && p.tracks[old.c.key()] == old && old.c.kind == best.c.kind && !passes(best, old) {
			best = old
		}
		if best != nil && passes(f.tunnel, best) {
			best = nil
		}
		if best == old {
			continue
		}
		p.using[v] = best
		changed = append(changed, v)
		if best != nil {
			p.pause = 0
		}
	}
	return changed
}

// sight is what choose and plan look at of one track, and of the round under way.
type sight struct {
	usable, accepts bool
	in              string
	here, tunnel    outcome
	on              *track
	theirs          netip.Addr
}

func (p *peer) seen(t *track, now time.Time) sight {
	f := &p.forwards[version(t.c.v6)]
	return sight{t.usable(), t.accepts(now), t.in, t.outcome, f.tunnel.outcome, f.on, f.theirs}
}

// plan recomputes what the kernel is to hold; it reports whether that changed.
func (p *peer) plan(now time.Time) bool {
	var wanted []mesh.Candidate
	for _, v6 := range []bool{false, true} {
		for slot := range mesh.ProbeSlots {
			t := p.tracks[trackKey{v6, slot}]
			if t == nil {
				continue
			}
			wanted = append(wanted, mesh.Candidate{
				Peer: p.id, V6: v6, Kind: t.c.kind, Slot: slot, Link: t.c.link, In: t.in, Via: t.c.via, Local: t.c.local, MAC: t.c.mac, MTU: t.c.mtu,
				Probe: true, Accept: t.accepts(now), Use: p.using[version(v6)] == t,
			})
			if f := &p.forwards[version(v6)]; f.on == t && p.using[version(v6)] != t {
				wanted[len(wanted)-1].Aside = f.theirs
			}
		}
		if f := &p.forwards[version(v6)]; f.on == f.tunnel && p.using[version(v6)] != nil {
			wanted = append(wanted, mesh.Candidate{Peer: p.id, V6: v6, Slot: tunnelSlot, Aside: f.theirs})
		}
	}
	if slices.Equal(wanted, p.wanted) {
		return false
	}
	p.wanted = wanted
	return true
}
