package p2p

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Status is a snapshot of the node's connections.
type Status struct {
	Relays []relays.Status // those in use, in order of preference
	Peers  []peer.ID       // members with a connection or a history: see PeerStatus
	NAT    string          // what stands between this node and its relays
	Kind   ladder.NAT      // the same, of few values
	Router string          // what routers have granted (portmap), "": nothing
	// Reservations and Circuits are what this node, as a relay, carries for others.
	Reservations, Circuits int
}

// Status returns a snapshot.
func (n *Node) Status() Status {
	var st Status
	st.Relays = n.relays.Status()
	st.Kind = n.puncher.NAT()
	st.NAT = sense.Text(st.Kind)
	st.Router = n.mapper.String()
	if n.service != nil {
		st.Reservations, st.Circuits = n.service.Reservations(), n.service.Circuits()
	}
	st.Peers = n.peers.Known()
	return st
}

// Connected are the members to which there is a connection.
func (n *Node) Connected() []peer.ID {
	v := n.gater.View()
	return slices.DeleteFunc(n.h.Network().Peers(), func(p peer.ID) bool { return !v.IsMember(p) })
}

// Refused is how much was refused: connections and streams, and what members sent and named; by the reasons' names as
// metric labels.
func (n *Node) Refused() map[string]uint64 {
	out := n.refused.Counts()
	maps.Copy(out, n.targets.Refused())
	for _, r := range packet.Reasons() {
		out["packet_"+r.String()] = n.packets.Refused(r)
	}
	for r, count := range n.packets.RefusedByFlight() {
		out["flight_"+strings.ReplaceAll(r, "-", "_")] = count
	}
	out["punch_offers"] = n.puncher.Refused()
	return out
}

// Carried is what all paths have carried, by kind.
func (n *Node) Carried() map[paths.Kind]peers.Carried { return peers.CarriedBy(n.peers) }

// Members is how many members there are besides this node.
func (n *Node) Members() int {
	n.copies.using.Lock()
	defer n.copies.using.Unlock()
	return n.want.Len()
}

// Handshakes is how many may run at a time, and how many do.
func (n *Node) Handshakes() (all, now int) { return n.gate.Handshakes() }

// PunchBudget is how many packets a minute may go to addresses that a peer names and that are not known to be its own, and
// the most that went for one peer in the last minute.
func (n *Node) PunchBudget() (limit, spent int) { return targets.Budget, n.targets.Spent() }

// ProxyFailures is how often the HTTP proxy gave no connection to a relay, by cause.
func (n *Node) ProxyFailures() map[string]uint64 { return n.dialer.Sockets().ProxyFailures().By() }

// Refusals are the connections and streams that were refused in the last minutes, the latest first.
func (n *Node) Refusals() []refusals.Refusal { return n.refused.Recent() }

// Seen reports whether member p has shown its key at a.
func (n *Node) Seen(p peer.ID, a netip.Addr) bool { return n.targets.Owns(p, a) }

// MemberName is the name of a member, "" for others.
func (n *Node) MemberName(p peer.ID) string {
	n.copies.using.Lock()
	defer n.copies.using.Unlock()
	if n.want.IsMember(p) {
		return n.want.Name(p)
	}
	return ""
}

// CheckRelays pings every relay now and returns the results; see relays.Set.Check for what ctx should allow.
func (n *Node) CheckRelays(ctx context.Context) []relays.Status { return n.relays.Check(ctx) }

// PeerStatus returns the state of one peer; ok is false for a peer that is not
// connected and never was.
func (n *Node) PeerStatus(p peer.ID) (st peers.Status, ok bool) {
	st, ok = n.peers.StatusOf(p)
	if ok && n.packets.Carrying(p) {
		st.Path.Transport = "sealed"
	}
	return st, ok
}

// OverTCP reports whether streams to a peer would take a direct path over TCP now, and the shortest round trip on it, 0: unknown.
func (n *Node) OverTCP(p peer.ID) (least time.Duration, ok bool) { return n.peers.OverTCP(p) }

// Ping measures a round trip to peer over the best path, connecting first where
// there is none. The errors are those of OpenStream.
func (n *Node) Ping(ctx context.Context, p peer.ID) (time.Duration, paths.Path, error) {
	s, err := n.OpenStream(ctx, p, identity.PathProtocol)
	if err != nil {
		return 0, paths.Path{Kind: paths.KindNone}, err
	}
	d, err := paths.Ping(ctx, s)
	if err != nil {
		return 0, s.Path(), fmt.Errorf("ping %s: %w", p, err)
	}
	return d, s.Path(), nil
}

// Uplinks are the addresses of this host's interfaces that lead off it.
func (n *Node) Uplinks() []netip.Addr { return n.addrs.Offered() }

// RelayAddrs returns where others reach this node as their relay: announce; if that is
// empty, its public addresses; if it has none, those of its uplinks.
func (n *Node) RelayAddrs(announce []ma.Multiaddr) []ma.Multiaddr {
	if len(announce) > 0 {
		return announce
	}
	var public, all []ma.Multiaddr
	for _, e := range n.addrs.Local() {
		a := e.Multiaddr()
		all = append(all, a)
		if endpoint.IsPublic(e.Addr.Addr()) {
			public = append(public, a)
		}
	}
	if len(public) > 0 {
		return public
	}
	return all
}
