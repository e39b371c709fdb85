package dialer

import (
	"context"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// addCircuits adds the transport that dials and accepts through relays. libp2p's own client takes any connection to the
// relay.
func addCircuits(h host.Host, up transport.Upgrader) error {
	return client.AddTransport(tcpFirst{h}, up)
}

// tcpFirst opens streams to relays over TCP where there is a choice: a circuit
// carries about twice as much over TCP as over QUIC.
type tcpFirst struct{ host.Host }

// NewStream opens a stream to p, on a TCP connection if there is one. It dials nothing: what connects relays knows
// from which ports, and whether through a proxy.
func (h tcpFirst) NewStream(ctx context.Context, p peer.ID, protos ...protocol.ID) (network.Stream, error) {
	for _, c := range h.Network().ConnsToPeer(p) {
		if len(protos) == 1 && !c.IsClosed() && !endpoint.IsCircuit(c.RemoteMultiaddr()) && !endpoint.OverUDP(c.RemoteMultiaddr()) {
			return conns.Impatient(conns.Begin(ctx, c, protos[0]))
		}
	}
	return conns.Impatient(h.Host.NewStream(network.WithNoDial(ctx, "circuit"), p, protos...))
}
