package p2p

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/birthday"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/socket"
	"edgemesh/tunnel/p2p/stun"
)

const (
	// senseEvery is how often a node looks what its NAT does, and senseSettle how
	// long after a change of what relays see.
	senseEvery  = 30 * time.Minute
	senseSettle = 300 * time.Millisecond
	// senseWait bounds the wait for one answer.
	senseWait = 700 * time.Millisecond
	// maxServers bounds how many relays are asked.
	maxServers = 3
	// maxStep is the largest distance of two ports that were given one after the
	// other by a NAT that counts.
	maxStep = 8
	// confirmations is how many more mappings have to follow before a NAT is believed
	// to count.
	confirmations = 2
	// guesses is how many ports after the last one given are offered to a peer:
	// other hosts behind the NAT, and the other dials of the attempt, take some.
	guesses = 16
)

// natView is what a node knows of its NAT.
type natView struct {
	kind ladder.NAT
	kept bool           // ports stay as they are inside
	step int            // how far a NAT that counts goes each time; 0: it does not
	ask  netip.AddrPort // who answers; invalid if nobody did
	// ports are where a NAT that maps at random gave ports of its address from;
	// looked for only where ports may be guessed.
	ports birthday.Range
	addr  netip.Addr
}

// natSense finds out what the NAT does, from sockets of its own: the ones that carry
// data keep their mappings.
type natSense struct {
	n    *Node
	wake chan struct{}

	mu   sync.Mutex
	view natView
}

func newNATSense(n *Node) *natSense { return &natSense{n: n, wake: make(chan struct{}, 1)} }

// now returns what is known.
func (s *natSense) now() natView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// again has it looked at soon.
func (s *natSense) again() { post(s.wake) }

func (s *natSense) run(ctx context.Context) {
	for {
		t := time.NewTimer(senseEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-s.wake:
		case <-t.C:
		}
		t.Stop()
		if !wake.Sleep(ctx, senseSettle) {
			return
		}
		v, ok := s.look(ctx)
		if !ok {
			continue // nobody answers: what was known may still be true
		}
		s.mu.Lock()
		old := s.view
		s.view = v
		s.mu.Unlock()
		if old.kind != v.kind {
			s.n.log.Info("NAT", "kind", v.kind, "keepsPorts", v.kept, "step", v.step)
			s.n.peers.natChanged()
		}
	}
}

// look asks relays where they see a new socket, and a second new one.
func (s *natSense) look(ctx context.Context) (natView, bool) {
	servers := s.servers()
	if len(servers) == 0 {
		return natView{}, false
	}
	first, err := s.socket(ctx, servers[0])
	if err != nil {
		return natView{}, false
	}
	defer first.Close()
	var seen []netip.AddrPort
	var ask netip.AddrPort
	for i := 0; i < len(servers); i++ {
		a, err := s.ask(ctx, first, servers[i])
		if err != nil {
			continue
		}
		if !ask.IsValid() {
			ask = servers[i]
			if a.Other.IsValid() {
				servers = slices.Insert(servers, i+1, a.Other)
			}
		}
		seen = append(seen, a.Mapped)
	}
	if len(seen) == 0 {
		return natView{}, false
	}
	second, err := s.socket(ctx, ask)
	if err != nil {
		return natView{}, false
	}
	defer second.Close()
	last, err := s.ask(ctx, second, ask)
	if err != nil {
		return natView{}, false
	}
	v := classify(localPort(first), seen, localPort(second), last.Mapped, s.n.addrs.Owns)
	v.ask = ask
	if v.kind == ladder.NATSequential && !s.goesOn(ctx, ask, last.Mapped, v.step) {
		v.kind, v.step = ladder.NATRandom, 0
	}
	if s.n.guesser.on && v.kind == ladder.NATRandom && ask.Addr().Is4() {
		v.addr = last.Mapped.Addr()
		v.ports = s.sample(ctx, ask, v.addr)
	}
	return v, true
}

// goesOn asks for further mappings: three may lie in a row by chance, where a NAT maps
// at random into few ports.
func (s *natSense) goesOn(ctx context.Context, server, last netip.AddrPort, step int) bool {
	for range confirmations {
		c, err := s.socket(ctx, server)
		if err != nil {
			return true
		}
		defer c.Close()
		a, err := s.ask(ctx, c, server)
		if err != nil { // lost: says nothing
			continue
		}
		if !follows(last, a.Mapped, step) {
			return false
		}
		last = a.Mapped
	}
	return true
}

// follows says whether a NAT that counts by step could have given next after last.
func follows(last, next netip.AddrPort, step int) bool {
	d := int(next.Port()) - int(last.Port())
	return next.Addr() == last.Addr() && d*step > 0 && max(d, -d) <= maxStep
}

// servers returns where relays answer: IPv4 where there is any, since that is what
// is translated.
func (s *natSense) servers() []netip.AddrPort {
	var v4, v6 []netip.AddrPort
	for _, l := range s.n.relays.all() {
		conns := l.conns()
		if len(conns) == 0 {
			continue
		}
		addrs := slices.Clone(l.info.Addrs)
		for _, c := range conns {
			addrs = append([]ma.Multiaddr{c.RemoteMultiaddr()}, addrs...)
		}
		for _, a := range addrs {
			e, ok := endpoint.Parse(a)
			if !ok || !e.UDP || s.n.gater.View().InCluster(e.Addr.Addr()) {
				continue
			}
			if e.Addr.Addr().Is4() {
				v4 = append(v4, e.Addr)
			} else {
				v6 = append(v6, e.Addr)
			}
			break // one of each relay
		}
	}
	if len(v4) == 0 {
		v4 = v6
	}
	return v4[:min(len(v4), maxServers)]
}

// socket opens a new one that suits dst.
func (s *natSense) socket(ctx context.Context, dst netip.AddrPort) (net.PacketConn, error) {
	lc := net.ListenConfig{Control: socket.Control(s.n.mark, false)}
	if dst.Addr().Is4() {
		return lc.ListenPacket(ctx, "udp4", ":0")
	}
	return lc.ListenPacket(ctx, "udp6", ":0")
}

func (s *natSense) ask(ctx context.Context, c net.PacketConn, server netip.AddrPort) (stun.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, senseWait)
	defer cancel()
	return stun.Ask(ctx, c, server)
}

// sample asks for some more mappings at once, to see which ports the NAT gives: none is
// told where they are not all of one address.
func (s *natSense) sample(ctx context.Context, server netip.AddrPort, addr netip.Addr) birthday.Range {
	seen := make([]netip.AddrPort, birthday.Samples)
	var wg sync.WaitGroup
	for i := range seen {
		wg.Go(func() {
			c, err := s.socket(ctx, server)
			if err != nil {
				return
			}
			defer c.Close()
			if a, err := s.ask(ctx, c, server); err == nil {
				seen[i] = a.Mapped
			}
		})
	}
	wg.Wait()
	var ports []uint16
	for _, a := range seen {
		switch {
		case !a.IsValid(): // lost
		case a.Addr() != addr:
			return birthday.Range{}
		default:
			ports = append(ports, a.Port())
		}
	}
	return birthday.Seen(ports)
}

func localPort(c net.PacketConn) uint16 {
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return uint16(a.Port)
	}
	return 0
}

// classify judges by where several servers saw one socket, in the order they were
// asked, and where the first of them saw another one after that.
func classify(port uint16, seen []netip.AddrPort, port2 uint16, seen2 netip.AddrPort, owns func(netip.Addr) bool) natView {
	v := natView{kept: seen2.Port() == port2}
	all := append(slices.Clone(seen), seen2)
	differ := false
	for _, a := range seen {
		v.kept = v.kept && a.Port() == port
		differ = differ || a != seen[0]
	}
	if !v.kept {
		v.step = stepOf(all, differ)
	}
	switch {
	case v.kept && owns(seen[0].Addr()):
		v.kind = ladder.NATNone
	case differ && v.step != 0:
		v.kind = ladder.NATSequential
	case differ:
		v.kind = ladder.NATRandom
	case len(seen) > 1 || v.kept:
		v.kind = ladder.NATStable
	}
	return v
}

// stepOf returns how far a NAT that counts goes each time; 0 if it does not count.
// Where all servers see the same, only the last one is another mapping.
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

// counts says whether new mappings can be foreseen, and the ones relays see are of
// no use to anybody else.
func (s *natSense) counts() bool {
	v := s.now()
	return v.step != 0 && v.kind != ladder.NATStable
}

// guess returns where the node's next UDP mappings will be, if its NAT counts: it is
// asked for one right now.
func (s *natSense) guess(ctx context.Context) []endpoint.Endpoint {
	v := s.now()
	if !s.counts() {
		return nil
	}
	c, err := s.socket(ctx, v.ask)
	if err != nil {
		return nil
	}
	defer c.Close()
	a, err := s.ask(ctx, c, v.ask)
	if err != nil {
		return nil
	}
	var out []endpoint.Endpoint
	for i := 1; i <= guesses; i++ {
		if port := int(a.Mapped.Port()) + i*v.step; port > 0 && port <= 65535 {
			out = append(out, endpoint.Endpoint{UDP: true, Addr: netip.AddrPortFrom(a.Mapped.Addr(), uint16(port))})
		}
	}
	return out
}

// natChanged tells every peer's machine.
func (ps *peerSet) natChanged() {
	mine := ps.n.natNow()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, r := range ps.m {
		r.tell(ladder.NATs{Mine: mine, Theirs: r.punch.theirs})
	}
}
