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

// Service is a node's end of all sealed paths.
type Service struct {
	*node
	sockets
	flights
	in intake
}

// New returns a Service without sockets or paths.
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
	s.in.paths.Store(&map[uint32]*flightPath{})
	return s
}

// Late waits, once connections have ended, for the packets that peers sent before they knew.
func (s *Service) Late() {
	if len(*s.in.paths.Load()) > 0 {
		time.Sleep(lateTime)
	}
}

// Flight returns sealed packets beside c, which ctx ends with; nil if c is not a direct QUIC connection.
func (s *Service) Flight(ctx context.Context, c network.Conn, p Path) *Flight {
	var q *quic.Conn
	if !endpoint.OverUDP(c.RemoteMultiaddr()) || !c.As(&q) {
		return nil
	}
	return s.beside(link{node: s.node, path: p, ctx: ctx, quic: q}, c)
}

func (s *Service) beside(l link, c network.Conn) *Flight {
	return &Flight{link: l, conn: c, in: &s.in, on: &s.sockets, among: &s.flights}
}
