package gate

import (
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/admission/join"
)

// state is how far a connection has got.
type state uint8

const (
	handshaking state = iota // its peer is not authenticated
	waiting                  // authenticated, and nobody has vouched for it
	asking                   // it is proving the join secret, or has a circuit to a controller
	admitted                 // the membership lists its peer, or the proof holds
	refused                  // the proof does not hold: it has a moment to read the verdict
	closed
)

// next are the states that follow each one.
var next = [...][]state{ //nolint:gochecknoglobals // a constant
	handshaking: {waiting, admitted, closed},
	waiting:     {asking, admitted, closed},
	asking:      {admitted, refused, closed},
	refused:     {admitted, closed}, // a second proof may hold
	admitted:    {closed},
	closed:      {},
}

// conn is one connection, from its first packet to its end.
type conn struct {
	inbound bool
	addr    ma.Multiaddr // nil: not known
	prefix  netip.Prefix // of addr
	direct  bool         // it has a prefix: it is no circuit

	// The table's lock guards what follows.
	state    state
	release  func()       // gives its slot back; nil: it has none
	peer     peer.ID      // "" until it is authenticated
	conn     network.Conn // nil until the swarm has it
	deadline time.Time    // of waiting, asking and refused
	secret   join.Secret  // that it has proved
}

func (c *conn) address() string {
	if c.addr == nil {
		return ""
	}
	return c.addr.String()
}

// to changes the state if the new one may follow.
func (c *conn) to(s state) bool {
	if !slices.Contains(next[c.state], s) {
		return false
	}
	if c.release != nil && (c.state == handshaking || s == admitted || s == closed) {
		c.release()
		c.release = nil
	}
	c.state = s
	return true
}

// mute reports whether c has neither proved, nor shown, nor asked for what it may.
func (c *conn) mute(p *Policy) bool {
	return (c.state == waiting || c.state == asking && !p.circuit) && p.late != ""
}

// pending reports whether the connection is between its handshake and admission.
func (c *conn) pending() bool { return c.state == waiting || c.state == asking || c.state == refused }

// proved reports whether it was admitted by its proof.
func (c *conn) proved() bool { return c.secret != (join.Secret{}) }
