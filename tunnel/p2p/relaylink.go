package p2p

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/causes"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/endpoint"
)

// RelayStatus is the state of one relay.
type RelayStatus struct {
	ID        peer.ID
	Addr      string // a multiaddr: the one connected to, else the first configured
	Connected bool
	Reserved  bool
	RTT       time.Duration // 0 as long as it is not known
	Spare     bool          // it is not needed: enough others are nearer
	Error     string        // why it is not connected and reserved; "" if it is, or need not be
}

// relayLink keeps one relay connected, over TCP and over QUIC where both get
// through, and holds a reservation there. Two connections, because the relay
// then sees the NAT's mapping of both sockets; see punch.go. A relay that was not
// chosen is connected only to measure its distance, or as long as circuits to
// peers run through it.
type relayLink struct {
	n      *Node
	info   peer.AddrInfo
	ctx    context.Context //nolint:containedctx // ends when the relay is dropped
	cancel context.CancelFunc
	wake   chan struct{} // a connection came or went, or what is wanted changed
	retry  chan struct{} // do not wait for the end of the pause

	mu         sync.Mutex
	hold       bool      // a reservation is wanted
	visitUntil time.Time // connected without one until then
	reserved   bool
	failed     bool // the last attempt was in vain
	err        error
	rounds     int // outcomes of setState so far
	rtt        time.Duration
	seen       map[network.Conn]endpoint.Endpoint
	pinged     map[network.Conn]chan struct{} // asks for a ping at once
}

func newRelayLink(n *Node, info peer.AddrInfo) *relayLink {
	l := &relayLink{n: n, info: info, wake: make(chan struct{}, 1), retry: make(chan struct{}, 1),
		seen: make(map[network.Conn]endpoint.Endpoint), pinged: make(map[network.Conn]chan struct{})}
	l.ctx, l.cancel = context.WithCancel(n.ctx)
	return l
}

func (l *relayLink) same(info peer.AddrInfo) bool {
	return l.info.ID == info.ID && slices.EqualFunc(l.info.Addrs, info.Addrs, ma.Multiaddr.Equal)
}

// conns returns the live connections to the relay, TCP first.
func (l *relayLink) conns() []network.Conn {
	var tcp, udp []network.Conn
	for _, c := range l.n.sw.ConnsToPeer(l.info.ID) {
		if c.IsClosed() || endpoint.IsCircuit(c.RemoteMultiaddr()) {
			continue
		}
		if endpoint.OverUDP(c.RemoteMultiaddr()) {
			udp = append(udp, c)
		} else {
			tcp = append(tcp, c)
		}
	}
	return append(tcp, udp...)
}

// run does what is wanted of the relay until the link is cancelled.
func (l *relayLink) run() {
	defer l.close()
	backoff := relayBackoff / 8
	var away time.Time // since when
	for l.ctx.Err() == nil {
		if !l.wanted() {
			l.rest()
			continue
		}
		start := time.Now()
		err := l.session()
		if l.ctx.Err() != nil {
			return
		}
		if err == nil { // not wanted any more
			l.setState(false, nil)
			l.leave()
			continue
		}
		l.setState(false, err)
		if away.IsZero() || time.Since(start) > 5*relayBackoff {
			away, backoff = time.Now(), relayBackoff/8
		}
		if time.Since(start) > 5*relayBackoff {
			l.n.log.Warn("relay lost", "relay", l.info.ID, "err", err)
		}
		l.pause(backoff/2 + rand.N(backoff/2))
		backoff = min(2*backoff, outagePause(time.Since(away), l.n.relays.alone(l)))
	}
}

// pause waits between two attempts; retryNow shortens that, but not to nothing: many
// paths may die at once.
func (l *relayLink) pause(d time.Duration) {
	least := min(d, relayBackoff/8)
	if !wake.Sleep(l.ctx, least) {
		return
	}
	t := time.NewTimer(d - least)
	defer t.Stop()
	select {
	case <-l.ctx.Done():
	case <-l.retry:
	case <-t.C:
	}
}

// rest is the life of a link that is not wanted: its distance is measured now and
// then.
func (l *relayLink) rest() {
	wait := surveyEvery
	if err := l.survey(); err != nil {
		wait = surveyEvery / 10 // it may come back
	}
	t := time.NewTimer(wait/2 + rand.N(wait))
	defer t.Stop()
	for l.ctx.Err() == nil && !l.wanted() {
		select {
		case <-l.ctx.Done():
		case <-l.wake:
		case <-l.retry:
		case <-t.C:
			return
		}
	}
}

// survey measures the relay's distance.
func (l *relayLink) survey() error {
	select {
	case l.n.relays.surveys <- struct{}{}:
	case <-l.ctx.Done():
		return nil
	}
	defer func() { <-l.n.relays.surveys }()
	err := l.connect()
	if err == nil {
		err = l.measure()
	}
	if l.ctx.Err() == nil {
		l.setState(false, err)
	}
	if !l.wanted() {
		l.leave()
	}
	return err
}

// leave disconnects from a relay that is not wanted now. The connections to a
// member that is a relay are its peer's affair.
func (l *relayLink) leave() {
	if l.n.gater.View().IsMember(l.info.ID) {
		return
	}
	for _, c := range l.conns() {
		l.n.goClose(c)
	}
}

// close ends the connections of a relay that is none any more.
func (l *relayLink) close() {
	if l.n.ctx.Err() == nil && !l.n.gater.View().Known(l.info.ID) {
		for _, c := range l.conns() {
			_ = c.Close()
		}
	}
}

// observe notes that the relay sees connection c coming from a. Connections that
// were not dialed from a listening port say nothing about it.
func (l *relayLink) observe(c network.Conn, a ma.Multiaddr) {
	seen, ok := endpoint.Parse(a)
	local, okLocal := endpoint.Parse(c.LocalMultiaddr())
	if !ok || !okLocal || seen.UDP != local.UDP || !l.n.dialer.ListensOn(local) {
		return
	}
	if c.IsClosed() || l.n.gater.View().InCluster(seen.Addr.Addr()) {
		return
	}
	l.mu.Lock()
	l.seen[c] = seen
	l.mu.Unlock()
	l.n.relays.noteSeen()
}

// seenAt returns the endpoints the relay sees this node at.
func (l *relayLink) seenAt() []endpoint.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []endpoint.Endpoint
	for c, e := range l.seen {
		if !c.IsClosed() {
			out = append(out, e)
		}
	}
	return out
}

// firstCause says why there is no connection before the first round is over:
// refused by TCP, the round still waits seconds for QUIC.
func (l *relayLink) firstCause(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rounds == 0 && l.ctx.Err() == nil {
		l.err = err
	}
}

func (l *relayLink) setState(reserved bool, err error) {
	l.mu.Lock()
	news := l.reserved != reserved || l.failed != (err != nil) || l.rounds == 0
	if reserved && !l.reserved {
		l.n.log.Info("reserved at relay", "relay", l.info.ID, "rtt", l.rtt)
	} else if err != nil && (l.rounds == 0 || l.err == nil || l.err.Error() != err.Error()) && l.ctx.Err() == nil {
		l.n.log.Warn("no reservation at relay", "relay", l.info.ID, "err", err)
	}
	l.reserved, l.err, l.failed = reserved, err, err != nil
	l.rounds++
	l.mu.Unlock()
	if news {
		l.n.relays.rechoose()
	}
}

func (l *relayLink) status() RelayStatus {
	conns := l.conns()
	l.mu.Lock()
	defer l.mu.Unlock()
	st := RelayStatus{ID: l.info.ID, Connected: len(conns) > 0, RTT: l.rtt}
	st.Reserved = l.reserved && st.Connected
	switch {
	case st.Connected:
		st.Addr = conns[0].RemoteMultiaddr().String()
	case len(l.info.Addrs) > 0:
		st.Addr = l.info.Addrs[0].String()
	}
	switch {
	case st.Reserved:
	case l.err != nil:
		st.Error = causes.OneLine(l.err.Error())
	case !l.hold:
		st.Spare = true
	case st.Connected:
		st.Error = "asking for a reservation"
	default:
		st.Error = "no answer yet"
	}
	return st
}

// holds says whether a reservation is wanted.
func (l *relayLink) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold
}

// setHold says whether a reservation is wanted.
func (l *relayLink) setHold(hold bool) {
	l.mu.Lock()
	was := l.hold
	l.hold = hold
	if was && !hold { // circuits go on for a while
		l.visitUntil = time.Now().Add(visitFor)
	}
	l.mu.Unlock()
	if was != hold {
		l.poke()
	}
}

// visit asks for a connection, for the sake of circuits to peers.
func (l *relayLink) visit() {
	l.mu.Lock()
	l.visitUntil = time.Now().Add(visitFor)
	l.mu.Unlock()
	l.poke()
}

// wanted says whether the relay should be connected.
func (l *relayLink) wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold || time.Now().Before(l.visitUntil)
}

// due is when session has to look again: at renew, or when the visit ends.
func (l *relayLink) due(renew time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hold {
		return l.visitUntil
	}
	return renew
}

func (l *relayLink) candidate() candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return candidate{id: l.info.ID, rtt: l.rtt, failed: l.failed, held: l.hold}
}

// poke makes the link look at its connections, and at what is wanted, at once.
func (l *relayLink) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// retryNow ends the pause after a failure.
func (l *relayLink) retryNow() {
	select {
	case l.retry <- struct{}{}:
	default:
	}
}

// keepVisit prolongs the visit to a relay that carries circuits.
func (l *relayLink) keepVisit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.visitUntil = time.Now().Add(visitFor)
}
