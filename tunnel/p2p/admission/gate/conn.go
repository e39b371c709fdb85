package gate

import (
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/refusals"
)

// state is how far a connection has got.
type state uint8

const (
	handshaking state = iota // its peer is not authenticated
	waiting                  // authenticated, and nobody has vouched for it
	asking                   // it is proving the join secret, or has a circuit to a controller
	admitted                 // the membership lists its peer, or the proof holds
	refused                  // the proof does not hold: it has a moment to read so
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

// conn is one connection, from its first packet to its end, as the scope that libp2p hands through all its stages.
type conn struct {
	network.ConnManagementScope
	gate    *Gate
	inbound bool
	addr    ma.Multiaddr // nil: not known
	site    netip.Prefix // of addr
	direct  bool         // it has one
	late    *time.Timer  // closes it unless the handshake ends in time; nil: QUIC does
	over    []func()     // called when the handshake ends

	// The gate's lock guards what follows.
	state    state
	release  func()       // gives its slot back; nil: it has none
	peer     peer.ID      // "" until SetPeer
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

// to changes the state if it may follow. The caller holds the gate's lock.
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

// mayProve reports whether the connection is between its handshake and admission. The caller holds the gate's lock.
func (c *conn) mayProve() bool { return c.state == waiting || c.state == asking || c.state == refused }

// handshakeOver runs what waited for the end of the handshake.
func (c *conn) handshakeOver() {
	for _, f := range c.over {
		f()
	}
}

// SetPeer implements network.ConnManagementScope: the handshake has shown whose the connection is.
func (c *conn) SetPeer(p peer.ID) error {
	c.handshakeOver()
	if err := c.ConnManagementScope.SetPeer(p); err != nil {
		c.gate.end(c)
		c.gate.cfg.Refused(refusals.PeerConns, p, c.address())
		return err
	}
	return c.gate.authenticated(c, p)
}

// Done implements network.ConnManagementScope.
func (c *conn) Done() {
	c.handshakeOver()
	c.gate.end(c)
	c.ConnManagementScope.Done()
}

// PeerScope implements network.ConnManagementScope.
func (c *conn) PeerScope() network.PeerScope {
	s := c.ConnManagementScope.PeerScope()
	if s == nil {
		return nil
	}
	return watched{s, c}
}

// watched is the scope of a connection's peer.
type watched struct {
	network.PeerScope
	conn *conn
}

// BeginSpan implements network.PeerScope.
func (w watched) BeginSpan() (network.ResourceScopeSpan, error) {
	s, err := w.PeerScope.BeginSpan()
	if err != nil {
		return nil, err
	}
	return span{s, w}, nil
}

// span is what a session reserves for data that waits to be read.
type span struct {
	network.ResourceScopeSpan
	of watched
}

// ReserveMemory implements network.ResourceScope. A window that cannot grow is no refusal.
func (s span) ReserveMemory(size int, priority uint8) error {
	err := s.ResourceScopeSpan.ReserveMemory(size, priority)
	if err != nil && priority > network.ReservationPriorityMedium {
		s.of.conn.gate.cfg.Refused(refusals.Memory, s.of.Peer(), s.of.conn.address())
	}
	return err
}
