package resolve

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/internal/wording"
)

const (
	// resolutionDelay is how long A waits for AAAA, and attemptDelay how long an attempt goes before the next (RFC 8305, section 8).
	resolutionDelay = 50 * time.Millisecond
	attemptDelay    = 250 * time.Millisecond
	// lastWait is how long answers are awaited once every address that is known has failed. The caller tries again, and finds
	// what has come meanwhile.
	lastWait = time.Second
)

// Families are IP versions.
type Families int

const (
	V4 Families = 1 << iota
	V6
	Both = V4 | V6
)

// Family is that of package net's networks, "tcp" or "udp4".
func Family(network string) Families {
	switch {
	case strings.HasSuffix(network, "4"):
		return V4
	case strings.HasSuffix(network, "6"):
		return V6
	}
	return Both
}

func (f Families) has(a netip.Addr) bool { return a.Is4() && f&V4 != 0 || a.Is6() && f&V6 != 0 }

// attempts are what is known of one host's addresses, and what has become of them.
type attempts struct {
	host   string
	v4, v6 *lookup      // nil: not wanted, or taken
	errs   []error      // of lookups
	queue  []netip.Addr // not tried yet
	seen   []netip.Addr // tried, or in the queue
	kept   []netip.Addr // worked before, and join the queue when answers are late, or have led nowhere
	late   time.Time    // when that is
	held   time.Time    // until when an answer waits for the other family's; zero: it does not

	running int
	tried   Families
	latest  Families  // of the attempt that began last
	next    time.Time // when another one begins while those before continue
	ended   time.Time // when one failed last
}

func (n *Names) begin(host string, f Families) *attempts {
	host = absolute(host)
	t := &attempts{host: host, kept: n.kept.get(host, f), late: time.Now().Add(attemptDelay)}
	if f&V6 != 0 {
		t.v6 = n.lookup(question{host, true})
	}
	if f&V4 != 0 {
		t.v4 = n.lookup(question{host, false})
	}
	return t
}

// pending says whether a lookup has not ended.
func (t *attempts) pending() bool { return waits(t.v4) || waits(t.v6) }

func waits(l *lookup) bool { return l != nil && !l.ready() }

// collect queues what has come: AAAA immediately, A when that has, or at the end of the delay.
func (t *attempts) collect(now time.Time) {
	switch {
	case waits(t.v4) == waits(t.v6):
		t.held = time.Time{}
	case t.held.IsZero():
		t.held = now.Add(resolutionDelay)
	}
	if !waits(t.v6) {
		t.take(&t.v6)
	}
	if !waits(t.v4) && !now.Before(t.held) {
		t.take(&t.v4)
	}
	if vain := t.running == 0 && len(t.queue) == 0 && (!t.pending() || len(t.seen) > 0); vain || !now.Before(t.late) {
		t.add(t.kept)
		t.kept = nil
	}
}

func (t *attempts) take(l **lookup) {
	if *l == nil {
		return
	}
	t.add((*l).addrs)
	if (*l).err != nil {
		t.errs = append(t.errs, (*l).err)
	}
	*l = nil
}

func (t *attempts) add(all []netip.Addr) {
	for _, a := range all {
		if !slices.Contains(t.seen, a) {
			t.queue, t.seen = append(t.queue, a), append(t.seen, a)
		}
	}
}

// pick takes the address whose turn it is: the families take turns. together: the first of each does not wait for the other.
func (t *attempts) pick(now time.Time, together bool) (netip.Addr, bool) {
	if len(t.queue) == 0 {
		return netip.Addr{}, false
	}
	i := max(0, slices.IndexFunc(t.queue, func(a netip.Addr) bool { return !t.latest.has(a) }))
	a := t.queue[i]
	if t.running > 0 && now.Before(t.next) && (!together || t.tried.has(a)) {
		return netip.Addr{}, false
	}
	t.queue = slices.Delete(t.queue, i, i+1)
	t.latest = V6
	if a.Is4() {
		t.latest = V4
	}
	t.tried |= t.latest
	t.running++
	t.next = now.Add(attemptDelay)
	return a, true
}

// over says whether there is nothing more to try.
func (t *attempts) over(now time.Time) bool {
	return t.running == 0 && len(t.queue)+len(t.kept) == 0 && (!t.pending() && now.After(t.held) || t.tried != 0 && now.Sub(t.ended) >= lastWait)
}

// wait returns the result of an attempt, or false when something else may have come.
func (t *attempts) wait(ctx context.Context, now time.Time, results <-chan error) (err error, ended bool) {
	until := now.Add(walk)
	for _, x := range []struct {
		at time.Time
		is bool
	}{{t.held, t.held.After(now)}, {t.late, len(t.kept) > 0}, {t.next, len(t.queue) > 0}, {t.ended.Add(lastWait), t.running == 0 && t.tried != 0}} {
		if x.is && x.at.Before(until) {
			until = x.at
		}
	}
	select {
	case err = <-results:
		return err, true
	case <-done(t.v4):
	case <-done(t.v6):
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
	return nil, false
}

// done is nil, which is waited for forever, where there is nothing to come.
func done(l *lookup) <-chan struct{} {
	if !waits(l) {
		return nil
	}
	return l.done
}

// err is why some or all addresses of the host are not known, nil when all are.
func (t *attempts) err(ctx context.Context) error {
	name := strings.TrimSuffix(t.host, ".")
	switch {
	case len(t.errs) == 0 && t.pending():
		return &net.DNSError{UnwrapErr: ctx.Err(), Err: "no name server has answered yet", Name: name, IsTimeout: true}
	case len(t.errs) == 0 && len(t.seen) == 0:
		return &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return wording.Join(t.errs...)
}

// Each tries the addresses of a host, the first of each family as soon as it is known and the others in turn, until one is
// good. It returns when all that it has begun have ended. The error is that of name servers alone.
func (n *Names) Each(ctx context.Context, host string, f Families, try func(context.Context, netip.Addr) error) error {
	return n.each(ctx, host, f, true, try)
}

func (n *Names) each(ctx context.Context, host string, f Families, together bool, try func(context.Context, netip.Addr) error) error {
	if a, err := netip.ParseAddr(host); err == nil {
		_ = try(ctx, a.Unmap())
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	results := make(chan error, 2*mostAddrs+maxKept)
	for t := n.begin(host, f); ; {
		now := time.Now()
		t.collect(now)
		for a, ok := t.pick(now, together); ok; a, ok = t.pick(now, together) {
			wg.Go(func() { results <- try(ctx, a) })
		}
		if t.over(now) || ctx.Err() != nil {
			return t.err(ctx)
		}
		if err, ended := t.wait(ctx, now, results); ended {
			if err == nil {
				return nil
			}
			t.running--
			t.ended = time.Now()
			t.next = t.ended
		}
	}
}
