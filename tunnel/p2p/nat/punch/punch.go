package punch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// serverDelay is how much later one side dials than the other, at least; two
	// round trips where they take longer. Where the other's dial simply succeeds
	// it is over by then, even after an ARP exchange. SYNs that cross work as
	// well, but Linux then takes the time since its SYN-ACK for the round trip,
	// and BBR is slow for 10 s.
	serverDelay = 60 * time.Millisecond
	// askPatience is how much longer than the exchange of offers the relays' answers are waited for.
	askPatience = 300 * time.Millisecond
)

// ErrLater means that an attempt failed without what is most likely to succeed, for which it is not this peer's turn yet.
var ErrLater = errors.New("ports are guessed with another peer")

// Coordinate makes one attempt as the coordinator, over connection c with round-trip time
// rtt. The error wraps ErrLater where another attempt is worth making soon.
func (a *Attempts) Coordinate(ctx context.Context, c network.Conn, rtt time.Duration, do ladder.Punch) error {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	s, err := conns.Open(ctx, c, identity.PunchProtocol)
	if err != nil {
		return err
	}
	defer s.Reset()
	_ = s.SetDeadline(time.Now().Add(attemptTimeout))
	answers := a.u.query(ctx, a.p.ID())
	want := names(do.Want)
	mine := a.u.localOffer(ctx, want)
	mine.Turn = turnOf(do.Attempt, rtt, a.u.NAT())
	mine.Ports, mine.NoPorts = guessed{a}.offer()
	start := time.Now()
	if err := writeOffer(s, mine); err != nil {
		return fmt.Errorf("send offer: %w", err)
	}
	theirs, eps, err := readOffer(s)
	if err != nil {
		return fmt.Errorf("read offer: %w", err)
	}
	rtt = roundTrip(rtt, time.Since(start))
	a.offered(theirs, eps)
	if err := a.apart(mine, theirs, eps); err != nil {
		return err
	}
	if answers.wait(); slices.ContainsFunc(eps, a.unproved) { // before it sent its offer the peer has made relays see more of it
		a.u.query(ctx, a.p.ID()).wait()
	}
	if _, err := s.Write([]byte{'\n'}); err != nil {
		return fmt.Errorf("send sync: %w", err)
	}
	_ = s.CloseWrite()
	over := time.Now().Add(attemptTimeout)
	wait := rtt / 2
	if mine.Turn == turnAnswerer {
		wait += max(serverDelay, 2*rtt)
	}
	g, later := guessed{a}.plan(mine, theirs, eps, time.Now().Add(rtt/2))
	defer g.Release()
	wake.Sleep(ctx, wait)
	err = a.dialAll(ctx, eps, theirs.guessed(eps), want, true)
	if (guessed{a}).run(g) {
		return nil
	}
	conceal(ctx, a.missing(want), over)
	if err != nil && later {
		return fmt.Errorf("%w: %w", ErrLater, err)
	}
	return err
}

// roundTrip is that of the path between the two: known from probes, if it is not 0. The exchange of offers takes longer where
// the answerer waits for a relay to see its UDP socket, and the coordinator for relays to say where they see the answerer.
func roundTrip(known, exchange time.Duration) time.Duration {
	if known > 0 {
		return min(known, exchange)
	}
	return exchange
}

// conceal waits until the time at which an attempt is over that nothing has answered, unless it has made the paths that
// were wanted. A peer could otherwise see by its end whether there are hosts and open ports at the addresses it offers.
func conceal(ctx context.Context, missing []string, over time.Time) {
	if len(missing) > 0 {
		wake.Sleep(ctx, time.Until(over))
	}
}

// question is a query of relays about a peer while offers are exchanged.
type question struct{ answered chan struct{} }

// query queries operators' relays for where they see p.
func (u *Puncher) query(ctx context.Context, p peer.ID) question {
	q := question{make(chan struct{})}
	if !u.Spawn(func() {
		defer close(q.answered)
		u.Targets.Query(ctx, p)
	}) {
		close(q.answered)
	}
	return q
}

// wait waits for the answers for a moment: they take a shorter way than offers do.
func (q question) wait() {
	select {
	case <-q.answered:
	case <-time.After(askPatience):
	}
}

// Answer makes one attempt as the other side, on a stream of the coordinator, which the
// caller resets, over a path with round-trip time rtt.
func (a *Attempts) Answer(ctx context.Context, s network.Stream, rtt time.Duration) {
	if !a.begin() {
		a.u.refused.Add(1)
		if a.u.reported.Due(a.p.Name()) {
			a.u.Log.Info("hole punching refused: the peer requests it too often, so it stays relayed for now; if this continues,"+
				" look in its log for why it tries again and again",
				"peer", a.p.Name(), "addr", s.Conn().RemoteMultiaddr(), "allowedEvery", offerEvery)
		}
		return
	}
	defer a.end()
	answers := a.u.query(ctx, a.p.ID())
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	_ = s.SetDeadline(time.Now().Add(attemptTimeout))
	theirs, eps, err := readOffer(s)
	if err != nil {
		a.u.Log.Debug("punch offer", "peer", a.p.Name(), "err", err)
		return
	}
	a.offered(theirs, eps)
	if slices.ContainsFunc(eps, a.unproved) { // before it sent its offer the coordinator has made relays see more of it
		answers = a.u.query(ctx, a.p.ID())
	}
	mine := a.u.localOffer(ctx, theirs.Want)
	mine.Ports, mine.NoPorts = guessed{a}.offer()
	start := time.Now()
	if err := writeOffer(s, mine); err != nil {
		return
	}
	apart := a.apart(mine, theirs, eps)
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil || apart != nil { // sync, or the coordinator has read the offer
		return
	}
	rtt = roundTrip(rtt, time.Since(start))
	over := time.Now().Add(attemptTimeout)
	_ = s.Reset() // its end must not show what came of the dials
	answers.wait()
	g, _ := guessed{a}.plan(mine, theirs, eps, time.Now())
	defer g.Release()
	if theirs.Turn == turnCoordinator || theirs.Turn == turnTogether && a.u.NAT() == ladder.NATNone {
		wake.Sleep(ctx, max(serverDelay, 2*rtt))
	}
	_ = a.dialAll(ctx, eps, theirs.guessed(eps), theirs.Want, false)
	(guessed{a}).run(g)
	conceal(ctx, a.missing(theirs.Want), over)
}

// unproved reports whether an endpoint is on the internet, and not known to be the peer's.
func (a *Attempts) unproved(e endpoint.Endpoint) bool {
	return endpoint.IsPublic(e.Addr.Addr()) && !a.u.Targets.Owns(a.p.ID(), e.Addr.Addr())
}

// begin reports whether an answer may begin: one at a time, and not too many.
func (a *Attempts) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy || !a.offers.Allow() {
		return false
	}
	a.busy = true
	return true
}

func (a *Attempts) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = false
}

// localOffer says where this node may be dialed: where relays see it, its own
// addresses, and for a socket no relay sees, the port as if the NAT kept it.
func (u *Puncher) localOffer(ctx context.Context, want []string) offer {
	if u.AwaitSeen != nil && slices.Contains(want, endpoint.TransportName(true)) {
		u.AwaitSeen(ctx)
	}
	seen, _ := u.Seen()
	local := u.Addrs.Local()
	eps := slices.Clone(seen)
	for _, s := range seen {
		for _, l := range u.Dialer.ListenAddrs() {
			e, ok := endpoint.Parse(l)
			if !ok || e.UDP == s.UDP || e.Addr.Addr().Is4() != s.Addr.Addr().Is4() ||
				slices.ContainsFunc(seen, func(x endpoint.Endpoint) bool { return x.UDP == e.UDP }) {
				continue
			}
			eps = append(eps, endpoint.Endpoint{UDP: e.UDP, Addr: netip.AddrPortFrom(s.Addr.Addr(), e.Addr.Port())})
		}
	}
	o := offer{Want: want, NAT: u.NAT().String(), NAT64: u.ViaNAT64(ctx), NAT66: u.nat66()}
	for _, e := range slices.Concat(u.Mapped(), eps, local) {
		if s := e.Multiaddr().String(); !slices.Contains(o.Addrs, s) && len(o.Addrs) < maxOffer {
			o.Addrs = append(o.Addrs, s)
		}
	}
	if slices.Contains(want, endpoint.TransportName(true)) {
		for _, a := range u.Sense.Predict(ctx) {
			o.Guess = append(o.Guess, endpoint.Endpoint{UDP: true, Addr: a}.Multiaddr().String())
		}
	}
	return o
}
