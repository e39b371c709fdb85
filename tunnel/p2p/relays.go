package p2p

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

const (
	// maxRelays is how many relays a node holds a reservation at.
	maxRelays = 3
	// relayBackoff bounds the wait between attempts to reach a relay: one that
	// was restarted is back in use within about that time.
	relayBackoff = 2 * time.Second
	// relayDialTimeout bounds one dial, security handshake included.
	relayDialTimeout = 4 * time.Second
	// relayRefresh is the longest time between two reservations. A relay forgets
	// them when it changes its mind about a member, and does not tell.
	relayRefresh = 2 * time.Minute
	// A connection to a relay is probed every relayPing; one that does not answer
	// for relaySilence is closed.
	relayPing    = time.Second
	relaySilence = 1500 * time.Millisecond
	// pingPatience bounds the wait for an answer on a connection that is busy.
	pingPatience = 10 * time.Second
	// sparePing is how often a QUIC connection beside a TCP one is probed: below
	// the 10 s after which libp2p ends a silent ping stream.
	sparePing = 8 * time.Second
	// pingRound keeps a ping stream shorter than the 30 s libp2p gives it.
	pingRound = 20 * time.Second
	// awaitPoll is how often awaitOne looks.
	awaitPoll = 20 * time.Millisecond
	// tcpChance is how long a relay reached by QUIC waits for TCP to follow.
	tcpChance = 300 * time.Millisecond
)

// relaySet keeps the node connected to its relays.
type relaySet struct {
	n     *Node
	mu    sync.Mutex
	links []*relayLink // in order of preference
}

func newRelaySet(n *Node) *relaySet { return &relaySet{n: n} }

// set replaces the relays. Links to relays that stay go on undisturbed unless
// their addresses have changed.
func (rs *relaySet) set(infos []peer.AddrInfo) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	old := rs.links
	rs.links = nil
	for _, info := range infos {
		if len(rs.links) == maxRelays {
			break
		}
		if info.ID == rs.n.ID() || slices.ContainsFunc(rs.links, func(l *relayLink) bool { return l.info.ID == info.ID }) {
			continue
		}
		if i := slices.IndexFunc(old, func(l *relayLink) bool { return l.same(info) }); i >= 0 {
			rs.links = append(rs.links, old[i])
			old = slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		l := newRelayLink(rs.n, info)
		rs.links = append(rs.links, l)
		rs.n.spawn(l.run)
	}
	for _, l := range old {
		l.cancel()
	}
}

func (rs *relaySet) all() []*relayLink {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Clone(rs.links)
}

// overTCP says whether there is a TCP connection to relay p.
func (rs *relaySet) overTCP(p peer.ID) bool {
	for _, l := range rs.all() {
		if l.info.ID == p {
			conns := l.conns()
			return len(conns) > 0 && !overUDP(conns[0])
		}
	}
	return false
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
		if !sleep(ctx, awaitPoll) {
			return
		}
	}
}

// poke makes the relay's link look at its connections at once.
func (rs *relaySet) poke(p peer.ID) {
	for _, l := range rs.all() {
		if l.info.ID == p {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
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
func (rs *relaySet) observed() (seen []endpoint, symmetric bool) {
	first := make(map[bool]endpoint)
	for _, l := range rs.all() {
		for _, e := range l.seenAt() {
			if f, ok := first[e.udp]; !ok {
				first[e.udp] = e
			} else if f.addr.Addr() == e.addr.Addr() && f.addr.Port() != e.addr.Port() {
				symmetric = true
			}
			if !slices.Contains(seen, e) {
				seen = append(seen, e)
			}
		}
	}
	return seen, symmetric
}

// watchIdentify notes what relays observe.
func (rs *relaySet) watchIdentify(ctx context.Context, sub event.Subscription) {
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-sub.Out():
			ev, ok := e.(event.EvtPeerIdentificationCompleted)
			if !ok || ev.ObservedAddr == nil || isCircuit(ev.Conn.RemoteMultiaddr()) {
				continue
			}
			for _, l := range rs.all() {
				if l.info.ID == ev.Peer {
					l.observe(ev.Conn, ev.ObservedAddr)
				}
			}
		}
	}
}
