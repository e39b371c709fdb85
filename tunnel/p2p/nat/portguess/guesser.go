// Package portguess finds a port of a peer that nobody can foresee, where one side's NAT gives every destination a random
// port and the other side's NAT, with one known port, lets in only whom it knows.
//
//	plan.go     one attempt: how many packets, when, and its odds; pure
//	guesser.go  what bounds the attempts of a node
//	attempt.go  the two sides of an attempt
//	refused.go  what routers refuse, so that the next attempt sends less
//
// The hard side, whose ports are random, opens many sockets and sends a packet from each to the port of the easy side:
// every one is a mapping, at a random port. The easy side then sends to many ports the hard side may have, from its one
// socket. A probe gets in where a mapping has its port. That is the birthday problem: 256 mappings and 2048 probes meet
// in 65000 ports with odds of 0.9997. Where both sides are random, port and port have to meet (odds of 0.001 in 65000
// ports each): that is not attempted.
package portguess

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// Config is what a Guesser needs. All of it is required.
type Config struct {
	// Now is a clock that nobody sets.
	Now func() time.Duration
	// Open opens an underlay socket for IPv4.
	Open func() (*net.UDPConn, error)
	// Listening returns the socket that QUIC listens on for IPv4, nil if there is none. The caller closes it.
	Listening func() net.PacketConn
	// Packet is what is sent. Every other UDP socket of a node ignores it.
	Packet []byte
	Log    *slog.Logger
}

// Guesser bounds what this node guesses, whatever peers say: one attempt at a time, and none for Every with the same peer
// or towards the same host after one that met nothing. After packets were refused it sends less.
type Guesser struct {
	cfg Config

	mu    sync.Mutex // a leaf
	busy  bool
	less  int                      // how often the next attempt halves what it sends
	rests map[string]time.Duration // when the next attempt may begin, by the host's address and by the peer's name
}

// New returns a Guesser that has made no attempt yet.
func New(cfg Config) *Guesser { return &Guesser{cfg: cfg, rests: make(map[string]time.Duration)} }

// Ready reports whether an attempt with the peer may begin now, and whether it is another peer's attempt that it waits for.
func (g *Guesser) Ready(peer string) (ready, busy bool) {
	now := g.cfg.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	rested := g.rests[peer] <= now
	return !g.busy && rested, g.busy && rested
}

// take has an attempt begin, if it may, and returns how often it halves what it sends.
func (g *Guesser) take(host, peer string) (less int, ok bool) {
	now := g.cfg.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, until := range g.rests {
		if until <= now {
			delete(g.rests, k)
		}
	}
	_, hostRests := g.rests[host]
	_, peerRests := g.rests[peer]
	if g.busy || hostRests || peerRests {
		return 0, false
	}
	g.busy = true
	return g.less, true
}

// rest has the next attempt wait.
func (g *Guesser) rest(host, peer string, d time.Duration) {
	until := g.cfg.Now() + d
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rests[host], g.rests[peer] = until, until
}

// sent learns from an attempt: after one of which more than a few packets were refused the next one sends half, after one
// without a refusal twice as much again.
func (g *Guesser) sent(packets, refused int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case refused > packets/16:
		g.less = min(g.less+1, maxLess)
	case refused == 0 && packets > 0:
		g.less = max(g.less-1, 0)
	}
}

func (g *Guesser) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = false
}
