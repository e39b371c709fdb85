package relayservice

import (
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"

	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/who/identity"
)

// Limits bound what members may use. Strangers may use nothing.
type Limits struct {
	MaxReservations      int // members waiting to be reached through this relay
	MaxReservationsPerIP int // of them from one IPv4 address or IPv6 /56: a whole site may be behind one
	MaxCircuits          int // relayed connections at the same time
	MaxCircuitsPerPeer   int // of them with one member at either end
	BufferSize           int // bytes per direction of a circuit
	Bandwidth            int // Mbit/s that all circuits together may use, divided fairly among senders; 0 = not divided
}

// Reasons for refusals.
const (
	tooManyCircuits = "too many circuits"
	stalledCircuit  = "stalled circuit"
)

// Host are the limits of the host that the service runs on: what circuits need, and a channel beside each at both of its
// ends, so that a broken member does not starve the others.
func (l Limits) Host() identity.Limits {
	memory := identity.MemoryPart(memoryPart)
	return identity.Limits{Handshakes: maxHandshakes, PeerConns: maxConnsPerPeer, PeerStreams: 2*l.MaxCircuitsPerPeer + extraStreams,
		Members: l.MaxReservations, MoreStreams: 4 * l.MaxCircuits, Memory: memory, PeerMemory: max(memory/peerMemoryPart, identity.MinPeerMemory)}
}

// resources is l as circuit relay v2 takes it; the total of circuits is the
// ACL's.
func (l Limits) resources() relayv2.Resources {
	rc := relayv2.DefaultResources()
	rc.Limit = &relayv2.RelayLimit{Duration: identity.CircuitDuration, Data: identity.CircuitData}
	rc.ReservationTTL = reservationTTL
	rc.MaxReservations = l.MaxReservations // shards count all together, and by address
	rc.MaxReservationsPerIP = l.MaxReservations
	rc.MaxReservationsPerASN = l.MaxReservations
	rc.MaxCircuits = l.MaxCircuitsPerPeer
	rc.BufferSize = l.BufferSize
	return rc
}

// Config is what a Service needs; all but IsFree, Name, Refused, Metrics, Packets and Share are required.
type Config struct {
	Host   host.Host
	Limits Limits
	// IsMember reports who is served; it is called for each request.
	IsMember func(peer.ID) bool
	// IsFree reports which members were let in as any number of keys would be; nil: none.
	IsFree func(peer.ID) bool
	// Name is what metrics call a member; nil: its ID.
	Name func(peer.ID) string
	// Controllers are whom others than members may reach. The zero value: nobody.
	Controllers Controllers
	// IsKnown reports who may be in the DHT's routing table: members and relays.
	IsKnown func(peer.ID) bool
	// Share is from how many reservations on members should rather take another relay; 0: from none, as if nil.
	Share func() int
	// Relays are the others, as the DHT asks for them.
	Relays func() []peer.AddrInfo
	// Refused is called for every request that is refused, with the reason, the peer, and its address.
	Refused func(reason string, p peer.ID, from string)
	// StandsBy reports whether a connection is of a machine that stands by for another one with its key; nil: none is.
	StandsBy func(network.Conn) bool
	// Metrics count what it does; nil: nobody reads them.
	Metrics *Metrics
	// Packets has the host's UDP sockets; nil: nothing is forwarded beside circuits.
	Packets *packet.Service

	look time.Duration // how often circuits are looked at; tests are in a hurry
}

// Controllers are peers that reserve without being members, and whom strangers may ask.
type Controllers struct {
	Is func(peer.ID) bool // a controller
	// MayAsk reports whether a peer that is not a member may have a circuit to a controller now.
	MayAsk func(peer.ID) bool
	Data   int64 // what such a circuit carries at most, in bytes in each direction
}

const (
	// reservationTTL is far longer than members leave between two reservations. They
	// compare its end with their own clocks, which may be wrong by decades: one without a
	// battery starts in 1970, one with an empty battery anywhere up to 2099.
	reservationTTL = 100 * 365 * 24 * time.Hour
	// reservationTag is how circuit relay v2 marks peers for the connection
	// manager as long as they hold a reservation.
	reservationTag = "relay-reservation"
	// maxHandshakes bounds connections of peers not known yet: strangers cost
	// memory until they have shown who they are.
	maxHandshakes = 2048
	// maxConnsPerPeer bounds one member's connections: it needs two, and leaves
	// some behind for half a minute whenever its address changes.
	maxConnsPerPeer = 64
	// extraStreams are a peer's streams beside circuits and channels: reservations, identify,
	// pings, DHT queries.
	extraStreams = 256
	bytesPerMbit = 1e6 / 8
	// memoryPart: circuits may have half of the memory, since a relay is for nothing else. One member may hold a quarter
	// of that: with 2 GiB its 1024 circuits fit, all of them at a standstill with what yamux lets in at least.
	memoryPart, peerMemoryPart = 2, 4
)
