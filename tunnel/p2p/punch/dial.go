package punch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/endpoint"
)

const (
	// v6Chance is how much earlier IPv6 is dialed than IPv4.
	v6Chance = 50 * time.Millisecond
	// retryPause is the wait before a refused endpoint is dialed again.
	retryPause = 100 * time.Millisecond
	// arrival bounds the wait for a connection that was dialed to become a path.
	arrival = time.Second
)

// dialAll dials every endpoint of the wanted transports at the same time, IPv6 a little
// before IPv4 where both sides have it, and opens this side's NAT for packets from where the
// peer may be seen (guess). It returns nil as soon as there is a connection over each of
// them; otherwise it waits for all dials and returns what failed.
func (a *Attempts) dialAll(ctx context.Context, eps, guess []endpoint.Endpoint, want []string, client bool) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if guess = slices.DeleteFunc(guess, func(e endpoint.Endpoint) bool { return !a.u.Addrs.Dialable(e) }); len(guess) > 0 {
		a.u.Spawn(func() { a.u.Dialer.OpenNAT(ctx, guess) })
	}
	late := slices.ContainsFunc(eps, a.u.Addrs.ReachesIPv6)
	var mu sync.Mutex
	out := outcome{at: time.Now()}
	var wg sync.WaitGroup
	for _, e := range eps {
		if !slices.Contains(want, endpoint.TransportName(e.UDP)) || !a.Worth(e) {
			continue
		}
		wg.Add(1)
		started := a.u.Spawn(func() {
			defer wg.Done()
			if late && e.Addr.Addr().Is4() {
				wake.Sleep(ctx, v6Chance)
			}
			err := a.dialOne(ctx, e, client)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.add(e, brief(err))
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
	a.last = out
	a.mu.Unlock()
	if len(out.missing) == 0 {
		return nil
	}
	return fmt.Errorf("no direct %s connection: %s", strings.Join(out.missing, " and "), strings.Join(out.dials, "; "))
}

// dialOne dials one endpoint. A router may refuse until the other side's packets have opened
// it; the dial is then repeated.
func (a *Attempts) dialOne(ctx context.Context, e endpoint.Endpoint, client bool) error {
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
			err = a.dialPending(ctx, e, client)
		}
		if err == nil {
			return a.arrived(ctx, e.UDP)
		}
		if !errors.Is(err, unix.ECONNREFUSED) || !wake.Sleep(ctx, retryPause) {
			return err
		}
	}
}

// arrived waits until a connection over a transport has become a path.
func (a *Attempts) arrived(ctx context.Context, udp bool) error {
	ctx, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	if a.p.Await(ctx, func() bool { return a.has(udp) }) != nil {
		return errors.New("refused after the handshake")
	}
	return nil
}

// has reports whether there is a direct path over a transport.
func (a *Attempts) has(udp bool) bool {
	return len(a.missing([]string{endpoint.TransportName(udp)})) == 0
}
