package dialer

import (
	"context"
	"sync/atomic"
	"time"

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
			return impatient(conns.Begin(ctx, c, protos[0]))
		}
	}
	return impatient(h.Host.NewStream(network.WithNoDial(ctx, "circuit"), p, protos...))
}

// hopPatience is how long a relay has to answer a request. A request for a circuit is
// answered once the far end has answered; libp2p would wait for a minute, obeys no context
// in that time, and makes every other dial of the same peer wait too, also through other
// relays. A relay whose connection to the peer is dead needs half a minute to notice.
const hopPatience = 2500 * time.Millisecond

// hopStream is a stream to a relay that is reset unless it is answered in time.
type hopStream struct {
	network.Stream
	timer    *time.Timer
	answered atomic.Bool
}

func impatient(s network.Stream, err error) (network.Stream, error) {
	if err != nil {
		return nil, err
	}
	h := &hopStream{Stream: s}
	h.timer = time.AfterFunc(hopPatience, func() {
		if !h.answered.Load() {
			_ = s.SetDeadline(time.Unix(1, 0))
			_ = s.Reset()
		}
	})
	return h, nil
}

func (h *hopStream) Read(b []byte) (int, error) {
	n, err := h.Stream.Read(b)
	if n > 0 && !h.answered.Load() {
		h.answered.Store(true)
		h.timer.Stop()
	}
	return n, err
}

func (h *hopStream) Close() error { h.timer.Stop(); return h.Stream.Close() }
func (h *hopStream) Reset() error { h.timer.Stop(); return h.Stream.Reset() }
