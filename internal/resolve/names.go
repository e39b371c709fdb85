// Package resolve reaches hosts by name where name servers answer half, late, wrongly or not at all. A and AAAA are looked up
// apart, and each answer is used when it comes; addresses that worked before are tried beside. Messages are package net's. IPv4
// addresses are dialed through NAT64 where no IPv4 route is (package nat64).
//
//	names.go    Names: what answers, and what is kept of it
//	attempts.go the addresses of one host, tried in turn (RFC 8305)
//	lookup.go   one family of one name, asked of one server after the other
//	conf.go     which servers there are now
//	kept.go     addresses that worked, on disk
package resolve

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"edgemesh/internal/nat64"
	"edgemesh/internal/wording"
)

const (
	// silence is how long a server has the question alone.
	silence = time.Second
	// mostAsked is how often a server that is silent is asked.
	mostAsked = 3
	// walk bounds a lookup. Three servers, each asked three times, take 9 s.
	walk = 12 * time.Second
	// fresh is the least time for which an answer serves further attempts, so that all addresses of a relay share one query. One
	// that took longer is good for twice as long: whoever has given up waiting finds it at the next attempt.
	fresh = time.Second
	// mostAddrs are used of one answer.
	mostAddrs = 8
)

// Config of Names. The zero value is good: this host's resolver, nothing kept.
type Config struct {
	// Root has the host's files in a container, where they are mounted; "": this is the host.
	Root string
	// File keeps addresses that worked; "": nothing does.
	File string
	Log  *slog.Logger // nil discards
}

// Names looks up hosts' names. A nil Names is package net's resolver.
type Names struct {
	ctx     context.Context //nolint:containedctx // the lifetime of lookups, which outlast who began them
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	kept    *kept
	servers func() []string
	nat64   *nat64.Finder
	root    string

	mu      sync.Mutex // a leaf
	lookups map[question]*lookup
	dialed  map[netip.AddrPort]dialed // what Dialer's connections to an address are for
}

// dialed is what a connection is for.
type dialed struct {
	host   string
	proved func() // the host has shown its identity
}

// question is what one lookup is for.
type question struct {
	host string
	v6   bool
}

// New returns Names, to be closed.
func New(c Config) *Names {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	n := &Names{kept: open(c.File, c.Log), root: c.Root, servers: func() []string { return servers(c.Root) }, lookups: make(map[question]*lookup),
		dialed: make(map[netip.AddrPort]dialed)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.nat64 = nat64.New(func(ctx context.Context) ([]netip.Addr, error) { return n.Lookup(ctx, nat64.Name, V6) }, c.Log)
	return n
}

// Via is nat64.Finder's: where to dial to reach an address.
func (n *Names) Via(ctx context.Context, a netip.Addr) (to netip.Addr, ended func(error)) {
	if n == nil {
		return a, func(error) {}
	}
	return n.nat64.Via(ctx, a)
}

// Dial is nat64.Finder's, for an address.
func (n *Names) Dial(ctx context.Context, a netip.Addr, dial func(ctx context.Context, to netip.Addr, proved func()) error) error {
	if n == nil {
		return dial(ctx, a, func() {})
	}
	return n.nat64.Dial(ctx, a, dial)
}

// Keep is nat64.Finder's: hosts of IPv6, which no NAT64 prefix holds.
func (n *Names) Keep(hosts []netip.Addr) {
	if n != nil {
		n.nat64.Keep(hosts)
	}
}

// ViaNAT64 is nat64.Finder's Leads.
func (n *Names) ViaNAT64(ctx context.Context) bool { return n != nil && n.nat64.Leads(ctx) }

// NAT64Changed wakes when ViaNAT64 may say something else.
func (n *Names) NAT64Changed() <-chan struct{} { return n.nat64.Changed }

// Outdated reports whether this container cannot see which name servers its host has now: a file mounted alone stays the one
// that it was, and a directory such as /etc is nothing to mount for it.
func (n *Names) Outdated() bool { return outdated(n.root) }

// Servers are the name servers of now, HOST:PORT.
func (n *Names) Servers() []string { return n.servers() }

// Known are the addresses that worked, by name.
func (n *Names) Known() map[string][]netip.Addr {
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	return maps.Clone(n.kept.of)
}

// Close ends all lookups.
func (n *Names) Close() {
	n.nat64.Close()
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.wg.Wait()
}

// Worked keeps an address at which host has answered.
func (n *Names) Worked(host string, a netip.Addr) {
	if _, err := netip.ParseAddr(host); err != nil {
		n.kept.add(absolute(host), a)
	}
}

// Answered keeps an address at which the host of a Dialer's connection has given a valid answer: one that TLS or its proxy's
// protocol has shown to be the host's. A connection alone anybody may give.
func (n *Names) Answered(at net.Addr) {
	tcp, ok := at.(*net.TCPAddr)
	if n == nil || !ok {
		return
	}
	a := tcp.AddrPort()
	a = netip.AddrPortFrom(nat64.Inside(a.Addr()), a.Port())
	n.mu.Lock()
	x := n.dialed[a]
	delete(n.dialed, a) // it is kept once
	n.mu.Unlock()
	if x.host != "" {
		x.proved()
		n.Worked(x.host, a.Addr())
	}
}

// dials notes what a connection to an address is for.
func (n *Names) dials(a netip.Addr, port string, x dialed) {
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for at := range n.dialed { // any one makes room
		if len(n.dialed) < maxNames {
			break
		}
		delete(n.dialed, at)
	}
	n.dialed[netip.AddrPortFrom(a, uint16(p))] = x
}

// absolute makes search lists useless, except for a name that means nothing without them: one without a dot, and one of a
// Service, as in a kubeconfig for pods.
func absolute(host string) string {
	host = strings.ToLower(host)
	if strings.Contains(host, ".") && !strings.HasSuffix(host, ".") && !strings.HasSuffix(host, ".svc") {
		host += "."
	}
	return host
}

// dialFunc is how package net and others dial.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns dial for HOST:PORT: the first connection to any address of the host.
func (n *Names) Dialer(dial dialFunc) dialFunc {
	if n == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return n.dial(ctx, dial, network, address)
	}
}

func (n *Names) dial(ctx context.Context, dial dialFunc, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	one, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // of the two below, a leaf
	var won net.Conn
	var errs []error
	err = n.each(one, host, Family(network), false, func(ctx context.Context, a netip.Addr) error {
		return n.Dial(ctx, a, func(ctx context.Context, to netip.Addr, proved func()) error {
			over := network
			if to != a {
				over = strings.TrimSuffix(network, "4")
			}
			c, err := dial(ctx, over, net.JoinHostPort(to.String(), port))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
				return err
			case won != nil:
				return c.Close()
			}
			won = c
			n.dials(a, port, dialed{host, proved}) // a connection proves nothing: Answered does
			cancel()
			return nil
		})
	})
	if won != nil {
		return won, nil
	}
	return nil, cmp.Or(wording.Join(append(errs, err)...), ctx.Err())
}

// LookupIPAddr returns what is known of a host as soon as it can be used, by the order of attempts.
func (n *Names) LookupIPAddr(ctx context.Context, host string) ([]net.IPAddr, error) {
	var out []net.IPAddr
	all, err := n.Lookup(ctx, host, Both)
	for _, a := range all {
		out = append(out, net.IPAddr{IP: a.AsSlice(), Zone: a.Zone()})
	}
	return out, err
}

// Lookup is LookupIPAddr for one family, or both.
func (n *Names) Lookup(ctx context.Context, host string, f Families) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	t := n.begin(host, f)
	for {
		now := time.Now()
		t.collect(now)
		if known := len(t.queue) > 0 && !now.Before(t.held); known || t.over(now) || ctx.Err() != nil {
			break
		}
		_, _ = t.wait(ctx, now, nil) // without attempts there is no result
	}
	if len(t.queue) == 0 {
		return nil, t.err(ctx)
	}
	return t.queue, nil
}

// LookupTXT looks up text records.
func (n *Names) LookupTXT(ctx context.Context, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, walk)
	defer cancel()
	return ask(ctx, host, n.servers, func(ctx context.Context, r *net.Resolver) ([]string, error) { return r.LookupTXT(ctx, absolute(host)) })
}
