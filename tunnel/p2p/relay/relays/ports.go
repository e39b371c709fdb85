package relays

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// missesAtMost is after how many rounds without any answer a relay is dialed from other ports, all but every fourth time.
	missesAtMost = 2
	// forgetful is how long the listening ports send nothing to the relay once others get through and they do not: longer
	// than routers remember (Linux: a SYN 120 s, UDP 30 to 120 s).
	forgetful = 150 * time.Second
)

// ports says from which ports a relay is dialed. From the listening ones, since the relay then sees where peers can reach
// this node. But a router that forwarded a packet before its NAT rules were loaded remembers the pair of endpoints without a
// translation, and every new attempt from the same port keeps that alive. So after some failures others are used. Where they
// get through the listening ones are tried beside them: immediately, for the relay may just have been away, and then after
// the router has forgotten.
type ports struct {
	misses int       // rounds without any answer, one after the other
	heard  bool      // something answered in this round
	stuck  time.Time // when the listening ports failed beside others that got through
}

// others reports whether a relay without any connection is dialed from other ports now.
func (p *ports) others() bool { return p.misses >= missesAtMost && p.misses%4 != 0 }

// unanswered reports whether a dial failed because nothing came back at all: a handshake that fails later, or an error of a
// router's, shows that packets find their way.
func unanswered(quic bool, err error) bool {
	var op *net.OpError
	var late net.Error
	switch {
	case errors.As(err, &op):
		return op.Op == "dial" && op.Timeout()
	case quic:
		return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
	}
	return false
}

// due reports whether the listening ports have their turn, beside others that get through.
func (p *ports) due(now time.Time) bool { return !now.Before(p.stuck.Add(forgetful)) }

// listening reports whether conn leaves from a listening port.
func listening(d Dialer, conn network.Conn) bool {
	e, ok := endpoint.Parse(conn.LocalMultiaddr())
	return ok && d.ListensOn(e)
}

// elsewhere reports whether conn could leave from a listening port, and does not.
func elsewhere(d Dialer, conn network.Conn) bool {
	e, ok := endpoint.Parse(conn.LocalMultiaddr())
	return ok && !d.ListensOn(e) && !d.Proxied(conn)
}

// detached reports whether there are connections, and no listening port has one.
func detached(d Dialer, conns []network.Conn) bool {
	return len(conns) > 0 && !slices.ContainsFunc(conns, func(conn network.Conn) bool { return !elsewhere(d, conn) })
}
