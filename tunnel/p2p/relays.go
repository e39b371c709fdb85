package p2p

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/endpoint"
)

const (
	// relayBackoff bounds the wait between attempts to reach a relay that was
	// there a moment ago: one that was restarted is back in use within about that
	// time. See outagePause for longer outages.
	relayBackoff = 2 * time.Second
	// relayDialTimeout bounds one dial, security handshake included.
	relayDialTimeout = 4 * time.Second
	// relayRefresh is the longest time between two reservations. A relay forgets
	// them when it changes its mind about a member, and does not tell.
	relayRefresh = 2 * time.Minute
	// surveyEvery is how often the distance of a relay is measured that is not in
	// use; surveysAtOnce of them together.
	surveyEvery   = 10 * time.Minute
	surveysAtOnce = 4
	// visitFor is how long a relay stays connected that only carries circuits to
	// peers, once none is in use any more.
	visitFor = time.Minute
	// awaitPoll is how often awaitOne looks.
	awaitPoll = 20 * time.Millisecond
	// tcpChance is how long a relay reached by QUIC waits for TCP to follow.
	tcpChance = 300 * time.Millisecond
)

// relaySet has the relays of the membership. It keeps the node connected to those
// it has chosen (relaychoice.go), and knows which ones peers have chosen
// (relaytell.go).
type relaySet struct {
	n       *Node
	wake    chan struct{} // choose anew
	surveys chan struct{} // holds one for each survey under way

	mu       sync.Mutex   // a leaf: nothing else is locked while it is held
	links    []*relayLink // in the membership's order
	told     map[peer.ID]*told
	prefer   map[peer.ID]peer.ID // by peer: the relay its circuits should use
	toldHeld []peer.ID           // the reservations peers were last told of
	last     []endpoint.Endpoint // where relays saw this node, as told to the peers' machines

	nextLook time.Time // of improve
}

func newRelaySet(n *Node) *relaySet {
	return &relaySet{n: n, wake: make(chan struct{}, 1), surveys: make(chan struct{}, surveysAtOnce),
		told: make(map[peer.ID]*told), prefer: make(map[peer.ID]peer.ID)}
}

// set replaces the relays. Links to relays that stay go on undisturbed unless
// their addresses have changed.
func (rs *relaySet) set(infos []peer.AddrInfo) {
	rs.mu.Lock()
	old := rs.links
	rs.links = nil
	var fresh []*relayLink
	for _, info := range infos {
		if info.ID == rs.n.ID() || slices.ContainsFunc(rs.links, func(l *relayLink) bool { return l.info.ID == info.ID }) {
			continue
		}
		if i := slices.IndexFunc(old, func(l *relayLink) bool { return l.same(info) }); i >= 0 {
			rs.links = append(rs.links, old[i])
			old = slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		l := newRelayLink(rs.n, info)
		fresh = append(fresh, l)
		rs.links = append(rs.links, l)
	}
	rs.mu.Unlock()
	for _, l := range old {
		l.cancel()
	}
	rs.choose()
	for _, l := range fresh {
		rs.n.spawn(l.run)
	}
	for _, l := range rs.all() { // a relay that has refused us may know better now
		l.retryNow()
	}
}

// choose says to each link whether it is to hold a reservation.
func (rs *relaySet) choose() {
	links := rs.all()
	all := make([]candidate, len(links))
	for i, l := range links {
		all[i] = l.candidate()
	}
	chosen := chooseRelays(rs.n.ID(), all)
	for _, l := range links {
		l.setHold(slices.Contains(chosen, l.info.ID))
	}
}

// rechoose asks for choose, which is never called with a lock held.
func (rs *relaySet) rechoose() {
	select {
	case rs.wake <- struct{}{}:
	default:
	}
}

func (rs *relaySet) all() []*relayLink {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Clone(rs.links)
}

// link returns the link to relay p, nil if it is none.
func (rs *relaySet) link(p peer.ID) *relayLink {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, l := range rs.links {
		if l.info.ID == p {
			return l
		}
	}
	return nil
}

// infos are the relays as addresses.
func (rs *relaySet) infos() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, l := range rs.all() {
		out = append(out, l.info)
	}
	return out
}

// holds says whether p is a relay that this node has chosen.
func (rs *relaySet) holds(p peer.ID) bool {
	l := rs.link(p)
	return l != nil && l.wanted()
}

// alone says whether no relay but l holds a reservation.
func (rs *relaySet) alone(l *relayLink) bool {
	return !slices.ContainsFunc(rs.all(), func(x *relayLink) bool { return x != l && x.status().Reserved })
}

// reachedOverTCP returns the relays there is a TCP connection to.
func (rs *relaySet) reachedOverTCP() map[peer.ID]bool {
	out := make(map[peer.ID]bool)
	for _, l := range rs.all() {
		if conns := l.conns(); len(conns) > 0 && !endpoint.OverUDP(conns[0].RemoteMultiaddr()) {
			out[l.info.ID] = true
		}
	}
	return out
}

// awaitOne waits until a relay is connected, at most for d.
func (rs *relaySet) awaitOne(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		for _, l := range rs.all() {
			if len(l.conns()) > 0 {
				return
			}
		}
		if !wake.Sleep(ctx, awaitPoll) {
			return
		}
	}
}

// poke makes the relay's link look at its connections at once.
func (rs *relaySet) poke(p peer.ID) {
	if l := rs.link(p); l != nil {
		l.poke()
	}
}

// circuits returns the circuit addresses this node can be reached at.
func (rs *relaySet) circuits() []ma.Multiaddr {
	var out []ma.Multiaddr
	for _, l := range rs.all() {
		if st := l.status(); st.Reserved {
			for _, a := range l.info.Addrs {
				out = append(out, circuitAddr(l.info.ID, a))
			}
		}
	}
	return out
}

// circuitAddr is the address of circuits through relay at a.
func circuitAddr(relay peer.ID, a ma.Multiaddr) ma.Multiaddr {
	return a.Encapsulate(ma.StringCast("/p2p/" + relay.String() + "/p2p-circuit"))
}

// observed returns the endpoints at which relays see this node's listening
// sockets, and whether two relays see the same socket at different ports, as
// behind a symmetric NAT.
func (rs *relaySet) observed() (seen []endpoint.Endpoint, symmetric bool) {
	first := make(map[bool]endpoint.Endpoint)
	for _, l := range rs.all() {
		for _, e := range l.seenAt() {
			if f, ok := first[e.UDP]; !ok {
				first[e.UDP] = e
			} else if f.Addr.Addr() == e.Addr.Addr() && f.Addr.Port() != e.Addr.Port() {
				symmetric = true
			}
			if !slices.Contains(seen, e) {
				seen = append(seen, e)
			}
		}
	}
	return seen, symmetric
}

// noteSeen tells the peers' machines when a relay sees this node where none has
// seen it before, unless it is the first that sees it at all.
func (rs *relaySet) noteSeen() {
	seen, _ := rs.observed()
	rs.mu.Lock()
	first := len(rs.last) == 0
	news := slices.ContainsFunc(seen, func(e endpoint.Endpoint) bool { return !slices.Contains(rs.last, e) })
	if news {
		rs.last = seen
	}
	rs.mu.Unlock()
	if news {
		rs.n.nat.Again()
	}
	if news && !first {
		rs.n.peers.netChanged()
	}
}

// watchIdentify notes what relays observe.
func (rs *relaySet) watchIdentify(ctx context.Context, sub event.Subscription) {
	defer sub.Close()
	var last netip.Addr
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-sub.Out():
			ev, ok := e.(event.EvtPeerIdentificationCompleted)
			if !ok || ev.ObservedAddr == nil || endpoint.IsCircuit(ev.Conn.RemoteMultiaddr()) {
				continue
			}
			if l := rs.link(ev.Peer); l != nil {
				l.observe(ev.Conn, ev.ObservedAddr)
				if ip, ok := endpoint.IP(ev.ObservedAddr); ok && ip != last && ip.Is4() {
					last = ip
					rs.n.remap() // the router has another address, or was restarted
				}
			}
		}
	}
}
