package relays

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/resolve"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// Seen is where relays see this node: the addresses and ports that its NAT gives to its listening sockets.
type Seen struct {
	*common
	clients func() []*client
	entered func(place string, moved bool, date time.Time) // what site.place is; moved: the router has another address

	mu   sync.Mutex          // a leaf
	last []endpoint.Endpoint // as of the last call of SeenElsewhere
}

// Endpoints returns the endpoints at which relays see this node's listening sockets, and whether two relays see the same
// socket at different ports, as behind a symmetric NAT.
func (s *Seen) Endpoints() (seen []endpoint.Endpoint, symmetric bool) {
	first := make(map[bool]endpoint.Endpoint)
	for _, c := range s.clients() {
		for _, e := range c.lines.seenAt() {
			if f, ok := first[e.UDP]; !ok {
				first[e.UDP] = e
			} else if f.Addr.Addr() == e.Addr.Addr() && f.Addr.Port() != e.Addr.Port() {
				symmetric = true
			}
			if !slices.Contains(seen, e) {
				seen = append(seen, e)
			}
		}
	}
	return seen, symmetric
}

// AwaitUDP has relays look at this node's UDP socket, over each IP version that they have, and waits until one does over each of
// those that may still come, for seenPatience at most. Relays that see it continue for a while.
func (s *Seen) AwaitUDP(ctx context.Context) {
	now, soon := s.Now(), false
	for _, c := range s.clients() {
		conns := c.conns()
		// Without a session nobody dials: the connections are a member's paths.
		if c.demand.ask(now, len(conns) > 0 && c.demand.connection() && c.missing(conns) != 0 && slices.ContainsFunc(conns, overUDP)) {
			soon = true
			c.wake.Wake()
		}
	}
	if soon {
		ctx, cancel := context.WithTimeout(ctx, seenPatience)
		defer cancel()
		_ = s.changed.Until(ctx, func() bool {
			var seen, coming resolve.Families
			for _, c := range s.clients() {
				sees, may := c.overQUIC()
				seen, coming = seen|sees, coming|may
			}
			return coming&^seen == 0
		})
	}
}

// run notes what relays observe, which identify tells, until ctx ends.
func (s *Seen) run(ctx context.Context, sub event.Subscription) {
	defer sub.Close()
	var at site
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-sub.Out():
			ev, ok := e.(event.EvtPeerIdentificationCompleted)
			if !ok || ev.ObservedAddr == nil || endpoint.IsCircuit(ev.Conn.RemoteMultiaddr()) {
				continue
			}
			clients := s.clients()
			i := slices.IndexFunc(clients, func(c *client) bool { return c.info.ID == ev.Peer })
			if i < 0 {
				continue
			}
			if observe(clients[i], ev.Conn, ev.ObservedAddr) {
				s.changed.Broadcast()
				s.compare(overUDP(ev.Conn) && clients[i].enough(clients[i].conns()))
			}
			if ip, ok := endpoint.IP(ev.ObservedAddr); ok {
				moved, another := at.see(ip)
				s.entered(at.place(), moved, time.Now())
				if another {
					s.NewAddress() // the router has another address, or was restarted
				}
			}
		}
	}
}

// site is where relays see this node.
type site struct {
	v4 netip.Addr
	v6 netip.Prefix // addresses change by themselves within it
}

// see notes an address, and says whether the site has moved, and whether its IPv4 address is another one.
func (s *site) see(ip netip.Addr) (moved, another bool) {
	if ip.Is4() {
		moved, another, s.v4 = s.v4.IsValid() && ip != s.v4, ip != s.v4, ip
		return moved, another
	}
	p, _ := ip.Prefix(64)
	moved, s.v6 = s.v6.IsValid() && p != s.v6, p
	return moved, false
}

// place names the site, by its IPv4 address where it has one: there are routers that forget.
func (s *site) place() string {
	if s.v4.IsValid() {
		return s.v4.String()
	}
	return s.v6.String()
}

// observe notes that c's relay sees conn coming from a. Connections that were not dialed from a listening port say
// nothing about it: false.
func observe(c *client, conn network.Conn, a ma.Multiaddr) bool {
	seen, ok := endpoint.Parse(a)
	local, okLocal := endpoint.Parse(conn.LocalMultiaddr())
	if !ok || !okLocal || seen.UDP != local.UDP || !c.Dialer.ListensOn(local) {
		return false
	}
	if conn.IsClosed() || c.Members.View().InCluster(seen.Addr.Addr()) {
		return false
	}
	c.lines.see(conn, seen)
	return true
}

// compare reports when a relay sees this node where none has seen it before. asked: it was to look at the UDP socket, which
// may have another port since it did so last; the node stands where it stood.
func (s *Seen) compare(asked bool) {
	seen, _ := s.Endpoints()
	s.mu.Lock()
	news, moved := unseen(seen, s.last, asked)
	first := len(s.last) == 0
	if news {
		s.last = seen
	}
	s.mu.Unlock()
	if news {
		s.SeenElsewhere(first || !moved)
	}
}

// unseen reports whether an endpoint is not among those that relays saw last, and whether that means that this node has moved.
func unseen(seen, last []endpoint.Endpoint, asked bool) (news, moved bool) {
	for _, e := range seen {
		if slices.Contains(last, e) {
			continue
		}
		news = true
		moved = moved || !asked || !e.UDP || !slices.ContainsFunc(last, func(l endpoint.Endpoint) bool { return l.Addr.Addr() == e.Addr.Addr() })
	}
	return news, moved
}
