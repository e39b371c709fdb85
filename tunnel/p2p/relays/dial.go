package relays

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/endpoint"
)

// tcpChance is how long a relay reached by QUIC waits for TCP to follow.
const tcpChance = 300 * time.Millisecond

// round is one round of dials to a relay.
type round struct {
	c       *client
	results chan dialed
	running int
	errs    []error
}

// dialed is the outcome of one dial.
type dialed struct {
	to  ma.Multiaddr
	err error
}

// connect dials every transport that has no connection yet, all addresses at the same time. It returns as soon as TCP is there,
// or QUIC and TCP had tcpChance; the other dials continue.
func (c *client) connect() error {
	have := make(map[bool]bool)
	for _, conn := range c.conns() {
		have[overUDP(conn)] = true
	}
	ctx, cancel := context.WithTimeout(c.ctx, DialTimeout)
	addrs, err := c.resolve(ctx)
	r := &round{c: c, results: make(chan dialed, len(addrs))}
	var dials sync.WaitGroup
	for _, a := range addrs {
		if !have[isQUIC(a)] {
			r.dial(ctx, a, &dials)
		}
	}
	c.Spawn(func() { dials.Wait(); cancel() })
	if r.running > 0 {
		return r.first()
	}
	if len(c.conns()) > 0 {
		return nil
	}
	return causes.Join(errors.New("no usable address"), err)
}

// dial dials a in the background.
func (r *round) dial(ctx context.Context, a ma.Multiaddr, dials *sync.WaitGroup) {
	dials.Add(1)
	started := r.c.Spawn(func() {
		defer dials.Done()
		r.results <- dialed{a, r.at(ctx, a)}
	})
	if started {
		r.running++
	} else {
		dials.Done()
	}
}

// first waits for the first useful result.
func (r *round) first() error {
	var enough <-chan time.Time // runs once QUIC is there
	for ; r.running > 0; r.running-- {
		select {
		case d := <-r.results:
			switch {
			case d.err != nil:
				r.failed(d)
			case !isQUIC(d.to):
				return r.await(false)
			case enough == nil:
				enough = time.After(tcpChance)
			}
		case <-enough:
			return r.await(true)
		case <-r.c.ctx.Done():
			return r.c.ctx.Err()
		}
	}
	if enough != nil {
		return r.await(true)
	}
	return r.err()
}

// at dials the relay at one of its addresses.
func (r *round) at(ctx context.Context, a ma.Multiaddr) error {
	c := r.c
	if e, ok := endpoint.Target(a); ok && !c.Members.View().IsOperators(c.info.ID) {
		most, err := c.Targets.Spend(c.info.ID, e)
		if err != nil {
			return err
		}
		if most > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, most)
			defer cancel()
		}
	}
	return c.Dialer.Dial(ctx, a, c.info.ID)
}

func (r *round) failed(d dialed) {
	r.errs = append(r.errs, fmt.Errorf("%s: %w", short(d.to), d.err))
	if r.c.ctx.Err() == nil {
		r.c.outcome.early(r.err())
	}
}

func (r *round) err() error { return fmt.Errorf("connect: %w", causes.Join(r.errs...)) }

// await waits until the host has the connection that was dialed.
func (r *round) await(udp bool) error {
	ctx, cancel := context.WithTimeout(r.c.ctx, time.Second)
	defer cancel()
	err := r.c.changed.Until(ctx, func() bool {
		return slices.ContainsFunc(r.c.conns(), func(conn network.Conn) bool { return overUDP(conn) == udp })
	})
	if err != nil && r.c.ctx.Err() == nil {
		return errors.New("connect: refused after the handshake: does the relay's membership list this node?")
	}
	return err
}

// resolve returns the relay's addresses, DNS names looked up.
func (c *client) resolve(ctx context.Context) ([]ma.Multiaddr, error) {
	var out []ma.Multiaddr
	var errs []error
	for _, a := range c.info.Addrs {
		resolved := []ma.Multiaddr{a}
		if madns.Matches(a) {
			named := c.Dialer.Named(ctx, a)
			var err error
			if resolved, err = madns.Resolve(ctx, named); err != nil {
				errs = append(errs, fmt.Errorf("resolve %s: %w", named, err))
				continue
			}
		}
		for _, x := range resolved {
			if c.Members.View().Outside(x) && !ma.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out, causes.Join(errs...)
}

func isQUIC(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	return err == nil
}

// short is a as people write endpoints, where it is one.
func short(a ma.Multiaddr) string {
	if e, ok := endpoint.Parse(a); ok {
		return e.String()
	}
	return a.String()
}
