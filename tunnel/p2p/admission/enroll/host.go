package enroll

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

// limits are small: an edge, and a controller, talk to relays and a few others. A circuit is a stream of its relay. Silent circuits take
// handshakes until they end after 15 s: over each relay there are more, 512, than it serves peers that are not members.
func limits() identity.Limits {
	return identity.Limits{Handshakes: 4096, PeerConns: 8, PeerStreams: 1024, Members: 256}
}

// newGate bounds what peers use that known does not name.
func newGate(known func(peer.ID) bool, log *slog.Logger) (*gate.Gate, error) {
	l := limits()
	rm, err := identity.ResourceManager(l)
	if err != nil {
		return nil, err
	}
	return gate.New(rm, gate.Config{Handshakes: l.Pending(), IsMember: known, Policy: gate.Enrolling(), Refused: refusals.New(log, nil).Refuse}), nil
}

// newHost makes a libp2p host that dials relays, and has others on circuits only. egress is through an HTTP proxy; nil: there is
// none.
func newHost(key crypto.PrivKey, egress *proxy.Egress, names *resolve.Names, g *gate.Gate) (*plainhost.Host, error) {
	found, err := madns.DefaultResolver, error(nil)
	if names != nil {
		if found, err = madns.NewResolver(madns.WithDefaultResolver(names)); err != nil {
			return nil, fmt.Errorf("start libp2p: %w", err)
		}
	}
	h, err := plainhost.New(plainhost.Config{
		Key: key, UserAgent: "edgemesh-enroll", Muxer: identity.RelayMuxer(),
		Gater: circuitsOnly{}, Guard: g,
		Swarm: []swarm.Option{swarm.WithMultiaddrResolver(swarm.ResolverFromMaDNS{Resolver: found})},
		Transports: func(h *plainhost.Host, up transport.Upgrader) ([]transport.Transport, error) {
			tcp, err1 := newTCP(egress, names, up, g)
			ws, err2 := newWebSocket(egress, names, up, g)
			return []transport.Transport{tcp, ws}, errors.Join(err1, err2, client.AddTransport(h, up))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start libp2p: %w", err)
	}
	g.Follow(h.Network())
	return h, nil
}

// circuitsOnly accepts connections over a relay that this host has chosen, and no others.
type circuitsOnly struct{}

var _ connmgr.ConnectionGater = circuitsOnly{}

func (circuitsOnly) InterceptPeerDial(peer.ID) bool { return true }

func (circuitsOnly) InterceptAddrDial(peer.ID, ma.Multiaddr) bool { return true }

func (circuitsOnly) InterceptAccept(c network.ConnMultiaddrs) bool {
	return endpoint.IsCircuit(c.RemoteMultiaddr())
}

func (circuitsOnly) InterceptSecured(d network.Direction, _ peer.ID, c network.ConnMultiaddrs) bool {
	return d == network.DirOutbound || endpoint.IsCircuit(c.RemoteMultiaddr())
}

func (circuitsOnly) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }
