// Package lookup is the cluster's DHT (kad-dht), whose servers are the relays: the last resort where neither the membership nor
// the address book says where a peer is.
package lookup

import (
	"context"
	"errors"
	"fmt"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/who/identity"
)

// DHT is this node's end.
type DHT = dht.IpfsDHT

// Join joins as a client. The servers, relays, are found among the host's own connections; no other host is ever queried, and
// no address kept that is not outside the cluster.
func Join(h host.Host, isRelay func(peer.ID) bool, isOutside func(ma.Multiaddr) bool) (*DHT, error) {
	d, err := dht.New(bound(h, func(string, peer.ID, string) {}),
		dht.ProtocolPrefix(identity.DHTPrefix),
		dht.Mode(dht.ModeClient),
		dht.DisableProviders(),
		dht.DisableValues(),
		// The table holds the relays this node is connected to; what they know is queried when it is needed.
		dht.DisableAutoRefresh(),
		dht.QueryFilter(func(_ any, ai peer.AddrInfo) bool { return isRelay(ai.ID) }),
		dht.RoutingTableFilter(func(_ any, p peer.ID) bool { return isRelay(p) }),
		dht.AddressFilter(func(in []ma.Multiaddr) []ma.Multiaddr { return ma.FilterAddrs(in, isOutside) }),
	)
	if err != nil {
		return nil, fmt.Errorf("join DHT: %w", err)
	}
	return d, nil
}

// Serve joins as a server, for peers that isKnown accepts, beside the other relays. refused is called for each stream that is
// ended for its messages' size or for the number of its peer's streams.
func Serve(h host.Host, isKnown func(peer.ID) bool, relays func() []peer.AddrInfo, refused func(reason string, p peer.ID, from string)) (*DHT, error) {
	d, err := dht.New(bound(h, refused),
		dht.ProtocolPrefix(identity.DHTPrefix),
		dht.Mode(dht.ModeServer),
		dht.DisableProviders(), dht.DisableValues(),
		dht.AddressFilter(func(in []ma.Multiaddr) []ma.Multiaddr { return in }),
		dht.RoutingTableFilter(func(_ any, p peer.ID) bool { return isKnown(p) }),
		dht.BootstrapPeersFunc(relays))
	if err != nil {
		return nil, fmt.Errorf("start DHT: %w", err)
	}
	if err := d.Bootstrap(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("start DHT: %w", err), d.Close())
	}
	return d, nil
}
