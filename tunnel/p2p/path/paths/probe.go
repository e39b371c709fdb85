package paths

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/identity"
)

// Probes are those of one connection. Requests do not wait for answers: on a slow path under
// load answers are late, and the requests show the other side that this one is alive.
type Probes struct {
	c     *line
	token uint64   // names this connection towards the peer
	due   wake.One // a probe is to be sent

	mu        sync.Mutex // a leaf
	seq       uint32
	sent      [32]time.Time // of the last requests, by seq
	direct    bool          // an end owns the address at which it is seen
	trip      trip
	peerToken uint64
}

func newProbes(c *line) Probes { return Probes{c: c, token: rand.Uint64(), due: wake.NewOne()} }

// result is what probes have shown: the round trip, 0 as long as it is not known, and
// whether an end owns the address at which it is seen.
func (p *Probes) result() (rtt time.Duration, direct bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trip.smoothed, p.direct
}

// RTT is the smoothed round trip, 0 as long as it is not known.
func (p *Probes) RTT() time.Duration {
	rtt, _ := p.result()
	return rtt
}

// least is the shortest round trip of some minutes, 0 as long as none is known.
func (p *Probes) least() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trip.shortest()
}

// path is result for the status, with how long packets wait on the path.
func (p *Probes) path() (rtt, queue time.Duration, direct bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trip.smoothed, p.trip.queue(), p.direct
}

// Send sends a request soon. It does not wait; while one is stuck no other follows.
func (p *Probes) Send() { p.due.Wake() }

// Token names this connection in frames of this node, PeerToken in those of the peer; 0:
// not known yet.
func (p *Probes) Token() uint64 { return p.token }

// PeerToken is described at Token.
func (p *Probes) PeerToken() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peerToken
}

// run sends requests and takes their answers until the connection ends.
func (p *Probes) run() {
	c := p.c
	defer c.cancel()
	ctx, cancel := context.WithTimeout(c.ctx, ladder.DeadIdle)
	s, err := conns.Open(ctx, c.Conn, identity.PathProtocol)
	cancel()
	if err != nil {
		if c.ctx.Err() == nil && !c.IsClosed() {
			c.owner.Apply(ladder.Broken{Path: c.ID, Why: fmt.Sprintf("cannot be probed: %v", err)})
		}
		return
	}
	c.owner.Apply(ladder.Ready{Path: c.ID})
	abort := func() {
		_ = s.SetDeadline(time.Unix(1, 0))
		_ = s.Reset()
	}
	defer abort()
	defer context.AfterFunc(c.ctx, abort)()
	c.cfg.Spawn(func() { p.write(s) })
	p.read(s)
	<-c.ctx.Done()
}

// write sends the requests. It may be stuck behind bulk data.
func (p *Probes) write(s network.Stream) {
	for {
		select {
		case <-p.c.ctx.Done():
			return
		case <-p.due:
		}
		p.mu.Lock()
		p.seq++
		p.sent[p.seq%uint32(len(p.sent))] = time.Now()
		f := probeFrame{typ: probeRequest, seq: p.seq, token: p.token, observed: p.observed()}
		p.mu.Unlock()
		if _, err := s.Write(f.append(nil)); err != nil {
			return // the path will be found silent
		}
	}
}

// observed is where the peer is seen, nil on a relayed path.
func (p *Probes) observed() ma.Multiaddr {
	if p.c.Relayed() {
		return nil
	}
	return endpoint.Real(p.c.RemoteMultiaddr())
}

// owns reports whether a, where the peer sees this node, is this node's own.
func (p *Probes) owns(a ma.Multiaddr) bool {
	e, ok := endpoint.Target(a)
	return ok && p.c.cfg.Owns(e)
}

// read takes the answers.
func (p *Probes) read(s network.Stream) {
	for {
		f, err := readProbe(s)
		if err != nil {
			return
		}
		if f.typ == probeAnswer {
			p.answered(f)
		}
	}
}

// answered records what an answer says.
func (p *Probes) answered(f probeFrame) {
	direct := !p.c.Relayed() && (f.owned || p.owns(f.observed))
	p.mu.Lock()
	age := p.seq - f.seq // wraps around like seq
	sent := p.sent[f.seq%uint32(len(p.sent))]
	if age >= uint32(len(p.sent)) || sent.IsZero() {
		p.mu.Unlock()
		return
	}
	p.direct, p.peerToken = direct, f.token
	now := time.Now()
	rtt := now.Sub(sent)
	p.trip.add(rtt, now)
	p.mu.Unlock()
	if f := p.c.cfg.Probed; f != nil {
		f(p.c.kind(direct), rtt)
	}
	p.c.owner.Apply(ladder.Answer{Path: p.c.ID, Last: age == 0, Direct: direct})
}

// Answer serves the peer's probes on one of its streams, until that ends.
func (p *Probes) Answer(s network.Stream) {
	c := p.c
	defer s.Reset()
	for {
		f, err := readProbe(s)
		if err != nil {
			return
		}
		switch f.typ {
		case probeRequest:
			c.hear()
			a := probeFrame{typ: probeAnswer, owned: p.owns(f.observed), seq: f.seq, token: p.token, observed: p.observed()}
			_ = s.SetWriteDeadline(time.Now().Add(ladder.DeadIdle))
			if _, err := s.Write(a.append(nil)); err != nil {
				return
			}
		case probeDrop:
			c.owner.Dropped(f.token)
		case probeNudge:
			c.owner.Apply(ladder.Nudged{})
		}
	}
}

// SendDrop notifies the peer that its connection named token is dead, SendNudge that this
// node's addresses have changed.
func (p *Probes) SendDrop(token uint64) { p.sendFrame(probeFrame{typ: probeDrop, token: token}) }

// SendNudge is described at SendDrop.
func (p *Probes) SendNudge() { p.sendFrame(probeFrame{typ: probeNudge}) }

// sendFrame sends one frame on a stream of its own.
func (p *Probes) sendFrame(f probeFrame) {
	ctx, cancel := context.WithTimeout(p.c.ctx, openTimeout)
	defer cancel()
	s, err := conns.Open(ctx, p.c.Conn, identity.PathProtocol)
	if err != nil {
		return
	}
	_ = s.SetWriteDeadline(time.Now().Add(openTimeout))
	_, _ = s.Write(f.append(nil))
	_ = s.Close()
}
