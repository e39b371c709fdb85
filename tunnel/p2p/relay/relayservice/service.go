// Package relayservice is what a relay does for members, on a libp2p host that is
// given: circuit relay v2, packets that it forwards beside circuits, and the cluster's DHT as a server. edgemesh-relay has a
// host for nothing else; an agent that is a relay serves on its own.
//
//	service.go   the service
//	limits.go    what members may use, and what the service needs
//	acl.go       who may reserve and connect
//	shards.go    several circuit relays, each with some of the members
//	roll.go      who holds a reservation, and how many circuits
//	counter.go   how many circuits and reservations there are
//	metrics.go   what a relay tells Prometheus
//	carried.go   bytes by member
//	stophost.go  the connection on which a circuit reaches its far end
//	shares.go    a bandwidth, divided among the members who send
//	traffic.go   what circuits carry: within shares, and never at a standstill
//	seen.go      where members are seen
//	crowded.go   whether the relay holds more reservations than its share
package relayservice

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/relay/forward"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/lookup"
)

// Service is a running relay.
type Service struct {
	host    host.Host
	relay   *shards
	dht     *lookup.DHT
	traffic *traffic
	forward *forward.Service // nil: nothing is forwarded
	counter
}

// Start begins to serve.
func Start(c Config) (*Service, error) {
	c.Metrics = cmp.Or(c.Metrics, NewMetrics(c.Limits))
	s := &Service{host: c.Host, counter: counter{next: c.Metrics, collect: setCollector()}}
	if c.Refused == nil {
		c.Refused = func(string, peer.ID, string) {}
	}
	if c.Name == nil {
		c.Name = peer.ID.String
	}
	if c.StandsBy == nil {
		c.StandsBy = func(network.Conn) bool { return false }
	}
	c.look = cmp.Or(c.look, stallTime/stallLooks)
	if c.Controllers.Is == nil {
		c.Controllers.Is = func(peer.ID) bool { return false }
	}
	c.Metrics.carried.follow(c.IsMember, c.Name)
	s.traffic = newTraffic(float64(c.Limits.Bandwidth)*bytesPerMbit, c.look, c.Metrics, func(to network.Conn) {
		c.Refused(stalledCircuit, to.RemotePeer(), to.RemoteMultiaddr().String())
	})
	s.traffic.allowance = func(p peer.ID) int64 {
		if c.IsMember(p) || c.Controllers.Is(p) {
			return 0
		}
		return c.Controllers.Data
	}
	if c.Packets != nil { // before circuits: who has one takes a relay without channels for an older one
		s.forward = forward.New(forward.Config{IsMember: c.IsMember, StandsBy: c.StandsBy,
			Far:       func(x network.Conn) (forward.Far, error) { return c.Packets.Far(x) },
			PerMember: c.Limits.MaxCircuitsPerPeer, All: 2 * c.Limits.MaxCircuits, Refused: c.Refused,
			Join:    func(p peer.ID) forward.Share { return s.traffic.shares.join(p) },
			Dropped: c.Metrics.droppedPackets})
		c.Packets.SetForwarder(s.forward)
		c.Host.SetStreamHandler(identity.ChannelProtocol, s.forward.Serve)
	}
	var err error
	served := func(p peer.ID) bool { return c.IsMember(p) || c.Controllers.Is(p) }
	if c.IsFree == nil {
		c.IsFree = func(peer.ID) bool { return false }
	}
	s.relay, err = newShards(c.Host, trafficHost{stopHost{c.Host, c.StandsBy}, s.traffic}, c.Limits, served, c.IsFree, &s.counter,
		relayv2.WithResources(c.Limits.resources()),
		relayv2.WithACL(&acl{isMember: c.IsMember, controllers: c.Controllers, circuits: s.Circuits, maxCircuits: c.Limits.MaxCircuits, refused: c.Refused}),
		// Private addresses are wanted too: relays inside a company's network.
		relayv2.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true }),
		relayv2.WithMetricsTracer(&s.counter))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start circuit relay: %w", err), s.Close())
	}
	known := &seen{isMember: c.IsMember, controls: c.Controllers.Is, conns: c.Host.Network().ConnsToPeer, refused: c.Refused}
	c.Host.SetStreamHandler(identity.SeenProtocol, known.answer)
	share := &crowding{isMember: c.IsMember, refused: c.Refused, crowded: func() bool {
		most := 0
		if c.Share != nil {
			most = c.Share()
		}
		return most > 0 && s.Reservations() >= most
	}}
	c.Host.SetStreamHandler(identity.LoadProtocol, share.answer)
	if s.dht, err = lookup.Serve(c.Host, c.IsKnown, c.Relays, c.Refused); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// FindPeer asks the other servers of the DHT where p is.
func (s *Service) FindPeer(ctx context.Context, p peer.ID) (peer.AddrInfo, error) {
	return s.dht.FindPeer(ctx, p)
}

// Close stops serving; circuits are cut. The host stays.
func (s *Service) Close() error {
	s.host.RemoveStreamHandler(identity.SeenProtocol)
	s.host.RemoveStreamHandler(identity.LoadProtocol)
	s.host.RemoveStreamHandler(identity.ChannelProtocol)
	var errs []error
	if s.dht != nil {
		errs = append(errs, s.dht.Close())
	}
	if s.relay != nil {
		errs = append(errs, s.relay.Close())
	}
	if s.forward != nil {
		s.forward.Close()
	}
	s.traffic.Close()
	return errors.Join(errs...)
}

// Reserved reports whether p holds a reservation here.
func (s *Service) Reserved(p peer.ID) bool {
	info := s.host.ConnManager().GetTagInfo(p)
	return info != nil && info.Tags[reservationTag] > 0
}
