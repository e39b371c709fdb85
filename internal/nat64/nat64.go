// Package nat64 leads to IPv4 hosts from where only IPv6 is, through the network's NAT64 (RFC 6146), and says which IPv4 address
// is inside an IPv6 one (RFC 6052). Where there is an IPv4 route it does nothing, and sends nothing.
//
//	nat64.go   Finder: the prefixes of the network that this host is in, and which one is used
//	prefix.go  addresses with an IPv4 address inside
//	names.go   prefixes in answers of DNS64 (RFC 7050)
//	router.go  prefixes in router advertisements (RFC 8781)
package nat64

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"edgemesh/internal/wake"
)

const (
	// patience is how long the first users of a network wait for its prefix: routers answer within 0.5 s (RFC 4861, section 10:
	// MAX_RA_DELAY_TIME). Then the well-known prefix is tried.
	patience = 700 * time.Millisecond
	// lookFor is how long a network is listened to, lookEvery how often, and lookAgain where no prefix works.
	lookFor   = 10 * time.Second
	lookEvery = 10 * time.Minute
	lookAgain = 15 * time.Second
	// mostNetworks and mostPrefixes bound what is remembered: networks, and prefixes of each by DNS, and by routers.
	mostNetworks, mostPrefixes = 8, 4
	// trust is how many failures more than others a prefix that has worked may have, and the most that count. wrong is how many
	// more one that was found may have than one that is a guess, and from how many on prefixes are looked for again.
	trust, wrong = 8, 2
)

// Finder knows the prefixes of the networks that this host has been in. A nil Finder leads nowhere.
type Finder struct {
	// Changed wakes when IPv4 hosts may be reached that were not.
	Changed wake.One

	lookup func(context.Context) ([]netip.Addr, error)
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the lifetime of searches, which outlast who began them
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex // a leaf
	networks map[netip.Prefix]*network
	taken    []netip.Addr // of hosts that no prefix holds
}

// network is one that this host is in, by its own prefix there.
type network struct {
	looking  bool
	looked   time.Time     // when a search began
	first    chan struct{} // closed once a prefix is known, or the first search has ended
	prefixes []*candidate  // the well-known one is the last
	full     bool          // that there are too many was logged
}

// candidate is a prefix that may be the NAT64's.
type candidate struct {
	netip.Prefix
	by     string    // who named it: byDNS, byRA, or nobody
	worked bool      // a host behind it has proved its identity
	failed int       // dials through it since, at most trust
	last   time.Time // when the last one failed
}

// Who names prefixes.
const byDNS, byRA = "DNS", "router"

// score is the lower the better a prefix is.
func (c *candidate) score() int {
	switch {
	case c.worked:
		return c.failed - trust
	case c.by == "":
		return min(c.failed+wrong, trust)
	}
	return c.failed
}

// New returns a Finder, to be closed. lookup looks for IPv6 addresses of Name.
func New(lookup func(context.Context) ([]netip.Addr, error), log *slog.Logger) *Finder {
	f := &Finder{Changed: wake.NewOne(), lookup: lookup, log: log, networks: make(map[netip.Prefix]*network)}
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

// Via is where to dial to reach a: a itself, or what the NAT64 of this network makes of it. The caller says what came of that:
// nil once the host has proved its identity.
func (f *Finder) Via(ctx context.Context, a netip.Addr) (to netip.Addr, ended func(error)) {
	to, _, c := f.via(ctx, a)
	if c == nil {
		return a, func(error) {}
	}
	return to, func(err error) { f.ended(ctx, c, err) }
}

func (f *Finder) via(ctx context.Context, a netip.Addr) (to netip.Addr, n *network, c *candidate) {
	if n = f.around(ctx, a); n == nil {
		return a, nil, nil
	}
	c = f.best(n)
	to = Embed(c.Prefix, a)
	if _, ok := source(to); !ok {
		return a, nil, nil
	}
	learn(c.Prefix)
	return to, n, c
}

// Dial dials a where Via says. A dial through a guess is given up, and made again, when the network's first prefix is found: silence
// shows only seconds later that nothing answers. dial calls proved, at any time, once the host has proved its identity.
func (f *Finder) Dial(ctx context.Context, a netip.Addr, dial func(ctx context.Context, to netip.Addr, proved func()) error) error {
	for {
		to, n, c := f.via(ctx, a)
		if c == nil {
			return dial(ctx, a, func() {})
		}
		found, err := f.until(ctx, n, c, func(ctx context.Context) error {
			return dial(ctx, to, func() { f.ended(ctx, c, nil) })
		})
		if err == nil || !found {
			return err
		}
	}
}

// until dials through c, until another prefix is the network's first. It notes a failure, but not that it gave up.
func (f *Finder) until(ctx context.Context, n *network, c *candidate, dial func(context.Context) error) (found bool, err error) {
	one, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	select {
	case <-n.first:
	default:
		watch.Go(func() {
			select {
			case <-n.first:
				if f.best(n) != c {
					cancel()
				}
			case <-one.Done():
			}
		})
	}
	if err = dial(one); err != nil {
		f.ended(one, c, err)
	}
	return one.Err() != nil && ctx.Err() == nil, err
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
	return c.worked || c.by != "" && c.failed < wrong
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
			for _, old := range f.networks {
				for _, c := range old.prefixes {
					forget(c.Prefix)
				}
			}
			clear(f.networks)
		}
		n = &network{first: make(chan struct{}), prefixes: []*candidate{{Prefix: WellKnown}}}
		f.networks[key] = n
	}
	pause := lookEvery
	if n.best().failed >= wrong {
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
		if f.found(n, p, by, own) {
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
			add(p, byDNS)
		}
	})
	wg.Go(func() {
		if link == nil {
			return
		}
		if err := solicit(ctx, link, func(p netip.Prefix) { add(p, byRA) }, func(p netip.Prefix) { f.withdraw(n, p) }); err != nil {
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

// found adds a prefix that can be one on a host with own addresses.
func (f *Finder) found(n *network, p netip.Prefix, by string, own []netip.Addr) bool {
	f.mu.Lock()
	hosts := f.taken
	f.mu.Unlock()
	return usable(p, own) && !slices.ContainsFunc(hosts, p.Contains) && f.add(n, p, by)
}

// add adds a prefix; false: it is known, or there are too many that have not failed.
func (f *Finder) add(n *network, p netip.Prefix, by string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer n.known()
	if i := slices.IndexFunc(n.prefixes, func(c *candidate) bool { return c.Prefix == p }); i >= 0 {
		c := n.prefixes[i]
		if c.by != "" {
			return false
		}
		c.by = by
	} else {
		var same []*candidate
		for _, c := range n.prefixes {
			if c.by == by {
				same = append(same, c)
			}
		}
		if len(same) >= mostPrefixes {
			worst := slices.MaxFunc(same, func(a, b *candidate) int { return a.score() - b.score() })
			if !n.full {
				n.full = true
				f.log.Warn("more NAT64 prefixes are named than one network has: some are wrong or forged, and those that fail are replaced",
					"by", by, "prefixes", same)
			}
			if worst.worked || worst.failed == 0 {
				return false
			}
			n.remove(worst)
		}
		n.prefixes = slices.Insert(n.prefixes, len(n.prefixes)-1, &candidate{Prefix: p, by: by})
	}
	f.Changed.Wake()
	return true
}

// Keep says which addresses are hosts' of IPv6, as relays' are: a prefix that holds one is forged, and not used.
func (f *Finder) Keep(hosts []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = hosts
	for _, n := range f.networks {
		for _, c := range slices.Clone(n.prefixes) {
			if c.by != "" && slices.ContainsFunc(hosts, c.Contains) {
				n.remove(c)
			}
		}
	}
}

// withdraw follows a router that no longer has a prefix.
func (f *Finder) withdraw(n *network, p netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.IndexFunc(n.prefixes, func(c *candidate) bool { return c.Prefix == p && c.by == byRA }); i >= 0 {
		n.remove(n.prefixes[i])
	}
}

// remove removes a prefix, or what is known of the well-known one. The Finder's lock is held.
func (n *network) remove(c *candidate) {
	forget(c.Prefix)
	if c.Prefix == WellKnown {
		*c = candidate{Prefix: WellKnown}
		return
	}
	n.prefixes = slices.DeleteFunc(n.prefixes, func(x *candidate) bool { return x == c })
}

// best is the prefix to use.
func (f *Finder) best(n *network) *candidate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return n.best()
}

// best is the prefix with the best score; of equals the one that failed longest ago, or was found first. Where one has worked
// nothing is guessed. The Finder's lock is held.
func (n *network) best() *candidate {
	all := n.prefixes
	if slices.ContainsFunc(all, func(c *candidate) bool { return c.worked }) {
		all = slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !c.worked && c.by == "" })
	}
	return slices.MinFunc(all, func(a, b *candidate) int { return cmp.Or(a.score()-b.score(), a.last.Compare(b.last)) })
}

// ended notes what came of a dial. A peer is reached or not for many reasons: a prefix that has worked has credit. What the
// caller has given up says nothing.
func (f *Finder) ended(ctx context.Context, c *candidate, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		if !c.worked {
			learn(c.Prefix)
			f.Changed.Wake()
		}
		c.worked, c.failed = true, 0
	case errors.Is(ctx.Err(), context.Canceled):
	default:
		if c.failed, c.last = min(c.failed+1, trust), time.Now(); !c.worked {
			forget(c.Prefix)
		}
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
