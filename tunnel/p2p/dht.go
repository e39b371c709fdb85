package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/relayservice"
	"edgemesh/tunnel/p2p/stun"
)

// findTimeout bounds a question to the DHT: one about a peer that has just
// gone may otherwise take half a minute.
const findTimeout = 3 * time.Second

// finder finds current addresses of a member.
type finder interface {
	FindPeer(ctx context.Context, p peer.ID) (peer.AddrInfo, error)
	io.Closer
}

// startFinder joins the cluster's DHT, as a server where this node is a relay, which
// begins to serve with that.
func (n *Node) startFinder(relay *relayservice.Limits) (err error) {
	if relay == nil {
		n.dht, err = newFinder(n.h, n.gater)
		return err
	}
	n.service, err = relayservice.Start(relayservice.Config{
		Host: n.h, Limits: *relay,
		IsMember: func(p peer.ID) bool { return n.gater.View().IsMember(p) },
		IsKnown:  func(p peer.ID) bool { return n.gater.View().Known(p) },
		Relays:   n.relays.Infos,
		Refused:  func(reason string) { n.log.Debug("relay: refused", "why", reason) },
	})
	n.dht = n.service
	if err != nil {
		return err
	}
	n.seen, err = stun.Start(n.dialer.QUIC(), n.ListenAddrs(), n.log)
	return err
}

// serves says whether this node is p's relay: its connections stay then, however
// idle.
func (n *Node) serves(p peer.ID) bool { return n.service != nil && n.service.Reserved(p) }

// newFinder joins the cluster's DHT as a client: relays are its servers, found
// among the host's own connections, and nobody else is ever asked.
func newFinder(h host.Host, g *members.Gater) (finder, error) {
	relayOnly := func(p peer.ID) bool { return g.View().IsRelay(p) }
	k, err := dht.New(h,
		dht.ProtocolPrefix(identity.DHTPrefix),
		dht.Mode(dht.ModeClient),
		dht.DisableProviders(),
		dht.DisableValues(),
		// The table holds the relays this node is connected to; what they know is asked
		// for when it is needed.
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

// reachByDHT asks the DHT where the peer is and dials it there.
func (r *remote) reachByDHT(ctx context.Context) error {
	n := r.set.n
	fctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	info, err := n.dht.FindPeer(fctx, r.id)
	if r.connected() { // the query itself may dial the peer
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up in DHT: %w", err)
	}
	errs := []error{errors.New("no address in the DHT answers")}
	for _, a := range info.Addrs {
		e, ok := endpoint.Parse(a)
		if !ok || !n.addrs.Dialable(e) {
			continue // circuits were tried
		}
		if err := n.dialer.Dial(ctx, e.Multiaddr(), r.id); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e, err))
			continue
		}
		if err := r.arrived(ctx); err == nil {
			return nil
		}
	}
	return causes.Join(errs...)
}
