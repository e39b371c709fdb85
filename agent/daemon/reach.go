package daemon

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/admit"
)

// reach describes how other members are reached: by p2p, by the tunnel and on the LAN.
type reach struct {
	plan   func() mesh.Plan // the one in force
	node   *p2p.Node
	tunnel *tunnel.Tunnel
	lan    *lanPaths
}

// peer is how one other member is reached.
func (r reach) peer(m mesh.Node) control.PeerStatus {
	id := admit.ID(m.PeerID)
	p, _ := r.node.PeerStatus(id)
	st, _ := r.lan.status(m.PeerID)
	return describe.LAN(describe.Peer(m, p, r.tunnel.StatsOf(tunnel.PeerID(id))), st)
}

// path is the path to one member in use now, without the tunnel's figures.
func (r reach) path(id mesh.PeerID) control.PeerStatus {
	st, _ := r.node.PeerStatus(admit.ID(id))
	on, _ := r.lan.status(id)
	return describe.LAN(control.PeerStatus{
		Path: string(st.Path.Kind), Transport: st.Path.Transport, Relay: st.Path.Relay, Endpoint: st.Path.Addr, Reason: st.Reason}, on)
}

// peers lists all other members in order of name, or those to which there is a path or for which packets wait, and counts
// those left out. A member that was never used costs little.
func (r reach) peers(all bool) (out []control.PeerStatus, idle int) {
	known := map[mesh.PeerID]bool{}
	for _, id := range r.node.Status().Peers {
		known[mesh.PeerID(id.String())] = true
	}
	for _, p := range r.tunnel.Stats().Peers {
		known[mesh.PeerID(peer.ID(p.Peer).String())] = true
	}
	out = []control.PeerStatus{} // JSON has lists, not null
	plan := r.plan()
	for m := range plan.Members() {
		switch st, _ := r.lan.status(m.PeerID); {
		case known[m.PeerID] || st.Kind != "":
			if s := r.peer(*m); all || s.Path != describe.Idle {
				out = append(out, s)
				continue
			}
		case all:
			never := peers.Status{Path: paths.Path{Kind: paths.KindNone}}
			out = append(out, describe.LAN(describe.Peer(*m, never, tunnel.PeerStats{}), st))
			continue
		}
		idle++
	}
	slices.SortFunc(out, func(x, y control.PeerStatus) int { return strings.Compare(x.Node, y.Node) })
	return out, idle
}

// past are the peers with a direct connection past this node's networks: over UDP, and those over TCP alone.
func (r reach) past() (quic, tcp []string) {
	plan := r.plan()
	for m := range plan.Members() {
		st, ok := r.node.PeerStatus(admit.ID(m.PeerID))
		over := map[string]bool{}
		for _, path := range st.All {
			if a, err := ma.NewMultiaddr(path.Addr); ok && err == nil && path.Kind != paths.KindRelayed && manet.IsPublicAddr(a) {
				over[path.Transport] = true
			}
		}
		switch {
		case over["quic"]:
			quic = append(quic, m.Name)
		case over["tcp"]:
			tcp = append(tcp, m.Name)
		}
	}
	return quic, tcp
}

// seenAt names the member that has used an address here, "" where there is none.
func (r reach) seenAt(a netip.Addr) string {
	plan := r.plan()
	for m := range plan.Members() {
		if a.IsValid() && r.node.Seen(admit.ID(m.PeerID), a) {
			return m.Name
		}
	}
	return ""
}
