package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
)

// Punching makes direct connections, TCP and QUIC, beside the path that is there.
// The exchange is DCUtR's (libp2p specs, relay/DCUtR.md) with a protocol ID of
// its own: the coordinator, which is the member with the smaller peer ID, sends
// its addresses, gets the peer's, says "sync", waits half a round trip, and both
// dial at the same time. See DESIGN.md for what differs and why.

const (
	// punchTimeout bounds one attempt: a dropped SYN is sent again after 1 s, so
	// the second one has time to get through. TCP dials go on for dialer.PendingTimeout, see
	// half.go.
	punchTimeout = 3 * time.Second
	// serverDelay is how much later one side dials than the other, at least; two
	// round trips where they take longer. Where the other's dial simply succeeds
	// it is over by then, even after an ARP exchange. SYNs that cross work as
	// well, but Linux then takes the time since its SYN-ACK for the round trip,
	// and BBR is held down by half a round trip for 10 s.
	serverDelay = 60 * time.Millisecond
	// strangerFor is how long an endpoint is left alone where somebody else
	// answered.
	strangerFor = 10 * time.Minute
	// v6Chance is how much earlier IPv6 is dialed than IPv4.
	v6Chance = 50 * time.Millisecond
	// punchRetry is the wait before a refused endpoint is dialed again.
	punchRetry = 100 * time.Millisecond
)

// punchState is what a remote remembers about punching. It is guarded by
// peerSet.mu. When to punch is the machine's affair.
type punchState struct {
	remote []endpoint.Endpoint // where the peer said it may be dialed, last time
	theirs ladder.NAT          // the peer's, by its own word
	last   outcome             // of the last attempt
	busy   bool                // answering an offer
	// strangers has endpoints where somebody else answered, and until when they are
	// left alone.
	strangers map[endpoint.Endpoint]ladder.Time
	halves    map[endpoint.Endpoint]*half
	// guessFrom is when ports of the peer may be guessed again, and guessed what came
	// of it the last time, for an operator.
	guessFrom ladder.Time
	guessed   string
}

// missing returns the direct transports there is no live path over. The caller
// holds mu.
func (r *remote) missing() []string { return transports(r.m.Missing()) }

func transports(ts []ladder.Transport) []string {
	var out []string
	for _, t := range ts {
		out = append(out, t.String())
	}
	return out
}

// punchOnce is one attempt as the coordinator, over path p.
func (r *remote) punchOnce(ctx context.Context, p *path, want []string, attempt int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*punchTimeout)
	defer cancel()
	s, err := conns.Open(ctx, p.conn, identity.PunchProtocol)
	if err != nil {
		return err
	}
	defer s.Reset()
	_ = s.SetDeadline(time.Now().Add(punchTimeout))
	n := r.set.n
	mine := n.localOffer(ctx, want)
	mine.Turn = turnOf(attempt, p.describe().RTT, n.natNow())
	mine.Ports = r.portsOffer()
	start := time.Now()
	if err := writeOffer(s, mine); err != nil {
		return fmt.Errorf("send offer: %w", err)
	}
	theirs, eps, err := readOffer(s)
	if err != nil {
		return fmt.Errorf("read offer: %w", err)
	}
	rtt := time.Since(start)
	r.offered(theirs, eps)
	if _, err := s.Write([]byte{'\n'}); err != nil {
		return fmt.Errorf("send sync: %w", err)
	}
	_ = s.CloseWrite()
	wait := rtt / 2
	if mine.Turn == turnAnswerer {
		wait += max(serverDelay, 2*rtt)
	}
	g := r.planGuess(mine, theirs, eps, true, time.Now().Add(rtt/2))
	defer g.release()
	wake.Sleep(ctx, wait)
	err = r.dialAll(ctx, eps, theirs.guessed(eps), want, true)
	if g.run() {
		return nil
	}
	return err
}

// answerPunch is one attempt as the other side.
func (ps *peerSet) answerPunch(s network.Stream) {
	defer s.Reset()
	p := ps.pathOf(s.Conn())
	if p == nil {
		return
	}
	if !p.r.beginAnswer() { // one at a time
		return
	}
	defer p.r.endAnswer()
	ctx, cancel := context.WithTimeout(ps.n.ctx, 2*punchTimeout)
	defer cancel()
	_ = s.SetDeadline(time.Now().Add(punchTimeout))
	theirs, eps, err := readOffer(s)
	if err != nil {
		ps.n.log.Debug("punch offer", "peer", p.r.name(), "err", err)
		return
	}
	p.r.offered(theirs, eps)
	mine := ps.n.localOffer(ctx, theirs.Want)
	mine.Ports = p.r.portsOffer()
	start := time.Now()
	if err := writeOffer(s, mine); err != nil {
		return
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil { // sync
		return
	}
	rtt := time.Since(start)
	g := p.r.planGuess(mine, theirs, eps, false, time.Now())
	defer g.release()
	if theirs.Turn == turnCoordinator || theirs.Turn == turnTogether && ps.n.natNow() == ladder.NATNone {
		wake.Sleep(ctx, max(serverDelay, 2*rtt))
	}
	_ = p.r.dialAll(ctx, eps, theirs.guessed(eps), theirs.Want, false)
	g.run()
}

// offered remembers what the peer said, before anything else may end the
// attempt.
func (r *remote) offered(o offer, eps []endpoint.Endpoint) {
	mine := r.set.n.natNow()
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.punch.remote, r.punch.theirs = eps, ladder.ParseNAT(o.NAT)
	r.tell(ladder.NATs{Mine: mine, Theirs: r.punch.theirs})
	r.set.n.book.Note(r.id, eps, func() bool { return r.set.n.gater.View().IsMember(r.id) })
}

func (r *remote) beginAnswer() bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	was := r.punch.busy
	r.punch.busy = true
	return !was
}

func (r *remote) endAnswer() {
	r.set.mu.Lock()
	r.punch.busy = false
	r.set.mu.Unlock()
}

// dialAll dials every endpoint of the wanted transports at once, IPv6 a little
// before IPv4 where both sides have it, and opens this
// side's NAT for packets from where the peer may be seen (guess). It returns nil
// as soon as there is a connection over each of them, else, when all dials have
// ended, what went wrong.
func (r *remote) dialAll(ctx context.Context, eps, guess []endpoint.Endpoint, want []string, client bool) error {
	n := r.set.n
	ctx, cancel := context.WithTimeout(ctx, punchTimeout)
	defer cancel()
	if guess = slices.DeleteFunc(guess, func(e endpoint.Endpoint) bool { return !n.addrs.Dialable(e) }); len(guess) > 0 {
		n.spawn(func() { n.dialer.OpenNAT(ctx, guess) })
	}
	late := slices.ContainsFunc(eps, n.addrs.ReachesIPv6)
	var mu sync.Mutex
	out := outcome{at: time.Now()}
	var wg sync.WaitGroup
	for _, e := range eps {
		if !slices.Contains(want, endpoint.TransportName(e.UDP)) || !n.addrs.Dialable(e) || r.isStranger(e) {
			continue
		}
		wg.Add(1)
		started := n.spawn(func() {
			defer wg.Done()
			if late && e.Addr.Addr().Is4() {
				wake.Sleep(ctx, v6Chance)
			}
			err := r.dialOne(ctx, e, client)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.add(e, brief(err))
				r.noteStranger(e, err)
			}
			if len(r.lacking(want)) == 0 {
				cancel()
			}
		})
		if !started {
			wg.Done()
		}
	}
	wg.Wait()
	out.missing = r.lacking(want)
	if !slices.Contains(out.missing, "tcp") {
		r.endHalves()
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.punch.last = out
	if len(out.missing) == 0 {
		return nil
	}
	return fmt.Errorf("no direct %s connection: %s", strings.Join(out.missing, " and "), strings.Join(out.dials, "; "))
}

// dialOne dials one endpoint. A router on the way may refuse until the other
// side's packets have opened it: that is tried again.
func (r *remote) dialOne(ctx context.Context, e endpoint.Endpoint, client bool) error {
	for first := true; ; first = false {
		if (!client || !first || e.Addr.Addr().Is4()) && len(r.lacking([]string{endpoint.TransportName(e.UDP)})) == 0 {
			return nil // the other side was faster
		}
		var err error
		switch {
		case e.UDP && r.set.n.nat.View().Predictable() && !e.Addr.Addr().IsPrivate():
			err = r.set.n.dialer.DialFresh(ctx, e, r.id)
		case e.UDP:
			err = r.set.n.dialer.Dial(ctx, e.Multiaddr(), r.id)
		default:
			err = r.dialHalf(ctx, e, client)
		}
		if err == nil {
			return r.settleOn(ctx, e.UDP)
		}
		if !errors.Is(err, unix.ECONNREFUSED) || !wake.Sleep(ctx, punchRetry) {
			return err
		}
	}
}

// settleOn waits until the swarm has taken a connection over a transport.
func (r *remote) settleOn(ctx context.Context, udp bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		r.set.mu.Lock()
		changed := r.changed
		r.set.mu.Unlock()
		if len(r.lacking([]string{endpoint.TransportName(udp)})) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.New("refused after the handshake")
		}
	}
}

// lacking returns which of the wanted transports have no direct path.
func (r *remote) lacking(want []string) []string {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return slices.DeleteFunc(r.missing(), func(t string) bool { return !slices.Contains(want, t) })
}

// noteStranger remembers where somebody else answered than the peer: another site
// uses the same private addresses. That does no harm, but costs a handshake.
func (r *remote) noteStranger(e endpoint.Endpoint, err error) {
	if !isMismatch(err) {
		return
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.punch.strangers == nil || len(r.punch.strangers) >= 4*maxOffer {
		r.punch.strangers = make(map[endpoint.Endpoint]ladder.Time)
	}
	r.punch.strangers[e] = r.set.n.now() + strangerFor
}

// isStranger says whether somebody else answered at e lately.
func (r *remote) isStranger(e endpoint.Endpoint) bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return r.set.n.now() < r.punch.strangers[e]
}
