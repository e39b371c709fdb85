package resolve

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/internal/wording"
)

// lookup is one family of one name.
type lookup struct {
	began time.Time
	done  chan struct{} // closed when the rest is set
	ended time.Time
	addrs []netip.Addr
	err   error // no server has answered
}

func (l *lookup) ready() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// lookup joins the one under way, or uses the last one while it is fresh.
func (n *Names) lookup(q question) *lookup {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.lookups[q]; l != nil && (!l.ready() || time.Since(l.ended) < max(fresh, 2*l.ended.Sub(l.began))) {
		return l
	}
	l := &lookup{began: time.Now(), done: make(chan struct{})}
	n.lookups[q] = l
	n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, walk)
		defer cancel()
		network := "ip4"
		if q.v6 {
			network = "ip6"
		}
		all, err := ask(ctx, q.host, n.servers, func(ctx context.Context, r *net.Resolver) ([]netip.Addr, error) {
			return r.LookupNetIP(ctx, network, q.host)
		})
		l.addrs, l.err, l.ended = usable(all, q.v6), err, time.Now()
		close(l.done)
	})
	return l
}

// usable leaves out what is no host's address: filters answer 0.0.0.0, which would lead to this host.
func usable(all []netip.Addr, v6 bool) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); a.Is6() == v6 && !a.IsUnspecified() && !a.IsMulticast() && !slices.Contains(out, a) && len(out) < mostAddrs {
			out = append(out, a)
		}
	}
	return out
}

// ask queries name servers: the next one when all before have failed, or after silence, and the silent ones once more. The
// first answer counts, also that there is nothing. The list is read each time, so that a new uplink's servers are in it.
func ask[T any](ctx context.Context, host string, servers func() []string, query func(context.Context, *net.Resolver) ([]T, error)) ([]T, error) {
	type answer struct {
		server string
		all    []T
		err    error
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	asked, errs := make(map[string]int), make(map[string]error)
	next := time.NewTimer(0)
	defer next.Stop()
	for running := 0; ; {
		select {
		case <-next.C:
			server := leastAsked(servers(), asked)
			if server == "" {
				continue
			}
			asked[server]++
			running++
			wg.Go(func() {
				all, err := query(ctx, only(ctx, server))
				select {
				case answers <- answer{server, all, err}:
				case <-ctx.Done():
				}
			})
			next.Reset(silence)
		case a := <-answers:
			running--
			var failed *net.DNSError
			switch {
			case a.err == nil || errors.As(a.err, &failed) && failed.IsNotFound:
				return a.all, nil
			case failed != nil:
				failed.Server = a.server // package net names one of its own
				if !failed.IsTimeout {
					asked[a.server] = mostAsked
				}
			}
			errs[a.server] = a.err
			if running > 0 {
				continue
			}
			if leastAsked(servers(), asked) == "" {
				return nil, joined(errs)
			}
			next.Reset(0)
		case <-ctx.Done():
			for s := range asked {
				if errs[s] == nil {
					errs[s] = &net.DNSError{Err: "no answer", Name: strings.TrimSuffix(host, "."), Server: s, IsTimeout: true}
				}
			}
			return nil, cmp.Or(joined(errs), ctx.Err())
		}
	}
}

// leastAsked is the first of the servers that have been asked least, "" if all have been asked often enough.
func leastAsked(servers []string, asked map[string]int) string {
	out, least := "", mostAsked
	for _, s := range servers {
		if asked[s] < least {
			out, least = s, asked[s]
		}
	}
	return out
}

func joined(errs map[string]error) error {
	var out []error
	for _, server := range slices.Sorted(maps.Keys(errs)) {
		out = append(out, errs[server])
	}
	return wording.Join(out...)
}

// only is a resolver with one server. Its sockets end with ctx, which package net does not see to.
func only(ctx context.Context, server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(dialing context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(dialing, network, server)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = c.Close() })
		if u, ok := c.(*net.UDPConn); ok {
			return patient{u}, nil
		}
		return c, nil
	}}
}

// patient waits for an answer until it is closed, where package net gives up after the 5 s of resolv.conf(5): some servers
// always take longer.
type patient struct{ *net.UDPConn }

func (patient) SetDeadline(time.Time) error { return nil }
