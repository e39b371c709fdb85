package gate

import (
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/admission/pool"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

var errRefused = errors.New("gate: the peer is not admitted")

// scope is the scope of a connection, which libp2p hands through all its stages.
type scope struct {
	network.ConnManagementScope
	gate *Gate
	conn *conn
	late *time.Timer // closes it unless the handshake ends in time; nil: QUIC does
	over []func()    // called when the handshake ends
}

// handshakeOver runs what waited for the end of the handshake.
func (s *scope) handshakeOver() {
	for _, f := range s.over {
		f()
	}
}

// SetPeer implements network.ConnManagementScope: the handshake has shown whose the connection is.
func (s *scope) SetPeer(p peer.ID) error {
	s.handshakeOver()
	g, reason := s.gate, refusals.PeerConns
	err := s.ConnManagementScope.SetPeer(p)
	if err == nil {
		var victim *conn
		victim, reason = g.table.enter(s.conn, p)
		if victim != nil {
			g.cfg.Refused(g.cfg.Policy.full, victim.peer, victim.address())
			if victim.conn != nil { // else connected does not take it
				g.closing.close(victim.conn)
			}
		}
		if reason == "" {
			return nil
		}
		err = errRefused
	}
	g.table.end(s.conn)
	g.cfg.Refused(reason, p, s.conn.address())
	return err
}

// Done implements network.ConnManagementScope.
func (s *scope) Done() {
	s.handshakeOver()
	if s.gate.table.end(s.conn) {
		s.gate.cfg.Refused(s.gate.cfg.Policy.late, s.conn.peer, s.conn.address())
	}
	s.ConnManagementScope.Done()
}

// PeerScope implements network.ConnManagementScope.
func (s *scope) PeerScope() network.PeerScope {
	if p := s.ConnManagementScope.PeerScope(); p != nil {
		return peerScope{p, s}
	}
	return nil
}

// peerScope is the scope of a connection's peer.
type peerScope struct {
	network.PeerScope
	of *scope
}

// BeginSpan implements network.PeerScope.
func (p peerScope) BeginSpan() (network.ResourceScopeSpan, error) {
	s, err := p.PeerScope.BeginSpan()
	if err != nil {
		return nil, err
	}
	return span{s, p}, nil
}

// span is what a session reserves for data that waits to be read.
type span struct {
	network.ResourceScopeSpan
	peer peerScope
}

// ReserveMemory implements network.ResourceScope. A window that cannot grow is no refusal.
func (s span) ReserveMemory(size int, priority uint8) error {
	err := s.ResourceScopeSpan.ReserveMemory(size, priority)
	if err != nil && priority > network.ReservationPriorityMedium {
		s.peer.of.gate.cfg.Refused(refusals.Memory, s.peer.Peer(), s.peer.of.conn.address())
	}
	return err
}

// stream is a stream's scope.
type stream struct {
	network.StreamManagementScope
	gate *Gate
	peer peer.ID
}

// SetProtocol implements network.StreamManagementScope. Before it is admitted a peer learns nothing, and if the policy holds
// its streams none of a member's first ones is lost.
func (s stream) SetProtocol(id protocol.ID) error {
	policy := s.gate.cfg.Policy
	hold, circuit := policy.hold, policy.circuit && id == proto.ProtoIDv2Hop
	if circuit {
		hold = min(hold, enough) // edges that are not members yet wait, too
	}
	if id != policy.protocol && !s.gate.serves(s.peer) && !(hold > 0 && s.gate.awaits(s.peer, hold)) && !circuit {
		return errRefused
	}
	return s.StreamManagementScope.SetProtocol(id)
}

// OpenConnection implements network.ResourceManager.
func (g *Gate) OpenConnection(dir network.Direction, usefd bool, remote ma.Multiaddr) (network.ConnManagementScope, error) {
	s := &scope{gate: g, conn: &conn{inbound: dir == network.DirInbound, addr: remote}}
	if s.conn.inbound && remote != nil {
		if err := g.table.claim(s.conn); err != nil {
			reason, from := refusals.Handshakes, s.conn.address()
			if errors.Is(err, pool.ErrShare) {
				reason = refusals.Address
			}
			if ip, ok := endpoint.IP(remote); ok && s.conn.direct {
				from = ip.String()
			}
			g.cfg.Refused(reason, "", from)
			return nil, err
		}
	}
	var err error
	if s.ConnManagementScope, err = g.ResourceManager.OpenConnection(dir, usefd, remote); err != nil {
		g.table.end(s.conn)
		g.cfg.Refused(refusals.Connections, "", s.conn.address())
		return nil, err
	}
	return s, nil
}

// OpenStream implements network.ResourceManager. libp2p calls it for every stream, and SetProtocol when its protocol is known.
func (g *Gate) OpenStream(p peer.ID, dir network.Direction) (network.StreamManagementScope, error) {
	s, err := g.ResourceManager.OpenStream(p, dir)
	if err != nil {
		g.cfg.Refused(refusals.PeerStreams, p, g.table.from(p))
		return nil, err
	}
	if g.cfg.Policy == nil {
		return s, nil
	}
	if !g.serves(p) && s.PeerScope().Stat().NumStreamsInbound > g.cfg.Policy.streams {
		s.Done()
		return nil, errRefused
	}
	return stream{s, g, p}, nil
}
