package p2p

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/birthday"
	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// guessLead is how long after the sync of an attempt that was agreed on both
	// sides begin to guess, if dialing has made no path by then.
	guessLead = punchTimeout + time.Second
	// guessTick is how often packets are sent while guessing, a few each time.
	guessTick = 10 * time.Millisecond
	// guessDial bounds one dial from a socket that was found.
	guessDial = 2 * time.Second
)

// portsOffer is what a node lets be guessed: on the wire part of an offer.
type portsOffer struct {
	Addr           string `json:"addr"` // multiaddr, one of those offered
	birthday.Range        // one port, or those of a NAT that maps at random
}

// guesser bounds what this node guesses, whatever peers say: one attempt at a time,
// and none for birthday.Every with the same peer or towards the same host.
type guesser struct {
	n  *Node
	on bool

	mu    sync.Mutex // a leaf
	busy  bool
	hosts map[netip.Addr]ladder.Time // when each may be guessed at again
}

func newGuesser(n *Node, on bool) *guesser {
	return &guesser{n: n, on: on, hosts: make(map[netip.Addr]ladder.Time)}
}

// take has an attempt begin, unless another one is under way or host had one lately.
func (g *guesser) take(host netip.Addr) bool {
	now := g.n.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, at := range g.hosts {
		if at <= now {
			delete(g.hosts, a)
		}
	}
	if _, lately := g.hosts[host]; lately || g.busy {
		return false
	}
	g.busy = true
	return true
}

func (g *guesser) isBusy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy
}

// spent notes that host is sent packets now.
func (g *guesser) spent(host netip.Addr) {
	now := g.n.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hosts[host] = now + birthday.Every
}

func (g *guesser) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = false
}

// portsOffer says what the peer may guess, if both sides were to; nil: nothing.
func (r *remote) portsOffer() *portsOffer {
	n := r.set.n
	if !n.guesser.on || n.guesser.isBusy() || !r.mayGuess() {
		return nil
	}
	seen, _ := n.relays.observed()
	i := slices.IndexFunc(seen, func(e endpoint.Endpoint) bool { return e.UDP && e.Addr.Addr().Is4() })
	if i < 0 {
		return nil
	}
	o := &portsOffer{Addr: seen[i].Multiaddr().String()}
	switch v := n.nat.View(); {
	case n.natNow() == ladder.NATStable && !v.Kind.PerDestination():
		o.Range = birthday.Range{Low: seen[i].Addr.Port(), High: seen[i].Addr.Port()}
	case v.Kind == ladder.NATRandom && v.Ports.Size() > 0 && v.Addr == seen[i].Addr.Addr():
		o.Range = v.Ports
	default:
		return nil
	}
	return o
}

// mayGuess says whether there is no direct path at all, and it is time.
func (r *remote) mayGuess() bool {
	now := r.set.n.now()
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return len(r.missing()) == 2 && now >= r.punch.guessFrom
}

// guess is an attempt to find a port of one peer. A nil one does nothing.
type guess struct {
	r      *remote
	plan   birthday.Plan
	host   netip.Addr // of the peer
	opener bool       // this side has the many sockets
	begin  time.Time  // of the opener, on both sides
}

// planGuess works out from both offers what to do should dialing fail; nil: nothing.
// sync is when the attempt began, on both sides.
func (r *remote) planGuess(mine, theirs offer, eps []endpoint.Endpoint, coordinator bool, sync time.Time) *guess {
	if mine.Ports == nil || theirs.Ports == nil {
		return nil
	}
	a, err := ma.NewMultiaddr(theirs.Ports.Addr)
	if err != nil {
		return nil
	}
	// What is sent goes to a host that the peer is dialed at anyway, and that is not
	// one of this node's own networks.
	e, ok := endpoint.Parse(a)
	if !ok || !e.UDP || !e.Addr.Addr().Is4() || !slices.Contains(eps, e) || !r.set.n.addrs.Dialable(e) || !manet.IsPublicAddr(a) {
		return nil
	}
	his := theirs.Ports.Range
	if his.Size() == 1 && his.Low != e.Addr.Port() {
		return nil
	}
	g := &guess{r: r, host: e.Addr.Addr(), begin: sync.Add(guessLead)}
	g.opener = mine.Ports.Random() && (coordinator || !his.Random())
	if g.opener {
		g.plan = birthday.New(mine.Ports.Range, his)
	} else {
		g.plan = birthday.New(his, mine.Ports.Range)
	}
	if !g.plan.Worth() {
		if g.plan.Odds() > 0 && his.Random() {
			g.note(fmt.Sprintf("ports are not guessed: the odds are %.2g %%", 100*g.plan.Odds()))
		}
		return nil
	}
	if !r.set.n.guesser.take(g.host) {
		return nil
	}
	return g
}

func (g *guess) release() {
	if g != nil {
		g.r.set.n.guesser.end()
	}
}

// note says to an operator what came of it.
func (g *guess) note(text string) {
	g.r.set.mu.Lock()
	defer g.r.set.mu.Unlock()
	g.r.punch.guessed = text
}

// run guesses, if there is still no direct path. It reports whether there is one.
func (g *guess) run() bool {
	if g == nil || !g.r.mayGuess() {
		return false
	}
	n := g.r.set.n
	ctx, cancel := context.WithDeadline(n.ctx, g.begin.Add(g.plan.Lasts()))
	defer cancel()
	if !wake.Sleep(ctx, time.Until(g.begin)) || !g.r.mayGuess() {
		return false
	}
	now := n.now()
	n.guesser.spent(g.host)
	g.r.set.mu.Lock()
	g.r.punch.guessFrom = now + birthday.Every
	g.r.set.mu.Unlock()
	start := time.Now()
	var sent int
	if g.opener {
		sent = g.open(ctx)
	} else {
		sent = g.probe(ctx)
	}
	met := g.met()
	n.log.Info("ports guessed", "peer", g.r.name(), "packets", sent, "opener", g.opener, "odds", g.plan.Odds(),
		"took", time.Since(start), "met", met)
	if met {
		g.note("")
	} else {
		g.note(fmt.Sprintf("ports guessed %s: none met (odds %.2g %%)", start.Format(time.TimeOnly), 100*g.plan.Odds()))
	}
	return met
}

// met says whether the attempt has reached what it is for.
func (g *guess) met() bool { return len(g.r.lacking([]string{endpoint.TransportName(true)})) == 0 }

// pace calls send for 0 to k-1, birthday.Rate times a second at most, until there is a
// direct path, the peer is no member any more, or ctx ends. It returns how often.
func (g *guess) pace(ctx context.Context, k int, send func(int)) int {
	const burst = int(birthday.Rate * guessTick / time.Second) // of 64 bits also where int has 32
	t := time.NewTicker(guessTick)
	defer t.Stop()
	for i := 0; i < k; {
		select {
		case <-ctx.Done():
			return i
		case <-t.C:
		}
		if g.met() || !g.r.set.n.gater.View().IsMember(g.r.id) {
			return i
		}
		for range min(burst, k-i) {
			send(i)
			i++
		}
	}
	return k
}

// probe is the prober's half: the peer dials from the socket that it finds. It returns how
// many packets were sent.
func (g *guess) probe(ctx context.Context) int {
	if !wake.Sleep(ctx, g.plan.ProbeAfter()) {
		return 0
	}
	n := g.r.set.n
	c := n.dialer.ListeningUDP4()
	if c == nil {
		return 0
	}
	defer c.Close()
	ports := g.plan.Guesses(newRand())
	sent := g.pace(ctx, len(ports), func(i int) {
		_, _ = c.WriteTo(dialer.PunchPacket, net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.host, ports[i])))
	})
	for !g.met() && wake.Sleep(ctx, guessTick) { // the peer's dial
	}
	return sent
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

// found is a socket that a packet of the peer's host came to.
type found struct {
	socket int
	from   netip.AddrPort
}

// open is the opener's half. It returns how many packets were sent.
func (g *guess) open(ctx context.Context) (sent int) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	heard := make(chan found, birthday.Sockets)
	sockets := g.sockets(&wg, heard)
	own := slices.Clone(sockets) // without those that dial
	defer func() {
		cancel()
		for _, c := range own {
			if c != nil {
				_ = c.Close()
			}
		}
		wg.Wait()
	}()
	rnd := newRand()
	targets := make([][]uint16, len(sockets))
	for i := range targets {
		targets[i] = g.plan.Targets(rnd)
	}
	wg.Go(func() {
		sent = g.pace(ctx, len(sockets)*g.plan.Each(), func(i int) {
			s := i % len(sockets)
			_, _ = sockets[s].WriteToUDPAddrPort(dialer.PunchPacket, netip.AddrPortFrom(g.host, targets[s][i/len(sockets)]))
		})
	})
	for !g.met() {
		select {
		case f := <-heard:
			own[f.socket] = nil
			g.dial(ctx, sockets[f.socket], f.from)
		case <-ctx.Done():
			return
		}
	}
	return
}

// sockets opens the sockets, and has it told which of them hear the peer's host.
func (g *guess) sockets(wg *sync.WaitGroup, heard chan<- found) []*net.UDPConn {
	n := g.r.set.n
	var out []*net.UDPConn
	for i := range birthday.Sockets {
		c, err := n.datagrams.Open("udp4", &net.UDPAddr{})
		if err != nil {
			n.log.Warn("ports are guessed from fewer sockets", "sockets", i, "err", err)
			break
		}
		out = append(out, c)
		wg.Go(func() {
			if from, ok := hear(c, g.host); ok {
				heard <- found{i, from}
			}
		})
	}
	return out
}

// hear waits for an opener of host, until the socket is closed.
func hear(c *net.UDPConn, host netip.Addr) (netip.AddrPort, bool) {
	b := make([]byte, 2*len(dialer.PunchPacket))
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return netip.AddrPort{}, false
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if from.Addr() == host && bytes.Equal(b[:n], dialer.PunchPacket) {
			return from, true
		}
	}
}

// dial makes a connection from a socket that was found. It owns the socket.
func (g *guess) dial(ctx context.Context, c *net.UDPConn, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, guessDial)
	defer cancel()
	n := g.r.set.n
	used := false
	err := n.dialer.DialFrom(ctx, endpoint.Endpoint{UDP: true, Addr: to}, g.r.id, func(string, *net.UDPAddr) (net.PacketConn, error) {
		used = true
		return n.datagrams.Share(c)
	})
	if !used {
		_ = c.Close()
	}
	if err == nil {
		err = g.r.settleOn(ctx, true)
	}
	if err != nil {
		n.log.Debug("a port that was guessed", "peer", g.r.name(), "addr", to, "err", err)
	}
}
