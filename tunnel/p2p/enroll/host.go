package enroll

import (
	"fmt"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/mux"
	"edgemesh/tunnel/p2p/proxy"
)

// limits are small: a controller talks to relays, and to a few edges at a time. A circuit is a stream of its relay.
var limits = identity.Limits{Handshakes: 64, PeerConns: 8, PeerStreams: 1024, Members: 128}

// newHost makes a libp2p host that dials relays, and meets others on circuits only. way is the way out through an HTTP proxy;
// nil: none.
func newHost(key crypto.PrivKey, way *proxy.Way) (host.Host, error) {
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return nil, err
	}
	timeless, err := identity.Timeless()
	if err != nil {
		return nil, err
	}
	h, err := libp2p.New(
		libp2p.Identity(key),
		libp2p.UserAgent("edgemesh-enroll"),
		libp2p.NoListenAddrs,
		libp2p.EnableRelay(), // NoListenAddrs turns it off
		libp2p.Transport(newTCP(way)),
		libp2p.Transport(libp2pquic.NewTransport, libp2pquic.WithTLSIdentityOption(timeless)),
		libp2p.Transport(newWebSocket(way)),
		// TLS only: Noise shows no session to bind the proof to.
		libp2p.Security(libp2ptls.ID, identity.NewTLS),
		libp2p.Muxer(mux.ID, identity.RelayMuxer()),
		libp2p.ResourceManager(rm),
		libp2p.ConnectionGater(circuitsOnly{}),
		libp2p.ForceReachabilityPrivate(),
		libp2p.DisableIdentifyAddressDiscovery(),
		libp2p.DisableMetrics(),
	)
	if err != nil {
		return nil, fmt.Errorf("start libp2p: %w", err)
	}
	return h, nil
}

// circuitsOnly lets nobody in but over a relay that this host has chosen.
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
