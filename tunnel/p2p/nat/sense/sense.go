// Package sense finds out what the NAT in front of this node does: whether there is one, how it maps ports, and when the
// site's public address changes. It queries STUN servers (package stun) from sockets of its own: the sockets that carry
// data keep their mappings.
//
//	sense.go   the kind of NAT, its next mappings, the range of its ports
//	kind.go    the kind by what relays see alone, and in words
//	watch.go   changes of the public address while nothing is sent
//
// The judgement is pure (classify, follows); sockets, servers and the host's addresses are handed in.
package sense

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/nat/portguess"
)

const (
	// senseEvery is the interval between looks at the NAT, debounce the pause before a look that was requested. One that
	// found nothing out, because packets were lost or a server was slow, is repeated after senseAgain, then after twice
	// that, and so on.
	senseEvery = 30 * time.Minute
	senseAgain = 2 * time.Second
	debounce   = 300 * time.Millisecond
	// queryTimeout bounds one query to a server.
	queryTimeout = 700 * time.Millisecond
	// maxServers bounds how many servers are queried.
	maxServers = 3
	// maxStep is the largest distance between two consecutive ports of a sequential NAT.
	maxStep = 8
	// confirmations is how many further mappings must follow before a NAT counts as sequential.
	confirmations = 2
	// MaxPredictions is how many ports after the last mapping are offered to a peer: other hosts behind the NAT, and the
	// other dials of the attempt, take some.
	MaxPredictions = 16
)

// Config is what a Sense needs. All functions are required.
type Config struct {
	// Servers returns the STUN servers that can be queried now, the best first.
	Servers func() []netip.AddrPort
	// Listen opens an underlay socket: udp4 or udp6, any address and port.
	Listen func(network string) (net.PacketConn, error)
	// Owns reports whether an address is one of this host.
	Owns func(netip.Addr) bool
	// Ports says that the range of ports of a NAT that maps at random is wanted.
	Ports bool
	// Changed is called after the kind of NAT has changed.
	Changed func()
	// InUse reports whether a peer carries more than a few packets now and then.
	InUse func() bool
	// Moved is called after the site's public address has changed.
	Moved func()
	// Unanswered is called after the server has ignored several queries.
	Unanswered func()
	Log        *slog.Logger
}

// View is what a node knows of its NAT.
type View struct {
	Kind   ladder.NAT
	Kept   bool           // the NAT keeps the port that the host uses
	Step   int            // distance between the ports of two mappings of a sequential NAT; else 0
	Server netip.AddrPort // a server that answers; invalid if none does
	// Ports is the range that a NAT which maps at random uses on Addr; only with Config.Ports.
	Ports portguess.Range
	Addr  netip.Addr
}

// Predictable reports whether the next mappings can be foreseen, and the ones that relays see are of no use to others.
func (v View) Predictable() bool { return v.Step != 0 && v.Kind != ladder.NATStable }

// Sense finds out what the NAT does.
type Sense struct {
	cfg  Config
	wake wake.One

	mu   sync.Mutex // a leaf
	view View
}

// New returns a Sense that knows nothing yet. Run and Watch do the work.
func New(cfg Config) *Sense { return &Sense{cfg: cfg, wake: wake.NewOne()} }

// Look finds out once what the NAT does, for a program that carries nothing; of c only Servers, Listen, Owns and Ports are
// used. ok is false where no server answers.
func Look(ctx context.Context, c Config) (v View, ok bool) { return New(c).look(ctx) }

// View returns what is known.
func (s *Sense) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// Again makes Run examine the NAT soon.
func (s *Sense) Again() { s.wake.Wake() }

// Run looks at the NAT on request, and now and then, until ctx ends.
func (s *Sense) Run(ctx context.Context) {
	pause, again := senseEvery, senseAgain
	for s.idle(ctx, pause) && wake.Sleep(ctx, debounce) {
		v, ok := s.look(ctx)
		if ok && v.Kind != ladder.NATUnknown {
			pause, again = senseEvery, senseAgain
		} else {
			pause, again = again, min(2*again, senseEvery)
		}
		if !ok {
			continue // no server answers: what was known may still be true
		}
		s.mu.Lock()
		old := s.view
		s.view = v
		s.mu.Unlock()
		if old.Kind != v.Kind {
			s.cfg.Log.Info("NAT changed", "nat", Text(v.Kind), "was", old.Kind)
			s.cfg.Changed()
		}
	}
}

// idle waits until the NAT is to be looked at, no longer than pause; false: ctx ended first.
func (s *Sense) idle(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.wake:
	case <-time.After(pause):
	}
	return true
}

// look queries servers for where they see a new socket, and a second new one.
func (s *Sense) look(ctx context.Context) (View, bool) {
	servers := s.cfg.Servers()
	if len(servers) == 0 {
		return View{}, false
	}
	servers = slices.Clone(servers[:min(len(servers), maxServers)])
	first, err := s.socket(servers[0])
	if err != nil {
		return View{}, false
	}
	defer first.Close()
	var seen, by []netip.AddrPort // where the first socket was seen, and by which servers
	var server netip.AddrPort
	for i := 0; i < len(servers); i++ {
		a, err := s.query(ctx, first, servers[i])
		if err != nil {
			continue
		}
		if !server.IsValid() {
			server = servers[i]
			if a.Other.IsValid() {
				servers = slices.Insert(servers, i+1, a.Other)
			}
		}
		seen, by = append(seen, a.Mapped), append(by, servers[i])
	}
	if len(seen) == 0 {
		return View{}, false
	}
	second, err := s.socket(server)
	if err != nil {
		return View{}, false
	}
	defer second.Close()
	last, err := s.query(ctx, second, server)
	if err != nil {
		return View{}, false
	}
	v := classify(localPort(first), seen, localPort(second), last.Mapped, s.cfg.Owns)
	v.Server = server
	if v.Kind == ladder.NATStable && !v.Kept && s.differs(ctx, second, by[1], last.Mapped) {
		v.Kind, v.Step = ladder.NATRandom, 0
	}
	if v.Kind == ladder.NATSequential && !s.confirm(ctx, server, last.Mapped, v.Step) {
		v.Kind, v.Step = ladder.NATRandom, 0
	}
	if s.cfg.Ports && v.Kind == ladder.NATRandom && server.Addr().Is4() {
		v.Addr = last.Mapped.Addr()
		v.Ports = s.sample(ctx, server, v.Addr)
	}
	return v, true
}

// confirm makes further mappings: of a NAT that maps at random into few ports, three may lie in a row by chance.
func (s *Sense) confirm(ctx context.Context, server, last netip.AddrPort, step int) bool {
	for range confirmations {
		next, err := s.mapping(ctx, server)
		if err != nil { // lost: says nothing
			continue
		}
		if !follows(last, next, step) {
			return false
		}
		last = next
	}
	return true
}

// differs reports whether another server sees c elsewhere: a NAT that maps at random into few ports may by chance have
// given the first socket the same one twice.
func (s *Sense) differs(ctx context.Context, c net.PacketConn, server, seen netip.AddrPort) bool {
	a, err := s.query(ctx, c, server)
	return err == nil && a.Mapped != seen // lost: says nothing
}

// mapping makes one mapping for a socket that is closed again, and returns it.
func (s *Sense) mapping(ctx context.Context, server netip.AddrPort) (netip.AddrPort, error) {
	c, err := s.socket(server)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	a, err := s.query(ctx, c, server)
	return a.Mapped, err
}

// socket opens a new one that suits dst.
func (s *Sense) socket(dst netip.AddrPort) (net.PacketConn, error) {
	if dst.Addr().Is4() {
		return s.cfg.Listen("udp4")
	}
	return s.cfg.Listen("udp6")
}

func (s *Sense) query(ctx context.Context, c net.PacketConn, server netip.AddrPort) (stun.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return stun.Query(ctx, c, server)
}

// sample makes some mappings in parallel, to see which ports the NAT uses. The range is unknown where the mappings are not
// all of address addr.
func (s *Sense) sample(ctx context.Context, server netip.AddrPort, addr netip.Addr) portguess.Range {
	seen := make([]netip.AddrPort, portguess.Samples)
	var wg sync.WaitGroup
	for i := range seen {
		wg.Go(func() { seen[i], _ = s.mapping(ctx, server) })
	}
	wg.Wait()
	var ports []uint16
	for _, a := range seen {
		switch {
		case !a.IsValid(): // lost
		case a.Addr() != addr:
			return portguess.Range{}
		default:
			ports = append(ports, a.Port())
		}
	}
	return portguess.Seen(ports)
}

// Predict returns where the node's next UDP mappings will be, if its NAT is sequential: it makes one now.
func (s *Sense) Predict(ctx context.Context) []netip.AddrPort {
	v := s.View()
	if !v.Predictable() {
		return nil
	}
	last, err := s.mapping(ctx, v.Server)
	if err != nil {
		return nil
	}
	var out []netip.AddrPort
	for i := 1; i <= MaxPredictions; i++ {
		if port := int(last.Port()) + i*v.Step; port > 0 && port <= 65535 {
			out = append(out, netip.AddrPortFrom(last.Addr(), uint16(port)))
		}
	}
	return out
}

func localPort(c net.PacketConn) uint16 {
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return uint16(a.Port)
	}
	return 0
}

// follows reports whether a NAT that counts by step could have given next after last.
func follows(last, next netip.AddrPort, step int) bool {
	d := int(next.Port()) - int(last.Port())
	return next.Addr() == last.Addr() && d*step > 0 && max(d, -d) <= maxStep
}

// classify judges by where several servers saw one socket, in the order they were queried, and where the first of them saw
// another one after that.
func classify(port uint16, seen []netip.AddrPort, port2 uint16, seen2 netip.AddrPort, owns func(netip.Addr) bool) View {
	v := View{Kept: seen2.Port() == port2}
	all := append(slices.Clone(seen), seen2)
	differ := false
	for _, a := range seen {
		v.Kept = v.Kept && a.Port() == port
		differ = differ || a != seen[0]
	}
	if !v.Kept {
		v.Step = stepOf(all, differ)
	}
	switch {
	case v.Kept && owns(seen[0].Addr()):
		v.Kind = ladder.NATNone
	case differ && v.Step != 0:
		v.Kind = ladder.NATSequential
	case differ:
		v.Kind = ladder.NATRandom
	case len(seen) > 1 || v.Kept:
		v.Kind = ladder.NATStable
	}
	return v
}

// stepOf returns the step of a NAT that counts, 0 if it does not count. Where all servers see the same, only the last one
// is another mapping.
func stepOf(seen []netip.AddrPort, differ bool) int {
	if !differ {
		seen = seen[len(seen)-2:]
	}
	step := 0
	for i := 1; i < len(seen); i++ {
		d := int(seen[i].Port()) - int(seen[i-1].Port())
		if d == 0 || d > maxStep || d < -maxStep || d*step < 0 || seen[i].Addr() != seen[0].Addr() {
			return 0
		}
		if step == 0 || max(d, -d) < max(step, -step) {
			step = d
		}
	}
	return step
}
