package punch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/targets"
)

const (
	// v6Chance is how much earlier IPv6 is dialed than IPv4.
	v6Chance = 50 * time.Millisecond
	// retryPause is the wait before a refused endpoint is dialed again.
	retryPause = 100 * time.Millisecond
	// maxOwn endpoints are dialed in an attempt at addresses known to be the peer's, maxNear in this node's networks, and
	// maxFar elsewhere.
	maxOwn, maxNear, maxFar = 12, 6, 4
)

// dialAll dials every endpoint of the wanted transports at the same time, IPv6 a little
// before IPv4 where both sides have it, and opens this side's NAT for packets from where the
// peer may be seen (guess). It returns nil as soon as there is a connection over each of
// them; otherwise it waits for all dials and returns what failed.
func (a *Attempts) dialAll(ctx context.Context, eps, guess []endpoint.Endpoint, want []string, client bool) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	guess = slices.DeleteFunc(guess, func(e endpoint.Endpoint) bool {
		return !a.u.Addrs.Dialable(e) || !a.u.Targets.Owns(a.p.ID(), e.Addr.Addr()) || a.u.Targets.Check(a.p.ID(), e) != nil
	})
	if len(guess) > 0 {
		a.u.Spawn(func() { a.u.Dialer.OpenNAT(ctx, guess) })
	}
	late := slices.ContainsFunc(eps, a.u.Addrs.ReachesIPv6)
	none := names(a.p.Missing())
	eps = slices.DeleteFunc(slices.Clone(eps), func(e endpoint.Endpoint) bool {
		name := endpoint.TransportName(e.UDP)
		return !slices.Contains(want, name) || e.Addr.Addr().Is4() && !slices.Contains(none, name) || !a.Worth(e)
	})
	var mu sync.Mutex // a leaf: guards what the dials return
	out := outcome{at: time.Now(), outside: a.u.outside()}
	var wg sync.WaitGroup
	for _, e := range a.u.choose(a.p.ID(), fewer(eps, a.u.NAT(), a.NAT())) {
		most, err := a.u.Targets.Take(a.p.ID(), e, targets.Budget)
		if err != nil {
			out.add(e, conns.Brief(err))
			continue
		}
		wg.Add(1)
		started := a.u.Spawn(func() {
			defer wg.Done()
			if late && e.Addr.Addr().Is4() {
				wake.Sleep(ctx, v6Chance)
			}
			err := a.dialOne(ctx, e, most, client)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.add(e, conns.Brief(err))
				a.NoteStranger(e, err)
			}
			if len(a.missing(want)) == 0 {
				cancel()
			}
		})
		if !started {
			wg.Done()
		}
	}
	wg.Wait()
	out.missing = a.missing(want)
	if !slices.Contains(out.missing, "tcp") {
		a.endPending()
	}
	a.mu.Lock()
	a.past.add(out, len(want))
	a.mu.Unlock()
	if a.u.Ended != nil {
		a.u.Ended(a.u.NAT(), a.NAT(), len(out.missing) < len(want))
	}
	if len(out.missing) == 0 {
		return nil
	}
	return fmt.Errorf("no direct %s connection: %s", strings.Join(out.missing, " and "), strings.Join(out.dials, "; "))
}

// fewer leaves out what two NATs that both map per destination make useless: where each relay sees the peer is a port for
// that relay alone. One port of each address is tried all the same, for the kinds of NATs are guesses.
func fewer(eps []endpoint.Endpoint, mine, theirs ladder.NAT) []endpoint.Endpoint {
	if !mine.PerDestination() || !theirs.PerDestination() {
		return eps
	}
	var out []endpoint.Endpoint
	for _, e := range eps {
		if !slices.ContainsFunc(out, func(o endpoint.Endpoint) bool { return o.UDP == e.UDP && o.Addr.Addr() == e.Addr.Addr() }) {
			out = append(out, e)
		}
	}
	return out
}

// choose returns the endpoints of an offer that are dialed, the likeliest first: those known to be the peer's, those in
// this node's own networks, and a few others.
func (u *Puncher) choose(p peer.ID, eps []endpoint.Endpoint) []endpoint.Endpoint {
	var own, near, far []endpoint.Endpoint
	for _, e := range eps {
		switch ip := e.Addr.Addr(); {
		case u.Targets.Owns(p, ip):
			own = append(own, e)
		case u.Addrs.Near(ip):
			near = append(near, e)
		default:
			far = append(far, e)
		}
	}
	return slices.Concat(own[:min(len(own), maxOwn)], near[:min(len(near), maxNear)], far[:min(len(far), maxFar)])
}

// dialOne dials one endpoint, no longer than most unless that is 0. A router may refuse until the other side's packets
// have opened it; the dial of an address that is the peer's is then repeated.
func (a *Attempts) dialOne(ctx context.Context, e endpoint.Endpoint, most time.Duration, client bool) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(most, attemptTimeout))
	defer cancel()
	for first := true; ; first = false {
		if (!client || !first || e.Addr.Addr().Is4()) && a.has(e.UDP) {
			return nil // the other side was faster
		}
		var err error
		switch {
		case e.UDP && a.u.Sense.View().Predictable() && !e.Addr.Addr().IsPrivate():
			err = a.u.Dialer.DialFresh(ctx, e, a.p.ID())
		case e.UDP:
			err = a.u.Dialer.Dial(ctx, e.Multiaddr(), a.p.ID())
		default:
			err = a.dialPending(ctx, e, cmp.Or(most, dialer.PendingTimeout), client)
		}
		if err == nil {
			return nil
		}
		if most > 0 || !errors.Is(err, unix.ECONNREFUSED) || !wake.Sleep(ctx, retryPause) {
			return err
		}
	}
}

// has reports whether there is a direct path over a transport.
func (a *Attempts) has(udp bool) bool {
	return len(a.missing([]string{endpoint.TransportName(udp)})) == 0
}
