// Package portmap asks the routers before this host to let others in: one port for
// TCP and one for UDP, by PCP (RFC 6887), NAT-PMP (RFC 6886) or UPnP-IGD.
package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// lease is how long a router is asked to keep a mapping that nobody renews;
	// one is renewed after half of what was granted.
	lease = 20 * time.Minute
	// minLease bounds how often a router that grants less is bothered.
	minLease = 2 * time.Minute
	// look is how often the routers in use are compared with the routing table.
	look = 3 * time.Second
	// askTime bounds all methods together, and dropTime the giving back at the end.
	askTime  = 12 * time.Second
	dropTime = 2 * time.Second
	// maxPause is the longest wait before a router that refuses is asked again.
	maxPause = 30 * time.Minute
)

// Gateway is a router, and the address of this host that it knows.
type Gateway struct {
	Router netip.Addr
	Local  netip.Addr
}

// Mapping is a port of a router that leads to this node.
type Mapping struct {
	UDP      bool
	External netip.AddrPort
}

// Config is what a Mapper needs.
type Config struct {
	TCP, UDP uint16 // the ports this node listens on, 0 for none
	// Gateways returns the routers to ask; it is called every few seconds. Those
	// of interfaces with public addresses are none.
	Gateways func() []Gateway
	// Public says whether an address can be reached from outside.
	Public func(netip.Addr) bool
	// Changed is called when Mappings returns something else than before.
	Changed func()
	Log     *slog.Logger
}

// method is a way to talk to one router.
type method interface {
	String() string
	// add makes or renews a mapping; want is the external port asked for. The port
	// and the time granted may be others.
	add(ctx context.Context, udp bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error)
	// drop gives a mapping back.
	drop(ctx context.Context, udp bool, internal uint16, external netip.AddrPort) error
}

// errNotThere: the router does not speak the method.
var errNotThere = errors.New("no answer")

// Mapper keeps the mappings.
type Mapper struct {
	cfg     Config
	methods func(Gateway) []method

	mu      sync.Mutex
	routers map[Gateway]*router
}

// router is one router, and what it has granted.
type router struct {
	g      Gateway
	cancel context.CancelFunc
	again  chan struct{}

	// guarded by Mapper.mu
	by       method // nil: none works
	mapped   []Mapping
	problem  string
	attempts int
}

// New returns a Mapper that does nothing yet.
func New(c Config) *Mapper {
	return &Mapper{cfg: c, methods: methods, routers: make(map[Gateway]*router)}
}

// methods in the order they are tried: those first that take a packet or two.
func methods(g Gateway) []method { return []method{newPCP(g), newNATPMP(g), newUPnP(g)} }

// Run keeps mappings at all routers until ctx ends, and gives them back.
func (m *Mapper) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		m.follow(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// follow begins with routers that are new, and ends with those that are gone.
func (m *Mapper) follow(ctx context.Context, wg *sync.WaitGroup) {
	now := m.cfg.Gateways()
	m.mu.Lock()
	defer m.mu.Unlock()
	for g, r := range m.routers {
		if !slices.Contains(now, g) {
			r.cancel()
			delete(m.routers, g)
		}
	}
	for _, g := range now {
		if m.routers[g] != nil {
			continue
		}
		rctx, cancel := context.WithCancel(ctx)
		r := &router{g: g, cancel: cancel, again: make(chan struct{}, 1)}
		m.routers[g] = r
		wg.Go(func() { defer cancel(); m.keep(rctx, r) })
	}
}

// Again has all routers asked at once: one of them may have been restarted.
func (m *Mapper) Again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.routers {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
}

// Mappings returns the ports that lead here from outside.
func (m *Mapper) Mappings() []Mapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Mapping
	for _, r := range m.routers {
		for _, x := range r.mapped {
			if m.cfg.Public(x.External.Addr()) && !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	slices.SortFunc(out, func(a, b Mapping) int { return a.External.Compare(b.External) })
	return out
}

// String says for an operator what routers have granted, or why not; "" if there is
// no router.
func (m *Mapper) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for g, r := range m.routers {
		text := "router " + g.Router.String() + ": "
		switch {
		case r.problem != "":
			text += r.problem
		case r.by == nil:
			text += "asking"
		default:
			text += "port mapped by " + r.by.String() + " at"
			for _, x := range r.mapped {
				text += " " + network(x.UDP) + " " + x.External.String()
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return join(out)
}

func join(parts []string) (s string) {
	for i, p := range parts {
		if i > 0 {
			s += "; "
		}
		s += p
	}
	return s
}

func network(udp bool) string {
	if udp {
		return "udp"
	}
	return "tcp"
}

// keep asks one router again and again until ctx ends.
func (m *Mapper) keep(ctx context.Context, r *router) {
	for ctx.Err() == nil {
		wait := m.renew(ctx, r)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.again:
		case <-t.C:
		}
		t.Stop()
	}
	m.giveBack(r)
}

// renew asks for all ports and returns when to do so again.
func (m *Mapper) renew(ctx context.Context, r *router) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	by, mapped, granted, err := m.ask(ctx, r)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	for _, x := range mapped {
		if !m.cfg.Public(x.External.Addr()) {
			problem = fmt.Sprintf("its own address %s is not public, there is another NAT before it", x.External.Addr())
		}
	}
	m.mu.Lock()
	news := !slices.Equal(mapped, r.mapped) || problem != r.problem
	if by != nil {
		r.by = by
	}
	r.mapped, r.problem = mapped, problem
	r.attempts++
	if err == nil {
		r.attempts = 0
	}
	pause := min(time.Minute<<min(r.attempts, 10), maxPause)
	m.mu.Unlock()
	if news && ctx.Err() == nil {
		m.cfg.Log.Info("port mapping", "router", r.g.Router, "mapped", mapped, "problem", problem)
		m.cfg.Changed()
	}
	if err == nil {
		pause = max(granted, minLease) / 2
	}
	return pause - pause/8 + rand.N(pause/8+1)
}

// ask renews by the method that worked, else tries one after the other: together
// they would stand in each other's way at a router that speaks all of them.
func (m *Mapper) ask(ctx context.Context, r *router) (method, []Mapping, time.Duration, error) {
	m.mu.Lock()
	by, old := r.by, r.mapped
	m.mu.Unlock()
	if by != nil {
		if mapped, d, err := m.addAll(ctx, by, old); err == nil {
			return by, mapped, d, nil
		}
	}
	var why []string
	for _, x := range m.methods(r.g) {
		mapped, d, err := m.addAll(ctx, x, nil)
		if err == nil {
			return x, mapped, d, nil
		}
		why = append(why, x.String()+": "+err.Error())
	}
	return nil, nil, 0, errors.New("no port mapping (" + join(why) + ")")
}

// addAll makes or renews the mappings for TCP and UDP by one method. It succeeds
// when one of them does.
func (m *Mapper) addAll(ctx context.Context, by method, old []Mapping) ([]Mapping, time.Duration, error) {
	var out []Mapping
	least := lease
	var errs []error
	for _, udp := range []bool{true, false} {
		internal := m.cfg.TCP
		if udp {
			internal = m.cfg.UDP
		}
		if internal == 0 {
			continue
		}
		want := internal
		for _, x := range old {
			if x.UDP == udp {
				want = x.External.Port()
			}
		}
		external, d, err := by.add(ctx, udp, internal, want, lease)
		if err != nil {
			errs = append(errs, err)
			if errors.Is(err, errNotThere) {
				break
			}
			continue
		}
		out = append(out, Mapping{udp, external})
		least = min(least, d)
	}
	if len(out) == 0 {
		return nil, 0, errors.Join(errs...)
	}
	return out, least, nil
}

// giveBack drops the mappings of a router that is not used any more.
func (m *Mapper) giveBack(r *router) {
	m.mu.Lock()
	by, mapped := r.by, r.mapped
	r.mapped = nil
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), dropTime)
	defer cancel()
	for _, x := range mapped {
		internal := m.cfg.TCP
		if x.UDP {
			internal = m.cfg.UDP
		}
		if err := by.drop(ctx, x.UDP, internal, x.External); err != nil {
			m.cfg.Log.Debug("mapping is not given back, it ends with its lease", "router", r.g.Router, "err", err)
		}
	}
}
