package main

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"

	"edgemesh/agent/mesh"
	"edgemesh/tunnel/p2p/identity"
)

// limits bound what members may use. Strangers may use nothing.
type limits struct {
	maxReservations      int // members waiting to be reached through this relay
	maxReservationsPerIP int // of them from one address: a whole site may be behind one
	maxCircuits          int // relayed connections at once
	maxCircuitsPerPeer   int // of them with one member at either end
	bufferSize           int // bytes per direction of a circuit
}

// limitsDocument is the `limits` key as written.
type limitsDocument struct {
	MaxReservations      *int `json:"maxReservations"`
	MaxReservationsPerIP *int `json:"maxReservationsPerIP"`
	MaxCircuits          *int `json:"maxCircuits"`
	MaxCircuitsPerPeer   *int `json:"maxCircuitsPerPeer"`
	BufferSize           *int `json:"bufferSize"`
}

// Defaults. 8192 circuits of two 64 KiB buffers are 1 GiB at worst; a smaller
// buffer halves the throughput (2 KiB: 1.0 instead of 2.2 Gbit/s over TCP).
const (
	defaultReservations    = 16384
	defaultCircuits        = 8192
	defaultCircuitsPerPeer = 1024
	defaultBuffer          = 64 << 10
	minBuffer, maxBuffer   = 2 << 10, 1 << 20
	maxCount               = 1 << 20
	reservationTTL         = time.Hour
)

const (
	// maxHandshakes bounds connections of peers not known yet: strangers cost
	// memory until they have shown who they are.
	maxHandshakes = 4096
	// maxConnsPerPeer bounds one member's connections: it needs two, and leaves
	// some behind for half a minute whenever its address changes.
	maxConnsPerPeer = 64
	// extraStreams are a peer's streams beside circuits: reservations, identify,
	// pings, DHT queries.
	extraStreams = 256
)

const limitsHelp = `limits (all optional):
  maxReservations       members waiting to be reached here (default 16384)
  maxReservationsPerIP  of them from one IP address (default: maxReservations)
  maxCircuits           relayed connections at once (default 8192)
  maxCircuitsPerPeer    of them with one member at either end (default 1024)
  bufferSize            bytes per direction of a circuit (default 65536)`

func (d limitsDocument) check(bad *mesh.Invalid) limits {
	field := func(name string, v *int, byDefault, low, high int) int {
		if v == nil {
			return byDefault
		}
		if *v < low || *v > high {
			bad.Addf("limits."+name, "%d is not between %d and %d", *v, low, high)
		}
		return *v
	}
	l := limits{
		maxReservations: field("maxReservations", d.MaxReservations, defaultReservations, 1, maxCount),
		maxCircuits:     field("maxCircuits", d.MaxCircuits, defaultCircuits, 1, maxCount),
		bufferSize:      field("bufferSize", d.BufferSize, defaultBuffer, minBuffer, maxBuffer),
	}
	l.maxReservationsPerIP = field("maxReservationsPerIP", d.MaxReservationsPerIP, l.maxReservations, 1, maxCount)
	l.maxCircuitsPerPeer = field("maxCircuitsPerPeer", d.MaxCircuitsPerPeer, min(defaultCircuitsPerPeer, l.maxCircuits), 1, maxCount)
	if l.maxCircuitsPerPeer > l.maxCircuits {
		bad.Addf("limits.maxCircuitsPerPeer", "%d is more than maxCircuits (%d)", l.maxCircuitsPerPeer, l.maxCircuits)
	}
	return l
}

// resources is l as circuit relay v2 takes it; the total of circuits is the
// ACL's.
func (l limits) resources() relayv2.Resources {
	rc := relayv2.DefaultResources()
	rc.Limit = &relayv2.RelayLimit{Duration: identity.CircuitDuration, Data: identity.CircuitData}
	rc.ReservationTTL = reservationTTL
	rc.MaxReservations = l.maxReservations
	rc.MaxReservationsPerIP = l.maxReservationsPerIP
	rc.MaxReservationsPerASN = l.maxReservations
	rc.MaxCircuits = l.maxCircuitsPerPeer
	rc.BufferSize = l.bufferSize
	return rc
}

// resourceManager bounds what one peer may hold by what circuits need, so that a
// broken member does not starve the others.
func (l limits) resourceManager() (network.ResourceManager, error) {
	return identity.ResourceManager(identity.Limits{
		Handshakes: maxHandshakes, PeerConns: maxConnsPerPeer, PeerStreams: l.maxCircuitsPerPeer + extraStreams,
	})
}
