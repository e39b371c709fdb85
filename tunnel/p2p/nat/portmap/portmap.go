// Package portmap has the routers in front of this host let others in: one port for TCP and one for UDP, by PCP (RFC
// 6887), NAT-PMP (RFC 6886) or UPnP-IGD.
//
//	portmap.go   keeps the mappings at all routers
//	gateways.go  which routers there are
//	pcp.go, natpmp.go, upnp.go  how each is spoken to
package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// compareAgain is the pause to a second comparison after Look: the route of a new address comes after it.
	compareAgain = 2 * time.Second
	// lease is the lifetime that is requested of a mapping; it is renewed after half of what was granted.
	lease = 20 * time.Minute
	// minLease bounds how often mappings are renewed at a router that grants less.
	minLease = 2 * time.Minute
	// compareEvery is how often the routers in use are compared with the routing table if nobody calls Look.
	compareEvery = 15 * time.Second
	// renewTimeout bounds all methods together, and removeTimeout the removal of mappings at the end.
	renewTimeout  = 12 * time.Second
	removeTimeout = 2 * time.Second
	// maxPause is the longest pause before the next request to a router that refuses.
	maxPause = 30 * time.Minute
)

// Config is what a Mapper needs. All that is exported is required.
type Config struct {
	// Ports are those this node listens on, 0 for none, as of Run.
	Ports func() (tcp, udp uint16)
	// Gateways returns the routers in front of this host; it is called now and then.
	Gateways func() []Gateway
	// Public reports whether an address can be reached from outside.
	Public func(netip.Addr) bool
	// Changed is called after Endpoints has changed.
	Changed func()
	Log     *slog.Logger

	methods func(Gateway) []method // of tests; nil: all
}

// method is a way to talk to one router.
type method interface {
	String() string
	// add makes or renews a mapping; want is the external port that is requested. The router may grant another port and
	// another lifetime.
	add(ctx context.Context, udp bool, internal, want uint16, d time.Duration) (netip.AddrPort, time.Duration, error)
	// remove ends a mapping.
	remove(ctx context.Context, udp bool, internal uint16, external netip.AddrPort) error
}

// errNotThere: the router does not speak the method.
var errNotThere = errors.New("no answer")

// Mapper keeps the mappings. A nil one has none.
type Mapper struct {
	cfg      Config
	look     wake.One // the routers may be others now
	tcp, udp uint16   // set by Run before anything else reads them

	mu      sync.Mutex // a leaf: guards what follows, and the routers' own state
	routers map[Gateway]*router
}

// router is one router, and what it has granted.
type router struct {
	g      Gateway
	cancel context.CancelFunc
	again  wake.One

	// The rest is guarded by Mapper.mu.
	by       method // nil: none works
	mapped   []endpoint.Endpoint
	problem  string
	attempts int
}

// New returns a Mapper that does nothing yet.
func New(c Config) *Mapper {
	if c.methods == nil {
		c.methods = methods
	}
	return &Mapper{cfg: c, look: wake.NewOne(), routers: make(map[Gateway]*router)}
}

// methods are in the order they are tried: those first that take a packet or two.
func methods(g Gateway) []method { return []method{newPCP(g), newNATPMP(g), newUPnP(g)} }

// Run keeps mappings at all routers until ctx ends, and then removes them.
func (m *Mapper) Run(ctx context.Context) {
	if m.tcp, m.udp = m.cfg.Ports(); m.tcp == 0 && m.udp == 0 {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	t := time.NewTimer(compareEvery)
	defer t.Stop()
	for {
		m.follow(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-m.look:
			t.Reset(compareAgain)
		case <-t.C:
			t.Reset(compareEvery)
		}
	}
}

// follow starts with routers that are new, and stops with those that are gone.
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
		r := &router{g: g, cancel: cancel, again: wake.NewOne()}
		m.routers[g] = r
		wg.Go(func() { defer cancel(); m.keep(rctx, r) })
	}
}

// Look says that the routers in front of this host may be others now.
func (m *Mapper) Look() {
	if m != nil {
		m.look.Wake()
	}
}

// Again has all mappings renewed now: a router may have been restarted.
func (m *Mapper) Again() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.routers {
		r.again.Wake()
	}
}

// Endpoints are those of routers that lead here from outside.
func (m *Mapper) Endpoints() []endpoint.Endpoint {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []endpoint.Endpoint
	for _, r := range m.routers {
		for _, x := range r.mapped {
			if m.cfg.Public(x.Addr.Addr()) && !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	slices.SortFunc(out, func(a, b endpoint.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return out
}

// String says to an operator what routers have granted, or why not; "" if there is no router.
func (m *Mapper) String() string {
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for g, r := range m.routers {
		text := "router " + g.Router.String() + ": "
		switch {
		case r.problem != "":
			text += r.problem
		case r.by == nil:
			text += "port mapping requested, no answer yet"
		default:
			text += "port mapped by " + r.by.String() + " at"
			for _, x := range r.mapped {
				text += " " + x.String()
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// protocol is the transport's name in NAT-PMP and UPnP, the latter in upper case.
func protocol(udp bool) string {
	if udp {
		return "udp"
	}
	return "tcp"
}

// keep renews the mappings at one router until ctx ends.
func (m *Mapper) keep(ctx context.Context, r *router) {
	for ctx.Err() == nil {
		wait := m.renew(ctx, r)
		select {
		case <-ctx.Done():
		case <-r.again:
		case <-time.After(wait):
		}
	}
	m.remove(r)
}

// renew requests all ports and returns the pause before the next time.
func (m *Mapper) renew(ctx context.Context, r *router) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	by, mapped, granted, err := m.request(ctx, r)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	for _, x := range mapped {
		if !m.cfg.Public(x.Addr.Addr()) {
			problem = fmt.Sprintf("its own address %s is not public: another NAT is in front of it", x.Addr.Addr())
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
		m.cfg.Log.Info("port mappings at the router changed", "router", r.g.Router, "mapped", mapped, "problem", problem)
		m.cfg.Changed()
	}
	if err == nil {
		pause = max(granted, minLease) / 2
	}
	return pause - pause/8 + rand.N(pause/8+1)
}

// request renews by the method that worked before, else tries one after the other: together they would take the port from
// each other at a router that speaks all of them.
func (m *Mapper) request(ctx context.Context, r *router) (method, []endpoint.Endpoint, time.Duration, error) {
	m.mu.Lock()
	by, old := r.by, r.mapped
	m.mu.Unlock()
	if by != nil {
		if mapped, d, err := m.addAll(ctx, by, old); err == nil {
			return by, mapped, d, nil
		}
	}
	var why []string
	for _, x := range m.cfg.methods(r.g) {
		mapped, d, err := m.addAll(ctx, x, nil)
		if err == nil {
			return x, mapped, d, nil
		}
		why = append(why, x.String()+": "+err.Error())
	}
	return nil, nil, 0, errors.New("no port mapping (" + strings.Join(why, "; ") + ")")
}

// addAll makes or renews the mappings for TCP and UDP by one method. It succeeds when one of them does.
func (m *Mapper) addAll(ctx context.Context, by method, old []endpoint.Endpoint) ([]endpoint.Endpoint, time.Duration, error) {
	var out []endpoint.Endpoint
	least := lease
	var errs []error
	for _, udp := range []bool{true, false} {
		internal := m.internal(udp)
		if internal == 0 {
			continue
		}
		want := internal
		for _, x := range old {
			if x.UDP == udp {
				want = x.Addr.Port()
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
		out = append(out, endpoint.Endpoint{UDP: udp, Addr: external})
		least = min(least, d)
	}
	if len(out) == 0 {
		return nil, 0, errors.Join(errs...)
	}
	return out, least, nil
}

// internal is the port of this node that is mapped.
func (m *Mapper) internal(udp bool) uint16 {
	if udp {
		return m.udp
	}
	return m.tcp
}

// remove ends the mappings at a router that is no longer used.
func (m *Mapper) remove(r *router) {
	m.mu.Lock()
	by, mapped := r.by, r.mapped
	r.mapped = nil
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	for _, x := range mapped {
		if err := by.remove(ctx, x.UDP, m.internal(x.UDP), x.Addr); err != nil {
			m.cfg.Log.Debug("port mapping not removed: it ends with its lease", "router", r.g.Router, "err", err)
		}
	}
}
