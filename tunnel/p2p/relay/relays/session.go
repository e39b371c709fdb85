package relays

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	relay "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	ma "github.com/multiformats/go-multiaddr"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/tunnel/p2p/relay/relays/choice"
)

const (
	// redialAtMost is the longest pause between two attempts to get the transport that is missing beside the one that is
	// there: a firewall seldom changes its mind.
	redialAtMost = 15 * time.Minute
	// firstVain is the first pause after an IP version was dialed without success for punching; each one is twice as long as the
	// one before, up to redialAtMost. It may have been lost packets, or a firewall.
	firstVain = 4 * time.Second
	// renewAtMost is the longest time between two reservations. A relay keeps one as long as the connection, so this is for
	// what nobody thought of.
	renewAtMost = 6 * time.Hour
)

// errNoRelay is a host that serves no relay.
var errNoRelay = errors.New("reserve: this host is not a relay; for a node set relay.enabled in its agent's configuration")

// errFull is a relay that has no reservation for this node now. Another relay is used instead, and this one asked again.
var errFull = errors.New("reserve: the relay is full: as many nodes as its limits allow hold a reservation there, or as many from " +
	"this address; raise limits.maxReservations or limits.maxReservationsPerIP in the relay's configuration, or add a relay")

// session is the time from the first connection to a relay to the end of the last one. It belongs to the client's own
// goroutine.
type session struct {
	c       *client
	held    []network.Conn // when the reservation was made
	renew   time.Time      // when to make the reservation (again)
	asked   bool           // whether the relay is crowded
	refused time.Time      // since when the relay refuses us; zero: it does not
	pause   time.Duration  // before the missing transport is dialed again
	redial  time.Time      // when that is
	vain    time.Duration  // the last pause after an IP version was dialed without success; 0: it was not
	hadTCP  bool
	rest    rest
	through time.Time // when the last connection through a proxy began; zero: there is none
}

// session connects and stays connected. It returns nil when the relay is no longer wanted.
func (c *client) session() error {
	if err := c.begin(); err != nil {
		return err
	}
	s := &session{c: c}
	defer c.demand.ended()
	s.redialSoon()
	for {
		conns, err := s.check()
		if err != nil {
			return err
		}
		for _, conn := range conns {
			c.watch(conn)
		}
		if !c.demand.connection() {
			return nil
		}
		s.act(conns)
		if !s.wait(conns) {
			return c.ctx.Err()
		}
	}
}

// redialSoon makes the session dial the missing transport soon, or when punching asks for it where TCP is enough.
func (s *session) redialSoon() {
	s.pause, s.redial = shortPause, time.Now().Add(shortPause)
	s.redialMissing()
	s.c.demand.putOff(s.c.enough(s.c.conns()))
}

// incomplete reports whether there is something to dial: a transport is missing, or the relay is connected from other ports
// than the listening ones, whose turn has come.
func (s *session) incomplete(conns []network.Conn) bool {
	return s.c.lacks(conns, false) || s.c.lacks(conns, true) || detached(s.c.Dialer, conns) && s.c.ports.due(time.Now())
}

// lacks reports whether a transport of the relay's has no connection. One through a proxy is neither.
func (c *client) lacks(conns []network.Conn, udp bool) bool {
	return slices.ContainsFunc(c.info.Addrs, func(a ma.Multiaddr) bool { return isQUIC(a) == udp }) &&
		!slices.ContainsFunc(conns, func(conn network.Conn) bool { return overUDP(conn) == udp && !c.Dialer.Proxied(conn) })
}

// check returns the live connections, at least one.
func (s *session) check() ([]network.Conn, error) {
	conns := s.direct(s.c.conns())
	if len(conns) == 0 && !s.through.IsZero() {
		s.c.life.ended(time.Since(s.through))
	}
	if s.through = (time.Time{}); len(conns) > 0 && s.c.proxied {
		s.through = conns[0].Stat().Opened
	}
	tcp := len(conns) > 0 && !overUDP(conns[0]) && !s.c.proxied
	if len(conns) == 0 || s.hadTCP && !tcp {
		// Where QUIC outlives TCP, this node's address has changed, and the relay
		// would continue to see the old one on the QUIC connection: start again.
		for _, conn := range conns {
			_ = conn.Close()
		}
		return nil, errLost
	}
	if s.hadTCP = tcp; tcp {
		s.c.lead.ended(true)
	}
	return conns, nil
}

// direct closes connections through a proxy where there are others, and returns what is left.
func (s *session) direct(conns []network.Conn) []network.Conn {
	if len(conns) == 0 {
		return nil
	}
	through := s.c.Dialer.Proxied
	s.c.proxied = !slices.ContainsFunc(conns, func(conn network.Conn) bool { return !through(conn) })
	if s.c.proxied {
		return conns
	}
	return slices.DeleteFunc(conns, func(conn network.Conn) bool {
		if through(conn) {
			_ = conn.Close()
			return true
		}
		return false
	})
}

// act reserves, and dials the missing transport, when it is time for that.
func (s *session) act(conns []network.Conn) {
	if slices.ContainsFunc(s.held, func(conn network.Conn) bool { return !slices.Contains(conns, conn) }) {
		// A relay that was restarted, and reached again before the old connection
		// was found dead, knows of no reservation.
		s.renew = time.Time{}
	}
	if s.c.demand.reservation() && time.Now().After(s.renew) && !s.elsewhere() {
		s.held = conns
		s.reserve()
	}
	if at := s.renewal(conns); !at.IsZero() && !time.Now().Before(at) && s.rests() {
		s.replace(conns)
		return
	}
	if s.rests() {
		s.tidy(conns)
	}
	s.thin(conns)
	if s.incomplete(conns) || s.c.demand.hastened() {
		s.complete(conns)
	}
}

// complete dials the missing transport when it is time for that. What was dialed because punching asked, and failed, is
// dialed again after a pause, if punching asks then.
func (s *session) complete(conns []network.Conn) {
	due := time.Now().After(s.redial)
	if due || s.c.demand.hastened() {
		s.c.demand.putOff(s.c.enough(conns))
	}
	hurry := s.c.demand.hasten()
	if !hurry && (!due || s.c.enough(conns)) {
		return
	}
	_ = s.c.connect()
	if hurry {
		s.dialed()
		s.c.changed.Broadcast()
	}
	s.pause = min(2*s.pause, redialAtMost)
	s.redial = time.Now().Add(s.pause)
}

// dialed ends a dial that punching asked for. An IP version that was dialed without success is dialed again later and later.
func (s *session) dialed() {
	if s.c.missing(s.c.conns()) == 0 {
		s.redialMissing()
		return
	}
	s.vain = min(max(2*s.vain, firstVain), redialAtMost)
	s.c.demand.dialed(s.c.Now() + s.vain)
}

// redialMissing dials what is missing as soon as punching asks for it.
func (s *session) redialMissing() {
	s.vain = 0
	s.c.demand.dialed(0)
}

// lost has what is gone dialed again: the last connection of a transport soon, that of an IP version when punching asks for it.
func (s *session) lost(before, now []network.Conn) {
	gone := func(udp bool) bool { return s.c.lacks(now, udp) && !s.c.lacks(before, udp) }
	switch {
	case gone(false) || gone(true):
		s.redialSoon()
	case s.c.missing(now)&^s.c.missing(before) != 0:
		s.redialMissing()
	}
}

// elsewhere reports whether another relay may be chosen instead of this one, which is crowded: for a moment, once, and not
// when there is a reservation here.
func (s *session) elsewhere() bool {
	if s.asked || !s.c.many() {
		return false
	}
	if s.asked = true; !s.c.checkCrowded() {
		return false
	}
	s.renew = time.Now().Add(shortPause)
	s.c.report(false, nil)
	s.c.choose.Wake()
	return true
}

// reserve makes or renews the reservation.
func (s *session) reserve() {
	next, err := s.c.reserve()
	if err == nil {
		s.refused, s.renew = time.Time{}, next
		s.c.report(true, nil)
		return
	}
	if s.refused.IsZero() {
		s.refused = time.Now()
	}
	s.c.report(false, err)
	wait := choice.Pause(time.Since(s.refused), s.c.alone(s.c.info.ID))
	s.renew = time.Now().Add(wait/2 + rand.N(wait/2))
}

// wait returns when there may be something to do, or false when the client ends.
func (s *session) wait(conns []network.Conn) bool {
	c := s.c
	until := time.Until(c.demand.due(s.renew))
	switch {
	case s.spare(conns):
		until = min(until, s.rest.left(c.Now(), c.demand.asked(), c.Peers.InUse()))
	case !s.incomplete(conns):
	case c.demand.hastened():
		until = 0
	case !c.demand.putsOff():
		until = min(until, time.Until(s.redial))
	}
	if at := s.renewal(conns); !at.IsZero() {
		until = min(until, max(time.Until(at), restful)) // busy: look again
	}
	select {
	case <-c.ctx.Done():
		return false
	case <-c.retry:
		if !s.refused.IsZero() {
			s.renew = time.Time{}
		}
		s.redialSoon()
	case <-c.wake:
		s.lost(conns, c.conns())
	case <-time.After(max(until, 10*time.Millisecond)):
	}
	return true
}

// reserve makes or renews the reservation and returns when to do so again.
func (c *client) reserve() (time.Time, error) {
	ctx, cancel := context.WithTimeout(c.ctx, DialTimeout)
	defer cancel()
	ctx = network.WithNoDial(ctx, "reserve")
	rsvp, err := relay.Reserve(ctx, c.host, peer.AddrInfo{ID: c.info.ID})
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		return time.Time{}, errNoRelay
	}
	if full := (relay.ReservationError{}); errors.As(err, &full) && full.Status == pbv2.Status_RESERVATION_REFUSED {
		return time.Time{}, errFull
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("reserve: %w", err)
	}
	return time.Now().Add(min(time.Until(rsvp.Expiration)/2, renewAtMost)), nil
}

// spare reports whether there is a connection over QUIC beside TCP, where that is enough.
func (s *session) spare(conns []network.Conn) bool {
	return slices.ContainsFunc(conns, overUDP) && s.c.enough(conns)
}

// thin closes connections over QUIC that nothing has needed for a while.
func (s *session) thin(conns []network.Conn) {
	if !s.spare(conns) {
		s.rest = rest{}
		return
	}
	now := s.c.Now()
	if s.rest.left(now, s.c.demand.asked(), s.c.Peers.InUse()) > 0 {
		return
	}
	s.rest.since = now // the last words of a connection take a moment
	if slices.ContainsFunc(conns, func(conn network.Conn) bool { return overUDP(conn) && carries(conn) }) {
		return
	}
	s.held = slices.DeleteFunc(slices.Clone(s.held), overUDP) // the relay keeps the reservation as long as one is left
	s.redialSoon()
	s.c.demand.rested()
	for _, conn := range conns {
		if overUDP(conn) {
			s.c.Spawn(func() { closeIdle(conn) })
		}
	}
}

const (
	// restful is how long nothing must have come through a relay for its connection to be renewed without anybody noticing.
	restful = 2 * time.Second
)

// renewal says when the connection through the proxy is to be renewed; the zero time: never.
func (s *session) renewal(conns []network.Conn) time.Time {
	if !s.c.proxied {
		return time.Time{}
	}
	age := aged(conns)
	middle := s.c.life.middle(age)
	if middle == 0 {
		return time.Time{}
	}
	return time.Now().Add(max(middle-age, 0))
}

// rests reports whether nothing comes through the relay.
func (s *session) rests() bool {
	t, ok := s.c.Peers.Traffic()[s.c.info.ID]
	return !ok || time.Since(t.Heard) > restful
}

// replace opens another connection through the proxy, and closes those that there are.
func (s *session) replace(conns []network.Conn) {
	ctx, cancel := context.WithTimeout(s.c.ctx, DialTimeout)
	defer cancel()
	s.c.life.renewed()
	err := dialRound(s.c, nil, 0, nil)
	if err != nil || s.c.changed.Until(ctx, func() bool { return len(s.c.conns()) > len(conns) }) != nil {
		return // the old one is still good
	}
	for _, c := range conns {
		_ = c.Close()
	}
}

// tidy closes connections from other ports that a listening port has one beside, over the same transport.
func (s *session) tidy(conns []network.Conn) {
	for _, conn := range conns {
		if elsewhere(s.c.Dialer, conn) && slices.ContainsFunc(conns, func(o network.Conn) bool {
			return listening(s.c.Dialer, o) && overUDP(o) == overUDP(conn)
		}) {
			_ = conn.Close()
		}
	}
}
