package punch

import (
	"bytes"
	"context"
	"fmt"
	"maps"
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
	guessLead = attemptTimeout + time.Second
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

// limits bound what this node guesses, whatever peers say: one attempt at a time, and none
// for birthday.Every with the same peer or towards the same host.
type limits struct {
	mu    sync.Mutex // a leaf
	busy  bool
	hosts map[netip.Addr]ladder.Time // when each may be guessed at again
}

// take has an attempt begin, unless another one is under way or host had one lately.
func (l *limits) take(host netip.Addr, now ladder.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.hosts, func(_ netip.Addr, at ladder.Time) bool { return at <= now })
	if _, lately := l.hosts[host]; lately || l.busy {
		return false
	}
	l.busy = true
	return true
}

func (l *limits) isBusy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// spent notes that host is sent packets now.
func (l *limits) spent(host netip.Addr, now ladder.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts == nil {
		l.hosts = make(map[netip.Addr]ladder.Time)
	}
	l.hosts[host] = now + birthday.Every
}

func (l *limits) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
}

// portsOffer says what the peer may guess, if both sides were to; nil: nothing.
func (a *Attempts) portsOffer() *portsOffer {
	if !a.u.Guess || a.u.limits.isBusy() || !a.mayGuess() {
		return nil
	}
	seen, _ := a.u.Seen()
	i := slices.IndexFunc(seen, func(e endpoint.Endpoint) bool { return e.UDP && e.Addr.Addr().Is4() })
	if i < 0 {
		return nil
	}
	o := &portsOffer{Addr: seen[i].Multiaddr().String()}
	switch v := a.u.Sense.View(); {
	case a.u.NAT() == ladder.NATStable && !v.Kind.PerDestination():
		o.Range = birthday.Range{Low: seen[i].Addr.Port(), High: seen[i].Addr.Port()}
	case v.Kind == ladder.NATRandom && v.Ports.Size() > 0 && v.Addr == seen[i].Addr.Addr():
		o.Range = v.Ports
	default:
		return nil
	}
	return o
}

// mayGuess says whether there is no direct path at all, and it is time.
func (a *Attempts) mayGuess() bool {
	missing := a.p.Missing()
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(missing) == 2 && a.u.Now() >= a.guessFrom
}

// guess is an attempt to find a port of one peer. A nil one does nothing.
type guess struct {
	a      *Attempts
	plan   birthday.Plan
	host   netip.Addr // of the peer
	opener bool       // this side has the many sockets
	begin  time.Time  // of the opener, on both sides
}

// planGuess works out from both offers what to do should dialing fail; nil: nothing.
// sync is when the attempt began, on both sides.
func (a *Attempts) planGuess(mine, theirs offer, eps []endpoint.Endpoint, coordinator bool, sync time.Time) *guess {
	if mine.Ports == nil || theirs.Ports == nil {
		return nil
	}
	at, err := ma.NewMultiaddr(theirs.Ports.Addr)
	if err != nil {
		return nil
	}
	// What is sent goes to a host that the peer is dialed at anyway, and that is not
	// one of this node's own networks.
	e, ok := endpoint.Parse(at)
	if !ok || !e.UDP || !e.Addr.Addr().Is4() || !slices.Contains(eps, e) || !a.u.Addrs.Dialable(e) || !manet.IsPublicAddr(at) {
		return nil
	}
	his := theirs.Ports.Range
	if his.Size() == 1 && his.Low != e.Addr.Port() {
		return nil
	}
	g := &guess{a: a, host: e.Addr.Addr(), begin: sync.Add(guessLead)}
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
	if !a.u.limits.take(g.host, a.u.Now()) {
		return nil
	}
	return g
}

func (g *guess) release() {
	if g != nil {
		g.a.u.limits.end()
	}
}

// note says to an operator what came of it.
func (g *guess) note(text string) {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	g.a.guessed = text
}

// run guesses, if there is still no direct path. It reports whether there is one.
func (g *guess) run() bool {
	if g == nil || !g.a.mayGuess() {
		return false
	}
	u := g.a.u
	ctx, cancel := context.WithDeadline(u.Ctx, g.begin.Add(g.plan.Lasts()))
	defer cancel()
	if !wake.Sleep(ctx, time.Until(g.begin)) || !g.a.mayGuess() {
		return false
	}
	now := u.Now()
	u.limits.spent(g.host, now)
	g.a.mu.Lock()
	g.a.guessFrom = now + birthday.Every
	g.a.mu.Unlock()
	start := time.Now()
	var sent int
	if g.opener {
		sent = g.open(ctx)
	} else {
		sent = g.probe(ctx)
	}
	met := g.met()
	u.Log.Info("ports guessed", "peer", g.a.p.Name(), "packets", sent, "opener", g.opener, "odds", g.plan.Odds(),
		"took", time.Since(start), "met", met)
	if met {
		g.note("")
	} else {
		g.note(fmt.Sprintf("ports guessed %s: none met (odds %.2g %%)", start.Format(time.TimeOnly), 100*g.plan.Odds()))
	}
	return met
}

// met says whether the attempt has reached what it is for.
func (g *guess) met() bool { return g.a.has(true) }

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
		if g.met() || !g.a.p.Admitted() {
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
	u := g.a.u
	c := u.Dialer.ListeningUDP4()
	if c == nil {
		return 0
	}
	defer c.Close()
	ports := g.plan.Guesses(newRand())
	sent := g.pace(ctx, len(ports), func(i int) {
		_, _ = c.WriteTo(dialer.PunchPacket, net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.host, ports[i])))
	})
	_ = g.a.p.Await(ctx, g.met) // the peer's dial
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
	u := g.a.u
	var out []*net.UDPConn
	for i := range birthday.Sockets {
		c, err := u.Open("udp4", &net.UDPAddr{})
		if err != nil {
			u.Log.Warn("ports are guessed from fewer sockets", "sockets", i, "err", err)
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
	u := g.a.u
	used := false
	err := u.Dialer.DialFrom(ctx, endpoint.Endpoint{UDP: true, Addr: to}, g.a.p.ID(), func(string, *net.UDPAddr) (net.PacketConn, error) {
		used = true
		return u.Share(c)
	})
	if !used {
		_ = c.Close()
	}
	if err == nil {
		err = g.a.arrived(ctx, true)
	}
	if err != nil {
		u.Log.Debug("a port that was guessed", "peer", g.a.p.Name(), "addr", to, "err", err)
	}
}
