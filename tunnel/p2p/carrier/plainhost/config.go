package plainhost

import (
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/who/identity"
)

// Guard bounds what peers use of a host before they are admitted. Package gate has it; a host without one does not exist.
type Guard interface {
	network.ResourceManager
	// Upgrader returns up with limits for what listeners accept.
	Upgrader(up transport.Upgrader) transport.Upgrader
}

// Config is what a host is made of. What has no default is required.
type Config struct {
	Key       crypto.PrivKey
	UserAgent string
	Muxer     network.Multiplexer // yamux
	Gater     connmgr.ConnectionGater
	Keys      identity.Renewal
	Guard     Guard                 // closed with the host
	Conns     connmgr.ConnManager   // closed with the host; nil: connections are not tagged
	Addrs     func() []ma.Multiaddr // to give out; nil: what the host listens on
	Swarm     []swarm.Option
	QUIC      []quicreuse.Option
	// Transports makes those beside QUIC; those that listen use the guard's Upgrader.
	Transports func(*Host, transport.Upgrader) ([]transport.Transport, error)
}
