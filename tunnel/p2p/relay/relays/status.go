package relays

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"

	"edgemesh/internal/cause"
	"edgemesh/internal/proxy"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// Status is the state of one relay.
type Status struct {
	ID        peer.ID
	Addr      string // a multiaddr: the one connected to, else the first configured
	Proxy     string // HOST:PORT of the HTTP proxy that the connection runs through; "": none
	Connected bool
	Reserved  bool
	RTT       time.Duration // 0: unknown
	Version   string        // as it says itself, "": it has not
	Spare     bool          // it is not needed: enough others are nearer
	Failed    bool          // Error is what came of an attempt
	Error     string        // why it is not connected and reserved, with all that was tried; "" if it is, or need not be
	Cause     cause.Cause   // the same in few words
	Refusal   proxy.Cause   // what the HTTP proxy has to do with that; "" if nothing is known
}

func (c *client) status() Status {
	all := c.conns()
	known := c.outcome.get()
	st := Status{ID: c.info.ID, Connected: len(all) > 0, Reserved: known.reserved && len(all) > 0, RTT: known.rtt}
	agent, _ := c.host.Peerstore().Get(st.ID, "AgentVersion") // from identify; nil: not yet
	if text, ok := agent.(string); ok {
		if v, is := strings.CutPrefix(text, "edgemesh-relay/"); is { // a member's says which machine it is
			st.Version = wording.Foreign(v, 64)
		}
	}
	switch {
	case st.Connected && c.Dialer.Proxied(all[0]):
		e, _ := endpoint.Target(all[0].RemoteMultiaddr())
		st.Addr, st.Proxy = addrOf(c, all[0]).String(), e.Addr.String()
	case st.Connected:
		st.Addr = addrOf(c, all[0]).String()
	case len(c.info.Addrs) > 0:
		st.Addr = c.info.Addrs[0].String()
	}
	switch {
	case st.Reserved:
	case known.err != nil:
		st.Failed, st.Error = true, wording.Foreign(known.err.Error(), 1<<10) // what closes a connection may say so
		if e := (*proxy.Error)(nil); errors.As(known.err, &e) {
			st.Refusal = e.Cause
		}
		st.Cause = causeOf(known.err)
	case !c.demand.reservation():
		st.Spare = true
	case st.Connected:
		st.Error, st.Cause = "waiting for a reservation", cause.Waiting
	default:
		st.Error, st.Cause = "no answer yet", cause.Waiting
	}
	return st
}

// causeOf is why a relay is not connected and reserved. What only one of its addresses says counts more than that others are silent.
func causeOf(err error) cause.Cause {
	var key sec.ErrPeerIDMismatch
	var through *proxy.Error
	for _, c := range []struct {
		is bool
		c  cause.Cause
	}{
		{errors.Is(err, errFull), cause.Full},
		{errors.Is(err, errNoRelay), cause.NoRelayHere},
		{errors.Is(err, conns.ErrInside), cause.Inside},
		{errors.Is(err, conns.ErrRefused), cause.RefusesUs},
		{errors.As(err, &key), cause.OtherKey},
		{errors.As(err, &through), cause.Proxy},
		{noName(err), cause.NoName},
		{errors.Is(err, syscall.ECONNREFUSED), cause.Refused},
		{errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH), cause.NoRoute},
		{errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded), cause.NoAnswer},
		{errors.Is(err, errLost), cause.Lost},
	} {
		if c.is {
			return c.c
		}
	}
	return cause.NoAnswer
}

// noName reports whether look-ups alone have failed.
func noName(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each branch of the tree is judged
	case *net.DNSError:
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !noName(err) })
	case interface{ Unwrap() error }:
		return noName(e.Unwrap())
	}
	return false
}

// check is the relay's status after a ping over each connection.
func (c *client) check(ctx context.Context) Status {
	_ = c.changed.Until(ctx, func() bool { return c.outcome.get().attempts > 0 })
	st := c.status()
	for _, conn := range c.conns() {
		ctx, cancel := context.WithTimeout(ctx, silenceAtMost)
		_, err := pings(ctx, conn, 1, silenceAtMost)
		cancel()
		if err == nil {
			return c.status()
		}
		st.Error = wording.Foreign(fmt.Sprintf("no answer over %s: %v", short(conn.RemoteMultiaddr()), err), 1<<10)
		st.Reserved, st.Failed, st.Cause = false, true, cause.NoAnswer
	}
	return st
}
