package relays

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/internal/resolve"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// quicRest is how long a connection over QUIC that nothing needs stays beside one over TCP. A relay pays about as much for a handshake as for 7 minutes of keep-alive. The pauses between the attempts to punch
	// one path are shorter, so relays see the UDP socket when ports are guessed.
	quicRest = 17 * time.Minute
	// idleRest is the same while no peer is in use: then nothing is punched.
	idleRest = time.Minute
)

// rest decides when QUIC beside TCP is closed. Times are those of Config.Now.
type rest struct {
	since time.Duration // QUIC has not been needed; 0: it is not there, or it is not to be closed
	used  time.Duration // when a peer was last in use
}

// left is how long QUIC stays, which was asked for at asked; 0 or less: it is to be closed.
func (r *rest) left(now, asked time.Duration, inUse bool) time.Duration {
	if r.since == 0 {
		r.since, r.used = now, now
	}
	r.since = max(r.since, asked)
	if inUse {
		r.used = now
		return min(r.since+quicRest-now, idleRest) // then look again
	}
	return min(r.since+quicRest, max(r.since, r.used)+idleRest) - now
}

// enough reports whether QUIC is only dialed when punching asks for it: a listening port is connected over TCP, and the relay is
// not a member, whose connections are its paths.
func (c *client) enough(conns []network.Conn) bool {
	return !c.Members.View().IsMember(c.info.ID) && slices.ContainsFunc(c.info.Addrs, isQUIC) &&
		slices.ContainsFunc(conns, func(conn network.Conn) bool { return !overUDP(conn) && listening(c.Dialer, conn) })
}

// missing are the IP versions in which the relay has QUIC, and conns have none.
func (c *client) missing(conns []network.Conn) (out resolve.Families) {
	var have there
	for _, conn := range conns {
		have.add(conn)
	}
	for _, a := range c.info.Addrs {
		if isQUIC(a) {
			out |= have.lacks(a)
		}
	}
	return out
}

// overQUIC are the IP versions over which the relay sees this node's UDP socket, and those over which it may soon.
func (c *client) overQUIC() (sees, may resolve.Families) {
	conns := c.conns()
	for _, conn := range conns {
		switch f := familyOf(endpoint.Real(conn.RemoteMultiaddr())); {
		case !overUDP(conn) || !listening(c.Dialer, conn):
		case c.lines.sees(conn):
			sees |= f
		default:
			may |= f
		}
	}
	if c.demand.hurries() {
		may |= c.missing(conns)
	}
	return sees, may
}

// closeIdle closes conn, unless something has just begun on it. New circuits take TCP at both ends of the connection; what
// nevertheless begins here while it is being closed is cut.
func closeIdle(conn network.Conn) {
	if !carries(conn) {
		_ = conn.Close()
	}
}

// carries reports whether something is under way on conn. The DHT's streams wait for the next question, and another is opened
// where one is gone.
func carries(conn network.Conn) bool {
	return slices.ContainsFunc(conn.GetStreams(), func(s network.Stream) bool {
		return s.Protocol() != identity.DHTPrefix+"/kad/1.0.0"
	})
}
