package p2p

import (
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/mux"
)

// dialTimeout bounds a dial of the swarm; only the DHT dials that way.
const dialTimeout = 5 * time.Second

// startHost makes the libp2p host, bound to every address of cfg.Listen.
func (n *Node) startHost(cfg Config) error {
	limits := identity.Limits{}
	if cfg.Relay != nil {
		limits = cfg.Relay.Host()
	}
	rm, err := identity.ResourceManager(limits)
	if err != nil {
		return err
	}
	cm, err := identity.ConnManager()
	if err != nil {
		return err
	}
	transports, err := n.dialer.Transports()
	if err != nil {
		return err
	}
	h, err := libp2p.New(
		libp2p.Identity(cfg.Key),
		libp2p.UserAgent("edgemesh-agent"),
		libp2p.NoListenAddrs,
		transports,
		libp2p.Security(libp2ptls.ID, identity.NewTLS),
		libp2p.Security(noise.ID, noise.New),
		libp2p.Muxer(mux.ID, identity.Muxer()),
		libp2p.ResourceManager(rm),
		libp2p.ConnectionManager(cm),
		libp2p.ConnectionGater(n.gater),
		libp2p.AddrsFactory(n.announce),
		// Which addresses are worth dialing is decided here, from what relays
		// observe and from the host's interfaces.
		libp2p.ForceReachabilityPrivate(),
		libp2p.DisableIdentifyAddressDiscovery(),
		libp2p.UDPBlackHoleSuccessCounter(nil),
		libp2p.IPv6BlackHoleSuccessCounter(nil),
		libp2p.WithDialTimeout(dialTimeout),
		libp2p.DisableMetrics(),
	)
	if err != nil {
		return fmt.Errorf("start libp2p: %w", err)
	}
	sw, ok := h.Network().(*swarm.Swarm)
	if !ok {
		h.Close()
		return fmt.Errorf("start libp2p: network is a %T", h.Network())
	}
	n.h, n.sw = h, sw
	if err := n.dialer.Listen(sw, cfg.Listen); err != nil {
		h.Close()
		return err
	}
	if err := n.startFinder(cfg.Relay); err != nil {
		h.Close()
		return err
	}
	return nil
}

// announce is what identify and the DHT tell others: addresses of uplinks and,
// for everybody behind a NAT, circuits through the relays that hold a
// reservation. It replaces whatever libp2p has found.
func (n *Node) announce([]ma.Multiaddr) []ma.Multiaddr {
	var out []ma.Multiaddr
	for _, e := range n.addrs.Local() {
		out = append(out, e.Multiaddr())
	}
	return append(out, n.relays.Circuits()...)
}
