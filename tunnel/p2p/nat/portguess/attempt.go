package portguess

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/internal/wake"
)

const (
	// tick is how often packets are sent, a few each time.
	tick = 10 * time.Millisecond
	// maxBursts is how many ticks' packets are sent together to make up for lost ticks.
	maxBursts = 10
	// maxErrors bounds the errors of routers that one socket reads.
	maxErrors = 4
	// dialTimeout bounds one dial from a socket that was met.
	dialTimeout = 2 * time.Second
)

// BothRandom says to an operator why there is no attempt between two such NATs.
const BothRandom = "ports are not guessed: both NATs choose them at random"

// Peer is the peer whose port is guessed, or guesses ours, as the owner of its paths sees it.
type Peer interface {
	// Name is the peer's in logs and for the bounds on attempts.
	Name() string
	// Wanted reports whether the peer is a member without any direct path.
	Wanted() bool
	// Met reports whether there is a direct QUIC connection.
	Met() bool
	// AwaitMet waits for that connection, or the end of ctx.
	AwaitMet(ctx context.Context)
	// Dial makes that connection, from socket c. It owns c.
	Dial(ctx context.Context, c *net.UDPConn, to netip.AddrPort) error
}

// Attempt is one attempt to meet a port. A nil one does nothing.
type Attempt struct {
	g     *Guesser
	peer  Peer
	plan  Plan
	hard  bool           // this side has the many sockets
	to    netip.AddrPort // the peer's host, and its port if this side is the hard one
	begin time.Time      // of the hard side, on both sides

	refused atomic.Int64 // packets and sockets
}

// Attempt plans an attempt from the ranges of both sides; to is the peer's address, with its port if that is known. It
// begins at a moment that both sides know. Without an attempt, why is for an operator, "" where there is nothing to say.
// The caller runs the attempt, or not, and then releases it.
func (g *Guesser) Attempt(p Peer, mine, theirs Range, to netip.AddrPort, begin time.Time) (a *Attempt, why string) {
	a = &Attempt{g: g, peer: p, hard: mine.Random(), to: to, begin: begin}
	switch {
	case mine.Size() == 0 || theirs.Size() == 0 || !mine.Random() && !theirs.Random():
		return nil, ""
	case mine.Random() && theirs.Random():
		return nil, BothRandom
	case a.hard:
		a.plan.hard = mine
	default:
		a.plan.hard = theirs
	}
	if a.hard && theirs.Low != to.Port() || !a.plan.Possible() {
		return nil, ""
	}
	var ok bool
	if a.plan.less, ok = g.take(to.Addr().String(), p.Name()); !ok {
		return nil, ""
	}
	return a, ""
}

// To is where the peer says that it is.
func (a *Attempt) To() netip.AddrPort { return a.to }

// Release lets another attempt begin.
func (a *Attempt) Release() {
	if a != nil {
		a.g.release()
	}
}

// Run makes the attempt, if there is still no direct path. It reports whether there is one then, and what to report to
// an operator: "" if nothing was sent or there is one.
func (a *Attempt) Run(ctx context.Context) (met bool, outcome string) {
	if a == nil || !a.peer.Wanted() {
		return false, ""
	}
	ctx, cancel := context.WithDeadline(ctx, a.begin.Add(a.plan.Lasts()))
	defer cancel()
	if !wake.Sleep(ctx, time.Until(a.begin)) || ctx.Err() != nil || !a.peer.Wanted() {
		return false, ""
	}
	a.g.rest(a.to.Addr().String(), a.peer.Name(), Every)
	start := time.Now()
	side, sent := "easy", 0
	if a.hard {
		side, sent = "hard", a.open(ctx)
	} else {
		sent = a.probe(ctx)
	}
	refused := int(a.refused.Load())
	a.g.sent(sent, refused)
	met = a.peer.Met()
	a.g.cfg.Log.Info("ports guessed", "peer", a.peer.Name(), "packets", sent, "refused", refused, "side", side, "odds", a.plan.Odds(a.hard),
		"took", time.Since(start), "met", met)
	if met {
		a.g.rest(a.to.Addr().String(), a.peer.Name(), afterMet)
		return true, ""
	}
	return false, a.summary(start, sent, refused)
}

// summary is what an operator reads of an attempt that met nothing.
func (a *Attempt) summary(start time.Time, sent, refused int) string {
	s := fmt.Sprintf("%d ports guessed at %s: none met (odds %.4g %%)", sent, start.Format(time.TimeOnly), 100*a.plan.Odds(a.hard))
	if a.hard {
		s = fmt.Sprintf("ports guessed from %d sockets at %s: none met (odds %.4g %%)", sent, start.Format(time.TimeOnly), 100*a.plan.Odds(a.hard))
	}
	if refused > 0 {
		s += fmt.Sprintf(", %d packets refused on the way", refused)
	}
	return s + ", not again before " + start.Add(Every).Format(time.TimeOnly)
}

// pace calls send for 0 to n-1, at the plan's rate, until there is a direct path, the peer is not a member any longer, or
// ctx ends. It returns how often, and counts what was refused.
func (a *Attempt) pace(ctx context.Context, n int, send func(int) error) int {
	rate := time.Duration(a.plan.Rate())
	burst := max(1, int(rate*tick/time.Second))
	t := time.NewTicker(tick)
	defer t.Stop()
	start := time.Now()
	for i := 0; i < n; {
		select {
		case <-ctx.Done():
			return i
		case <-t.C:
		}
		if !a.peer.Wanted() {
			return i
		}
		due := int(time.Since(start)*rate/time.Second) - i // ticks are lost on a busy machine
		for range min(max(due, burst), maxBursts*burst, n-i) {
			a.note(send(i))
			i++
		}
	}
	return n
}

// probe is the easy side: the peer dials from the socket that a probe meets. It returns how many packets were sent.
func (a *Attempt) probe(ctx context.Context) int {
	if !wake.Sleep(ctx, a.plan.ProbeAfter()) {
		return 0
	}
	c := a.g.cfg.Listening()
	if c == nil {
		return 0
	}
	defer c.Close()
	ports := a.plan.Guesses()
	sent := a.pace(ctx, len(ports), func(i int) error {
		_, err := c.WriteTo(a.g.cfg.Packet, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.to.Addr(), ports[i])))
		return err
	})
	a.peer.AwaitMet(ctx) // the peer's dial
	return sent
}

// met is a socket of the hard side that a probe came to.
type met struct {
	socket int
	from   netip.AddrPort
}

// open is the hard side. It returns how many packets were sent.
func (a *Attempt) open(ctx context.Context) (sent int) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	heard := make(chan met, Sockets)
	sockets := a.sockets(&wg, heard)
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
	wg.Go(func() {
		sent = a.pace(ctx, len(sockets), func(i int) error {
			_, err := sockets[i].WriteToUDPAddrPort(a.g.cfg.Packet, a.to)
			return err
		})
	})
	for !a.peer.Met() {
		select {
		case m := <-heard:
			own[m.socket] = nil
			hearRefusals(sockets[m.socket], false)
			dctx, cancel := context.WithTimeout(ctx, dialTimeout)
			if err := a.peer.Dial(dctx, sockets[m.socket], m.from); err != nil {
				a.g.cfg.Log.Debug("dial from a socket whose port was guessed", "peer", a.peer.Name(), "addr", m.from, "err", err)
			}
			cancel()
		case <-ctx.Done():
			return
		}
	}
	return
}

// sockets opens the sockets, and sends to heard which of them hear the peer's host.
func (a *Attempt) sockets(wg *sync.WaitGroup, heard chan<- met) []*net.UDPConn {
	var out []*net.UDPConn
	n := a.plan.Sockets()
	for i := range n {
		c, err := a.g.cfg.Open()
		if err != nil {
			a.refused.Add(int64(n - i))
			a.g.cfg.Log.Warn("port guessing has fewer sockets than planned: it is less likely to succeed", "sockets", i, "of", n, "err", err)
			break
		}
		hearRefusals(c, true)
		out = append(out, c)
		wg.Go(func() {
			if from, ok := a.hear(c); ok {
				heard <- met{i, from}
			}
		})
	}
	return out
}

// hear waits for a probe of the peer's host, until the socket is closed.
func (a *Attempt) hear(c *net.UDPConn) (netip.AddrPort, bool) {
	b := make([]byte, 2*len(a.g.cfg.Packet))
	for errs := 0; errs < maxErrors; {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			errs++
			if !a.note(err) {
				break
			}
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if from.Addr() == a.to.Addr() && bytes.Equal(b[:n], a.g.cfg.Packet) {
			return from, true
		}
	}
	return netip.AddrPort{}, false
}

// note counts err if it says that a packet was refused, and reports whether it does.
func (a *Attempt) note(err error) bool {
	if err == nil || !refusal(err) {
		return false
	}
	a.refused.Add(1)
	return true
}
