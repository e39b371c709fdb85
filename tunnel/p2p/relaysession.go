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
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/endpoint"
)

// redialAtMost is the longest pause between two attempts to get the transport
// that is missing beside the one that is there: a firewall seldom changes its mind.
const redialAtMost = 15 * time.Minute

// relaySession is the time from the first connection to a relay to the end of the
// last one.
type relaySession struct {
	l       *relayLink
	held    []network.Conn // when the reservation was made
	renew   time.Time      // when to make the reservation (again)
	refused time.Time      // since when the relay refuses us; zero: not at all
	pause   time.Duration  // before the missing transport is dialed again
	redial  time.Time      // when that is
	hadTCP  bool
}

// session connects and stays connected. It returns nil when the relay is not
// wanted any more.
func (l *relayLink) session() error {
	if err := l.connect(); err != nil {
		return err
	}
	s := &relaySession{l: l}
	s.hurry()
	for {
		conns, err := s.check()
		if err != nil {
			return err
		}
		for _, c := range conns {
			l.watch(c)
		}
		if !l.wanted() {
			return nil
		}
		s.act(conns)
		if !s.wait(conns) {
			return l.ctx.Err()
		}
	}
}

// hurry has the missing transport dialed soon.
func (s *relaySession) hurry() {
	s.pause = relayBackoff / 8
	s.redial = time.Now().Add(s.pause)
}

// check returns the live connections, at least one.
func (s *relaySession) check() ([]network.Conn, error) {
	conns := s.l.conns()
	tcp := len(conns) > 0 && !endpoint.OverUDP(conns[0].RemoteMultiaddr())
	if len(conns) == 0 || s.hadTCP && !tcp {
		// Where QUIC outlives TCP, this node's address has changed, and the relay
		// would go on seeing the old one on the QUIC connection: start afresh.
		for _, c := range conns {
			_ = c.Close()
		}
		return nil, errors.New("connection lost")
	}
	s.hadTCP = tcp
	return conns, nil
}

// act reserves, and dials the missing transport, when it is time for that.
func (s *relaySession) act(conns []network.Conn) {
	if slices.ContainsFunc(s.held, func(c network.Conn) bool { return !slices.Contains(conns, c) }) {
		// A relay that was restarted, and reached again before the old connection
		// was found dead, knows of no reservation.
		s.renew = time.Time{}
	}
	if s.l.holds() && time.Now().After(s.renew) {
		s.held = conns
		s.reserve()
	}
	if len(conns) == 1 && time.Now().After(s.redial) {
		_ = s.l.connect() // the other transport
		s.pause = min(2*s.pause, redialAtMost)
		s.redial = time.Now().Add(s.pause)
	}
}

// reserve makes or renews the reservation.
func (s *relaySession) reserve() {
	l := s.l
	next, err := l.reserve()
	if err == nil {
		s.refused, s.renew = time.Time{}, next
		l.setState(true, nil)
		return
	}
	if s.refused.IsZero() {
		s.refused = time.Now()
	}
	l.setState(false, err)
	wait := outagePause(time.Since(s.refused), l.n.relays.alone(l))
	s.renew = time.Now().Add(wait/2 + rand.N(wait/2))
}

// wait returns when there may be something to do, or false when the link ends.
func (s *relaySession) wait(conns []network.Conn) bool {
	l := s.l
	until := time.Until(l.due(s.renew))
	if len(conns) == 1 {
		until = min(until, time.Until(s.redial))
	}
	t := time.NewTimer(max(until, 10*time.Millisecond))
	defer t.Stop()
	select {
	case <-l.ctx.Done():
		return false
	case <-l.retry:
		if !s.refused.IsZero() {
			s.renew = time.Time{}
		}
		s.hurry()
	case <-l.wake:
		if len(l.conns()) == 1 && len(conns) > 1 { // one of two is gone
			s.hurry()
		}
	case <-t.C:
	}
	return true
}

// connect dials every transport that has no connection yet, all addresses at
// once. It returns as soon as TCP is there, or QUIC and TCP had tcpChance; the
// other dials go on.
func (l *relayLink) connect() error {
	have := make(map[bool]bool)
	for _, c := range l.conns() {
		have[endpoint.OverUDP(c.RemoteMultiaddr())] = true
	}
	ctx, cancel := context.WithTimeout(l.ctx, relayDialTimeout)
	addrs, err := l.resolve(ctx)
	results := make(chan dialed, len(addrs))
	dials := 0
	var wg sync.WaitGroup
	for _, a := range addrs {
		if have[isQUIC(a)] {
			continue
		}
		wg.Add(1)
		if l.n.spawn(func() { defer wg.Done(); results <- dialed{a, l.n.dialer.Dial(ctx, a, l.info.ID)} }) {
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
		return causes.Join(errors.New("no usable address"), err)
	}
	return l.firstOf(results, dials)
}

// dialed is the outcome of one dial.
type dialed struct {
	to  ma.Multiaddr
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
				errs = append(errs, fmt.Errorf("%s: %w", shortAddr(r.to), r.err))
				l.firstCause(fmt.Errorf("connect: %w", causes.Join(errs...)))
			case !isQUIC(r.to):
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
	return fmt.Errorf("connect: %w", causes.Join(errs...))
}

// settle waits for the swarm to have taken the connection.
func (l *relayLink) settle(udp bool) error {
	deadline := time.After(time.Second)
	for !slices.ContainsFunc(l.conns(), func(c network.Conn) bool { return endpoint.OverUDP(c.RemoteMultiaddr()) == udp }) {
		select {
		case <-l.wake:
		case <-deadline:
			return errors.New("connect: refused after the handshake: does the relay's membership list this node?")
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	return nil
}

// resolve returns the relay's addresses, DNS names looked up.
func (l *relayLink) resolve(ctx context.Context) ([]ma.Multiaddr, error) {
	var out []ma.Multiaddr
	var errs []error
	for _, a := range l.info.Addrs {
		resolved := []ma.Multiaddr{a}
		if madns.Matches(a) {
			a := l.named(ctx, a)
			var err error
			if resolved, err = madns.Resolve(ctx, a); err != nil {
				errs = append(errs, fmt.Errorf("resolve %s: %w", a, err))
				continue
			}
		}
		for _, x := range resolved {
			if l.n.gater.View().Outside(x) && !ma.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out, causes.Join(errs...)
}

// named keeps the name in an address whose server has a certificate for it
// (WebSocket over TLS), which resolving would lose.
func (l *relayLink) named(ctx context.Context, a ma.Multiaddr) ma.Multiaddr {
	r, ok := l.n.sw.TransportForDialing(a).(transport.Resolver)
	if !ok {
		return a
	}
	if out, err := r.Resolve(ctx, a); err == nil && len(out) == 1 {
		return out[0]
	}
	return a
}

// reserve makes or renews the reservation and returns when to do so again.
func (l *relayLink) reserve() (time.Time, error) {
	ctx, cancel := context.WithTimeout(l.ctx, relayDialTimeout)
	defer cancel()
	ctx = network.WithNoDial(ctx, "reserve")
	rsvp, err := client.Reserve(ctx, l.n.h, peer.AddrInfo{ID: l.info.ID})
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		return time.Time{}, errors.New("reserve: it is no relay (a node is one only with relay.enabled in its agent's configuration)")
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("reserve: %w", err)
	}
	return time.Now().Add(min(time.Until(rsvp.Expiration)/2, relayRefresh)), nil
}

func isQUIC(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	return err == nil
}

// shortAddr is a as people write endpoints, where it is one.
func shortAddr(a ma.Multiaddr) string {
	if e, ok := endpoint.Parse(a); ok {
		return e.String()
	}
	return a.String()
}
