// Package plainhost puts a libp2p host together from the parts that agents, relays and controllers use. libp2p.New links
// every part there is: WebRTC with its own TLS, ICE and SCTP, WebTransport with HTTP/3, AutoRelay, and the graph of
// constructors (fx) that chooses among them. Idle edges would pay for those in memory.
//
//	host.go      the host
//	presumed.go  a dial that does not wait for the answer to its offer of TLS
//	quic.go      its UDP sockets
//	config.go    what it is made of
package plainhost

import (
	"errors"
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
)

// Host is a libp2p host with identify and ping.
type Host struct {
	*basichost.BasicHost
	Swarm *swarm.Swarm
	QUIC  *QUIC

	close func() error
}

// New makes a host that does not listen yet.
func New(c Config) (*Host, error) {
	id, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return nil, fmt.Errorf("derive peer ID: %w", err)
	}
	peers, err := pstoremem.NewPeerstore()
	if err != nil {
		return nil, fmt.Errorf("make peerstore: %w", err)
	}
	if err := errors.Join(peers.AddPrivKey(id, c.Key), peers.AddPubKey(id, c.Key.GetPublic())); err != nil {
		return nil, fmt.Errorf("remember own key: %w", err)
	}
	bus := eventbus.NewBus()
	h := &Host{}
	h.Swarm, err = swarm.NewSwarm(id, peers, bus,
		append(c.Swarm, swarm.WithConnectionGater(c.Gater), swarm.WithResourceManager(c.Guard))...)
	if err != nil {
		return nil, fmt.Errorf("make swarm: %w", err)
	}
	opts := &basichost.HostOpts{EventBus: bus, ConnManager: c.Conns, UserAgent: c.UserAgent, EnablePing: true}
	if c.Addrs != nil {
		opts.AddrsFactory = func([]ma.Multiaddr) []ma.Multiaddr { return c.Addrs() }
	}
	if h.BasicHost, err = basichost.NewHost(h.Swarm, opts); err != nil {
		return nil, fmt.Errorf("make libp2p host: %w", err)
	}
	if h.QUIC, err = newQUIC(c); err != nil {
		return nil, errors.Join(fmt.Errorf("make QUIC: %w", err), h.BasicHost.Close())
	}
	h.close = sync.OnceValue(func() error { return errors.Join(h.BasicHost.Close(), h.QUIC.close()) })
	if err := h.addTransports(c); err != nil {
		return nil, errors.Join(fmt.Errorf("make transports: %w", err), h.Close())
	}
	h.Start()
	return h, nil
}

func (h *Host) addTransports(c Config) error {
	timeless, err := identity.Timeless()
	if err != nil {
		return err
	}
	quic, err := libp2pquic.NewTransport(c.Key, h.QUIC.ConnManager, nil, c.Gater, c.Guard, libp2pquic.WithTLSIdentityOption(timeless))
	if err != nil {
		return err
	}
	up, err := newUpgrader(c)
	if err != nil {
		return err
	}
	others, err := c.Transports(h, up)
	if err != nil {
		return err
	}
	for _, t := range append(others, quic) {
		if err := h.Swarm.AddTransport(t); err != nil {
			return err
		}
	}
	return nil
}

// newUpgrader makes what secures and divides the connections of transports that do not do so themselves.
func newUpgrader(c Config) (transport.Upgrader, error) {
	muxers := []upgrader.StreamMuxer{{ID: mux.ID, Muxer: c.Muxer}}
	tls, err := identity.NewTLS(libp2ptls.ID, c.Key, muxers)
	if err != nil {
		return nil, err
	}
	// No Noise beside it: whoever strips TLS from the offer would have the key exchange without its post-quantum part.
	up, err := upgrader.New([]sec.SecureTransport{tls.Renewing(c.Keys)}, muxers, nil, c.Guard, c.Gater)
	if err != nil {
		return nil, fmt.Errorf("make upgrader: %w", err)
	}
	return prompt{up}, nil
}

// Close ends all connections, then closes the UDP sockets. It may be called again.
func (h *Host) Close() error { return h.close() }
