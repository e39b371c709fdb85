package packet

import (
	"cmp"
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/flight"
)

// Service is a node's end of all sessions.
type Service struct {
	*node
	sockets
	flights
	in intake
}

// New returns a Service without sockets or sessions.
func New(cfg Config) *Service {
	if cfg.Renew <= 0 {
		cfg.Renew = renewEvery
	}
	if cfg.Wire == nil {
		cfg.Wire = new(upkeep.Wire)
	}
	n := &node{cfg: cfg, refusals: refusals{log: cfg.Log}}
	n.trains.New = func() any { b := make([]byte, 0, trainBytes+maxPacket); return &b }
	s := &Service{node: n, in: intake{node: n, inbound: map[peer.ID]*inbound{}},
		flights: flights{memory: flight.NewMemory(cmp.Or(cfg.Memory, 64<<20)), to: map[peer.ID]*flightPeer{}, ending: map[*flightPeer]bool{}, offering: map[peer.ID]bool{}}}
	s.sockets = sockets{in: &s.in, all: map[*socket]struct{}{}}
	s.in.receivers.Store(&map[uint32]*receiver{})
	return s
}

// Handle has f make the sink for each path of a peer that begins to send datagrams. Before the call no datagrams are
// agreed on.
func (s *Service) Handle(f func(peer.ID) Sink) { s.in.sink.Store(&f) }

// Late waits, once connections have ended, for the packets that peers sent before they knew.
func (s *Service) Late() {
	if len(*s.in.receivers.Load()) > 0 {
		time.Sleep(lateTime)
	}
}

// Session returns the datagrams beside c, which ctx ends with; nil if c is not a direct QUIC connection.
func (s *Service) Session(ctx context.Context, c network.Conn, p Path) *Session {
	var q *quic.Conn
	if !endpoint.OverUDP(c.RemoteMultiaddr()) || !c.As(&q) {
		return nil
	}
	return &Session{sending: sending{link: link{node: s.node, path: p, ctx: ctx, quic: q}}, conn: c, in: &s.in, on: &s.sockets}
}
