// Package nat64 leads to IPv4 hosts from where only IPv6 is, through the network's NAT64 (RFC 6146), and says which IPv4 address
// is inside an IPv6 one (RFC 6052). Where there is an IPv4 route it does nothing, and sends nothing.
//
//	nat64.go   Finder: the prefixes of the network that this host is in, and which one is used
//	prefix.go  addresses with an IPv4 address inside
//	names.go   prefixes in answers of DNS64 (RFC 7050)
//	router.go  prefixes in router advertisements (RFC 8781)
package nat64

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// patience is how long the first users of a network wait for its prefix: routers answer within 0.5 s (RFC 4861, section 10:
	// MAX_RA_DELAY_TIME). Then the well-known prefix is tried.
	patience = 700 * time.Millisecond
	// lookFor is how long a network is listened to, lookEvery how often, and lookAgain where no prefix works.
	lookFor   = 10 * time.Second
	lookEvery = 10 * time.Minute
	lookAgain = 15 * time.Second
	// mostNetworks and mostPrefixes bound what is remembered: networks, and prefixes of each beside the well-known one.
	mostNetworks, mostPrefixes = 8, 4
	// trust is how many failures more than others a prefix that has worked may have, and wrong from how many on prefixes are
	// looked for again.
	trust, wrong = 8, 2
)

// Finder knows the prefixes of the networks that this host has been in. A nil Finder leads nowhere.
type Finder struct {
	lookup func(context.Context) ([]netip.Addr, error)
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the lifetime of searches, which outlast who began them
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex // a leaf
	networks map[netip.Prefix]*network
}

// network is one that this host is in, by its own prefix there.
type network struct {
	looking  bool
	looked   time.Time     // when a search began
	first    chan struct{} // closed once a prefix is known, or the first search has ended
	prefixes []*candidate  // the well-known one is the last
}

// candidate is a prefix that may be the NAT64's.
type candidate struct {
	netip.Prefix
	found  bool // named by a name server or a router
	failed int  // dials through it since one succeeded
}

// New returns a Finder, to be closed. lookup looks for IPv6 addresses of Name.
func New(lookup func(context.Context) ([]netip.Addr, error), log *slog.Logger) *Finder {
	f := &Finder{lookup: lookup, log: log, networks: make(map[netip.Prefix]*network)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Close ends searches.
func (f *Finder) Close() {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}

// Via is where to dial to reach a: a itself, or what the NAT64 of this network makes of it. The caller says what came of that.
func (f *Finder) Via(ctx context.Context, a netip.Addr) (to netip.Addr, ended func(error)) {
	ended = func(error) {}
	n := f.around(ctx, a)
	if n == nil {
		return a, ended
	}
	c := f.best(n)
	to = Embed(c.Prefix, a)
	if _, ok := source(to); !ok {
		return a, ended
	}
	return to, func(err error) { f.ended(n, c, err) }
}

// Leads reports whether this host has no IPv4 and reaches IPv4 hosts, as far as is known: a prefix was found, or has worked.
func (f *Finder) Leads(ctx context.Context) bool {
	n := f.around(ctx, anywhere)
	if n == nil {
		return false
	}
	c := f.best(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	return c.failed < 0 || c.found && c.failed < wrong
}

// anywhere is a public IPv4 address, to which nothing is sent.
var anywhere = netip.AddrFrom4([4]byte{192, 0, 2, 1}) //nolint:gochecknoglobals // a constant

// around is the network that leads to a, after a wait for its prefix; nil: an IPv4 route does, or nothing.
func (f *Finder) around(ctx context.Context, a netip.Addr) *network {
	if f == nil || !public(a) {
		return nil
	}
	if _, ok := source(a); ok {
		return nil
	}
	from, ok := source(Embed(WellKnown, a))
	if !ok {
		return nil
	}
	n, began := f.in(from)
	timer := time.NewTimer(patience - time.Since(began))
	defer timer.Stop()
	select {
	case <-n.first:
	case <-timer.C:
	case <-ctx.Done():
	}
	return n
}

// source is this host's address for packets to an address; false: no route leads there. Nothing is sent.
func source(to netip.Addr) (netip.Addr, bool) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return netip.Addr{}, false
	}
	defer c.Close()
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	from := local.AddrPort().Addr().Unmap()
	return from, !from.IsLinkLocalUnicast()
}

// in is the network where this host has an address, and when its last search began. It is searched for prefixes if that is due.
func (f *Finder) in(from netip.Addr) (n *network, began time.Time) {
	key := netip.PrefixFrom(from, 64).Masked()
	f.mu.Lock()
	defer f.mu.Unlock()
	if n = f.networks[key]; n == nil {
		if len(f.networks) >= mostNetworks {
			clear(f.networks)
		}
		n = &network{first: make(chan struct{}), prefixes: []*candidate{{Prefix: WellKnown}}}
		f.networks[key] = n
	}
	pause := lookEvery
	if !slices.ContainsFunc(n.prefixes, func(c *candidate) bool { return c.failed < wrong }) {
		pause = lookAgain
	}
	if !n.looking && f.ctx.Err() == nil && (n.looked.IsZero() || time.Since(n.looked) >= pause) {
		n.looking, n.looked = true, time.Now()
		f.wg.Go(func() { f.look(n, from) })
	}
	return n, n.looked
}

// look searches a network for prefixes.
func (f *Finder) look(n *network, from netip.Addr) {
	ctx, cancel := context.WithTimeout(f.ctx, lookFor)
	defer cancel()
	link, own := linkOf(from)
	add := func(p netip.Prefix, by string) {
		if usable(p, own) && f.add(n, p) {
			f.log.Info("NAT64 prefix found: IPv4 addresses are reached through it", "prefix", p, "by", by)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		all, err := f.lookup(ctx)
		if err != nil {
			f.log.Debug("NAT64 prefix not found by name", "name", Name, "err", err)
		}
		for _, p := range byNames(all) {
			add(p, "DNS")
		}
	})
	wg.Go(func() {
		if link == nil {
			return
		}
		if err := solicit(ctx, link, func(p netip.Prefix) { add(p, "router") }); err != nil {
			f.log.Debug("NAT64 prefix not found by router", "link", link.Name, "err", err)
		}
	})
	wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	n.looking = false
	n.known()
}

// known ends the wait of the first users. The Finder's lock is held.
func (n *network) known() {
	select {
	case <-n.first:
	default:
		close(n.first)
	}
}

// add adds a prefix; false: it is known, or there are too many.
func (f *Finder) add(n *network, p netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer n.known()
	if i := slices.IndexFunc(n.prefixes, func(c *candidate) bool { return c.Prefix == p }); i >= 0 {
		c := n.prefixes[i]
		was := c.found
		c.found = true
		return !was
	}
	if len(n.prefixes) > mostPrefixes {
		return false
	}
	n.prefixes = slices.Insert(n.prefixes, len(n.prefixes)-1, &candidate{Prefix: p, found: true})
	learn(p)
	return true
}

// best is the prefix to use: the one with the fewest failures; among those the first that was found.
func (f *Finder) best(n *network) *candidate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.MinFunc(n.prefixes, func(a, b *candidate) int { return a.failed - b.failed })
}

// ended notes what came of a dial. A peer is reached or not for many reasons: a prefix that has worked has credit.
func (f *Finder) ended(n *network, c *candidate, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		c.failed = -trust
	} else {
		c.failed++
	}
}

// linkOf is the interface that has an address, nil if none has, and all addresses of this host.
func linkOf(a netip.Addr) (link *net.Interface, own []netip.Addr) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, nil
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil {
				continue
			}
			if own = append(own, p.Addr()); p.Addr() == a {
				link = &i
			}
		}
	}
	return link, own
}
