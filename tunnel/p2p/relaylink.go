package p2p

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
)

// RelayStatus is the state of one relay.
type RelayStatus struct {
	ID        peer.ID
	Addr      string // a multiaddr: the one connected to, else the first configured
	Connected bool
	Reserved  bool
	RTT       time.Duration // 0 as long as it is not known
	Error     string        // why it is not connected and reserved; "" if it is
}

// relayLink keeps one relay connected, over TCP and over QUIC where both get
// through, and holds a reservation there. Two connections, because the relay
// then sees the NAT's mapping of both sockets; see punch.go.
type relayLink struct {
	n      *Node
	info   peer.AddrInfo
	ctx    context.Context //nolint:containedctx // ends when the relay is dropped
	cancel context.CancelFunc
	wake   chan struct{} // a connection came or went

	mu       sync.Mutex
	reserved bool
	err      error
	rounds   int // outcomes of setState so far
	rtt      time.Duration
	seen     map[network.Conn]endpoint
	pinged   map[network.Conn]bool
}

func newRelayLink(n *Node, info peer.AddrInfo) *relayLink {
	l := &relayLink{n: n, info: info, wake: make(chan struct{}, 1),
		seen: make(map[network.Conn]endpoint), pinged: make(map[network.Conn]bool)}
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
		if c.IsClosed() || isCircuit(c.RemoteMultiaddr()) {
			continue
		}
		if overUDP(c) {
			udp = append(udp, c)
		} else {
			tcp = append(tcp, c)
		}
	}
	return append(tcp, udp...)
}

func overUDP(c network.Conn) bool {
	e, _ := parseEndpoint(c.RemoteMultiaddr())
	return e.udp
}

// run connects, reserves and watches until the link is cancelled.
func (l *relayLink) run() {
	defer l.close()
	backoff := relayBackoff / 8
	for l.ctx.Err() == nil {
		start := time.Now()
		err := l.session()
		l.setState(false, err)
		if l.ctx.Err() != nil {
			return
		}
		if time.Since(start) > 5*relayBackoff {
			backoff = relayBackoff / 8
			l.n.log.Warn("relay lost", "relay", l.info.ID, "err", err)
		}
		sleep(l.ctx, backoff/2+rand.N(backoff/2))
		backoff = min(2*backoff, relayBackoff)
	}
}

// close ends the connections of a relay that is none any more.
func (l *relayLink) close() {
	if l.n.ctx.Err() == nil && !l.n.gater.known(l.info.ID) {
		for _, c := range l.conns() {
			_ = c.Close()
		}
	}
}

// session lasts from the first connection to the end of the last one.
func (l *relayLink) session() error {
	if err := l.connect(); err != nil {
		return err
	}
	var renew time.Time
	var held []network.Conn   // when the reservation was made
	pause := relayBackoff / 8 // before the missing transport is dialed again
	redial := time.Now().Add(pause)
	hadTCP := false
	for {
		conns := l.conns()
		tcp := len(conns) > 0 && !overUDP(conns[0])
		if len(conns) == 0 || hadTCP && !tcp {
			// Where QUIC outlives TCP, this node's address has changed, and the relay
			// would go on seeing the old one on the QUIC connection: start afresh.
			for _, c := range conns {
				_ = c.Close()
			}
			return errors.New("connection lost")
		}
		hadTCP = tcp
		for _, c := range conns {
			l.watch(c)
		}
		if slices.ContainsFunc(held, func(c network.Conn) bool { return !slices.Contains(conns, c) }) {
			// A relay that was restarted, and reached again before the old connection
			// was found dead, knows of no reservation.
			renew = time.Time{}
		}
		if time.Now().After(renew) {
			held = conns
			next, err := l.reserve()
			if err != nil {
				l.setState(false, err)
				renew = time.Now().Add(relayBackoff/2 + rand.N(relayBackoff/2))
			} else {
				l.setState(true, nil)
				renew = next
			}
		}
		if len(conns) == 1 && time.Now().After(redial) {
			_ = l.connect() // the other transport
			pause = min(2*pause, relayRefresh)
			redial = time.Now().Add(pause)
		}
		until := time.Until(renew)
		if len(conns) == 1 {
			until = min(until, time.Until(redial))
		}
		t := time.NewTimer(max(until, 10*time.Millisecond))
		select {
		case <-l.ctx.Done():
			t.Stop()
			return l.ctx.Err()
		case <-l.wake:
			t.Stop()
			// One of two connections gone: try soon to get it back.
			if len(l.conns()) == 1 && len(conns) > 1 {
				pause = relayBackoff / 8
				redial = time.Now().Add(pause)
			}
		case <-t.C:
		}
	}
}

// connect dials every transport that has no connection yet, all addresses at
// once. It returns as soon as TCP is there, or QUIC and TCP had tcpChance; the
// other dials go on.
func (l *relayLink) connect() error {
	have := make(map[bool]bool)
	for _, c := range l.conns() {
		have[overUDP(c)] = true
	}
	ctx, cancel := context.WithTimeout(l.ctx, relayDialTimeout)
	addrs, err := l.resolve(ctx)
	results := make(chan dialed, len(addrs))
	dials := 0
	var wg sync.WaitGroup
	for _, e := range addrs {
		if have[e.udp] || l.n.gater.members.Load().inCluster(e.addr.Addr()) {
			continue
		}
		wg.Add(1)
		if l.n.spawn(func() { defer wg.Done(); results <- dialed{e, l.n.dialAndInject(ctx, e, l.info.ID)} }) {
			dials++
		} else {
			wg.Done()
		}
	}
	l.n.spawn(func() { wg.Wait(); cancel() })
	if dials == 0 {
		if len(l.conns()) > 0 {
			return nil
		}
		return join(errors.New("no usable address"), err)
	}
	return l.firstOf(results, dials)
}

// dialed is the outcome of one dial.
type dialed struct {
	to  endpoint
	err error
}

// firstOf waits for the first useful result of connect's dials.
func (l *relayLink) firstOf(results <-chan dialed, dials int) error {
	var errs []error
	var enough <-chan time.Time
	for ; dials > 0; dials-- {
		select {
		case r := <-results:
			switch {
			case r.err != nil:
				errs = append(errs, fmt.Errorf("%s: %w", r.to, r.err))
				l.firstCause(fmt.Errorf("connect: %w", join(errs...)))
			case !r.to.udp:
				return l.settle(false)
			case enough == nil:
				enough = time.After(tcpChance)
			}
		case <-enough:
			return l.settle(true)
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	if enough != nil {
		return l.settle(true)
	}
	return fmt.Errorf("connect: %w", join(errs...))
}

// settle waits for the swarm to have taken the connection.
func (l *relayLink) settle(udp bool) error {
	deadline := time.After(time.Second)
	for !slices.ContainsFunc(l.conns(), func(c network.Conn) bool { return overUDP(c) == udp }) {
		select {
		case <-l.wake:
		case <-deadline:
			return errors.New("connect: refused after the handshake")
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	return nil
}

// resolve returns the relay's endpoints, DNS names looked up.
func (l *relayLink) resolve(ctx context.Context) ([]endpoint, error) {
	var out []endpoint
	var errs []error
	for _, a := range l.info.Addrs {
		resolved := []ma.Multiaddr{a}
		if madns.Matches(a) {
			var err error
			if resolved, err = madns.Resolve(ctx, a); err != nil {
				errs = append(errs, fmt.Errorf("resolve %s: %w", a, err))
				continue
			}
		}
		for _, x := range resolved {
			if e, ok := parseEndpoint(x); ok && !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out, join(errs...)
}

// reserve makes or renews the reservation and returns when to do so again.
func (l *relayLink) reserve() (time.Time, error) {
	ctx, cancel := context.WithTimeout(l.ctx, relayDialTimeout)
	defer cancel()
	ctx = network.WithNoDial(ctx, "reserve")
	rsvp, err := client.Reserve(ctx, l.n.h, peer.AddrInfo{ID: l.info.ID})
	if err != nil {
		return time.Time{}, fmt.Errorf("reserve: %w", err)
	}
	return time.Now().Add(min(time.Until(rsvp.Expiration)/2, relayRefresh)), nil
}

// observe notes that the relay sees connection c coming from a. Connections that
// were not dialed from a listening port say nothing about it.
func (l *relayLink) observe(c network.Conn, a ma.Multiaddr) {
	seen, ok := parseEndpoint(a)
	local, okLocal := parseEndpoint(c.LocalMultiaddr())
	if !ok || !okLocal || seen.udp != local.udp || !l.n.listensOn(local) {
		return
	}
	if c.IsClosed() || l.n.gater.members.Load().inCluster(seen.addr.Addr()) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[c] = seen
}

// seenAt returns the endpoints the relay sees this node at.
func (l *relayLink) seenAt() []endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []endpoint
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
	defer l.mu.Unlock()
	if reserved && !l.reserved {
		l.n.log.Info("reserved at relay", "relay", l.info.ID)
	} else if err != nil && (l.rounds == 0 || l.err == nil || l.err.Error() != err.Error()) && l.ctx.Err() == nil {
		l.n.log.Warn("no reservation at relay", "relay", l.info.ID, "err", err)
	}
	l.reserved, l.err = reserved, err
	l.rounds++
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
	if !st.Connected {
		st.RTT = 0
	}
	switch {
	case st.Reserved:
	case l.err != nil:
		st.Error = oneLine(l.err)
	case st.Connected:
		st.Error = "asking for a reservation"
	default:
		st.Error = "no answer yet"
	}
	return st
}
