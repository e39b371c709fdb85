package reach

import (
	"context"
	"errors"
	"fmt"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// findTimeout bounds a query to the DHT: one about a peer that has just gone may otherwise
// take half a minute.
const findTimeout = 3 * time.Second

// JoinDHT joins the cluster's DHT as a client. Relays are its servers, found among the
// host's own connections; no other host is ever queried.
func JoinDHT(h host.Host, g *members.Gater) (Finder, error) {
	relayOnly := func(p peer.ID) bool { return g.View().IsRelay(p) }
	k, err := dht.New(h,
		dht.ProtocolPrefix(identity.DHTPrefix),
		dht.Mode(dht.ModeClient),
		dht.DisableProviders(),
		dht.DisableValues(),
		// The table holds the relays this node is connected to; what they know is queried
		// when it is needed.
		dht.DisableAutoRefresh(),
		dht.QueryFilter(func(_ any, ai peer.AddrInfo) bool { return relayOnly(ai.ID) }),
		dht.RoutingTableFilter(func(_ any, p peer.ID) bool { return relayOnly(p) }),
		dht.AddressFilter(func(in []ma.Multiaddr) []ma.Multiaddr {
			return ma.FilterAddrs(in, g.View().Outside)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("join DHT: %w", err)
	}
	return k, nil
}

// byDHT looks the peer up in the DHT, and dials it there.
func (s *Search) byDHT(ctx context.Context) error {
	fctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	info, err := s.DHT.FindPeer(fctx, s.peer.ID())
	if s.peer.Connected() { // the query itself may dial the peer
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up in DHT: %w", err)
	}
	errs := []error{errors.New("no address in the DHT answers")}
	for _, a := range info.Addrs {
		e, ok := endpoint.Parse(a)
		if !ok || !s.Addrs.Dialable(e) {
			continue // circuits were tried
		}
		most, err := s.Targets.Take(s.peer.ID(), e, targets.LastBudget)
		if err == nil {
			err = s.dial(ctx, e, most)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			errs = append(errs, fmt.Errorf("%s: %w", e, err))
		}
	}
	return wording.Join(errs...)
}
