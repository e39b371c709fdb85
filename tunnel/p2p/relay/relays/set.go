package relays

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// Set has the relays of the membership.
type Set struct {
	common
	Seen    Seen
	Reports Reports
	Witness Witness
	keep    keepAlives

	mu      sync.Mutex // a leaf, as are all locks of this package: none is held while another is taken
	clients []*client  // in the membership's order
}

// New returns a Set without relays.
func New(c Config) *Set {
	s := &Set{common: common{Config: c, choose: wake.NewOne(), changed: &wake.All{}, surveys: make(chan struct{}, maxSurveys)}}
	s.alone = s.isAlone
	s.many = func() bool { return len(s.all()) >= choice.ManyRelays }
	s.Seen = Seen{common: &s.common, clients: s.all, entered: s.keep.enter}
	s.Witness = Witness{common: &s.common, clients: s.all}
	s.keep = keepAlives{common: &s.common, clients: s.all, lost: make(map[peer.ID]keptLoss), remembered: remembered{path: c.RoutersFile}}
	if err := s.keep.remembered.open(); err != nil {
		c.Log.Warn("how long routers remember connections is learned again", "err", err)
	}
	s.Reports = Reports{common: &s.common, clients: s.all, of: make(map[peer.ID]*report), next: make(map[peer.ID]network.Conn)}
	return s
}

// Use replaces the relays. Those that stay are not disturbed unless their addresses have changed.
func (s *Set) Use(infos []peer.AddrInfo) {
	s.mu.Lock()
	old := s.clients
	s.clients = nil
	var fresh []*client
	var hosts []netip.Addr // a member names its addresses itself: it could have the NAT64's prefix refused
	for _, info := range infos {
		for _, a := range info.Addrs {
			if ip, ok := endpoint.IP(a); ok && ip.Is6() && s.Members.View().IsOperators(info.ID) {
				hosts = append(hosts, ip)
			}
		}
		if i := slices.IndexFunc(old, func(c *client) bool { return c.is(info) }); i >= 0 {
			s.clients = append(s.clients, old[i])
			old = slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		c := newClient(&s.common, info)
		fresh = append(fresh, c)
		s.clients = append(s.clients, c)
	}
	s.mu.Unlock()
	s.Names.Keep(hosts)
	for _, c := range old {
		c.cancel()
	}
	s.reserve()
	for _, c := range fresh {
		s.Spawn(c.run)
	}
	for _, c := range s.all() { // a relay that has refused us may know better now
		c.retry.Wake()
	}
}

// reserve says to each client whether it is to hold a reservation.
func (s *Set) reserve() {
	clients := s.all()
	measured := make([]choice.Relay, len(clients))
	for i, c := range clients {
		measured[i] = c.measured()
	}
	chosen := choice.Reservations(s.Self, measured)
	for _, c := range clients {
		if c.demand.setReservation(slices.Contains(chosen, c.info.ID)) {
			c.wake.Wake()
		}
	}
}

func (s *Set) all() []*client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.clients)
}

// client returns the client of relay p, nil if p is not a relay.
func (s *Set) client(p peer.ID) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		if c.info.ID == p {
			return c
		}
	}
	return nil
}

// isAlone says whether no other relay holds a reservation.
func (s *Set) isAlone(relay peer.ID) bool {
	return !slices.ContainsFunc(s.all(), func(x *client) bool { return x.info.ID != relay && x.status().Reserved })
}

// Infos are the relays with their configured addresses, in the membership's order.
func (s *Set) Infos() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, c := range s.all() {
		out = append(out, c.info)
	}
	return out
}

// Wants says whether p is a relay that this node wants to be connected to.
func (s *Set) Wants(p peer.ID) bool {
	c := s.client(p)
	return c != nil && c.demand.connection()
}

// Position is where a relay stands in the membership's order, counted from 1; 100 if it is not among the first.
func (s *Set) Position(relay peer.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.clients {
		if c.info.ID == relay {
			return min(i+1, 100)
		}
	}
	return 100
}

// OverTCP returns the relays that there is a TCP connection to.
func (s *Set) OverTCP() map[peer.ID]bool {
	out := make(map[peer.ID]bool)
	for _, c := range s.all() {
		if conns := c.conns(); len(conns) > 0 && !overUDP(conns[0]) {
			out[c.info.ID] = true
		}
	}
	return out
}

// Addrs returns, for each relay that is connected, the addresses at which it answers: those of connections first, then
// those of QUIC at the hosts that answer over TCP, then the configured ones.
func (s *Set) Addrs() [][]ma.Multiaddr {
	var out [][]ma.Multiaddr
	for _, c := range s.all() {
		var addrs []ma.Multiaddr
		conns := c.conns()
		for _, conn := range conns {
			addrs = append([]ma.Multiaddr{addrOf(c, conn)}, addrs...)
		}
		if len(addrs) > 0 {
			out = append(out, slices.Concat(addrs, c.quicBeside(conns), c.info.Addrs))
		}
	}
	return out
}

// Circuits returns the circuit addresses this node can be reached at.
func (s *Set) Circuits() []ma.Multiaddr {
	var out []ma.Multiaddr
	for _, c := range s.all() {
		if c.status().Reserved {
			for _, a := range c.info.Addrs {
				out = append(out, endpoint.Circuit(c.info.ID, a))
			}
		}
	}
	return out
}

// Wake has p's client look at its connections now: one came or went. p need not be a relay.
func (s *Set) Wake(p peer.ID) {
	if c := s.client(p); c != nil {
		c.lines.pingEnded()
		c.wake.Wake()
		s.changed.Broadcast()
	}
}

// Ended is Wake after a connection has ended. If the other end, a relay, said why, that is why there is no reservation.
func (s *Set) Ended(conn network.Conn) {
	if c := s.client(conn.RemotePeer()); c != nil {
		if why := conns.Told(conn); why != nil {
			c.told.Store(&why)
		}
	}
	s.Wake(conn.RemotePeer())
}

// Suspect has relay p pinged immediately, over all connections to it.
func (s *Set) Suspect(p peer.ID) {
	if c := s.client(p); c != nil {
		c.lines.pingAll()
	}
}

// SuspectAll has all relays pinged immediately, and those that are not connected dialed: what has cut one path may be a new address
// of this host or of its site.
func (s *Set) SuspectAll() {
	for _, c := range s.all() {
		c.lines.pingAll()
		c.retry.Wake()
	}
}

// AwaitAny waits until a relay is connected, at most for d.
func (s *Set) AwaitAny(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = s.changed.Until(ctx, func() bool {
		return slices.ContainsFunc(s.all(), func(c *client) bool { return len(c.conns()) > 0 })
	})
}

// Visit has p connected for a while, if it is a relay, and waits until it is, or cannot be.
func (s *Set) Visit(ctx context.Context, p peer.ID) {
	if c := s.client(p); c != nil {
		c.visit(ctx)
	}
}

// Connect returns the address at which relay p is connected. One that is not is visited, for the sake of circuits; one
// that should hold a reservation is being dialed all the time and is not waited for.
func (s *Set) Connect(ctx context.Context, p peer.ID) (ma.Multiaddr, error) {
	c := s.client(p)
	if c == nil {
		return nil, fmt.Errorf("%s is not a relay", p)
	}
	conns := c.conns()
	if len(conns) == 0 && !c.demand.reservation() {
		conns = c.visit(ctx)
	}
	if len(conns) == 0 {
		return nil, fmt.Errorf("relay %s is not connected: %s", p, c.status().Error)
	}
	return addrOf(c, conns[0]), nil
}

// Status returns the state of every relay, in the membership's order.
func (s *Set) Status() []Status {
	var out []Status
	for _, c := range s.all() {
		out = append(out, c.status())
	}
	return out
}

// Check pings every relay now, over each connection to it. A relay that is not connected is being dialed all the time,
// with pauses below choice.Backoff: the outcome of the last attempt is the answer, and where there is none yet, that of
// the first one, which ctx should leave DialTimeout for.
func (s *Set) Check(ctx context.Context) []Status {
	clients := s.all()
	out := make([]Status, len(clients))
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() { out[i] = c.check(ctx) })
	}
	wg.Wait()
	return out
}
