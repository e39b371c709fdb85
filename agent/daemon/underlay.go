package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/identity"
)

// lanes says which protocol carries which lane.
var lanes = map[tunnel.Lane]protocol.ID{ //nolint:gochecknoglobals // a constant
	tunnel.StreamLane:   identity.StreamProtocol,
	tunnel.DatagramLane: identity.DatagramProtocol,
}

// underlay gives the tunnel carriers: libp2p streams over the best path. It is
// the one place where the tunnel and p2p meet. A tunnel.PeerID is the peer.ID.
type underlay struct {
	node *p2p.Node
	used func(peer.ID) // called for each carrier: there is traffic, and a connection
}

var (
	_ tunnel.Underlay = underlay{}
	_ tunnel.Carrier  = (*paths.Stream)(nil)
	_ tunnel.Stream   = (*paths.Stream)(nil)
)

func (u underlay) Open(ctx context.Context, id tunnel.PeerID, lane tunnel.Lane) (tunnel.Carrier, error) {
	s, err := u.node.OpenStream(ctx, peer.ID(id), lanes[lane])
	if err != nil {
		return nil, err // not a typed nil in the interface
	}
	u.used(peer.ID(id))
	return s, nil
}

// overNode completes cfg: carriers are node's streams, and the tunnel decides whether node
// stays connected to a peer.
func overNode(node *p2p.Node, used func(peer.ID), cfg tunnel.Config) tunnel.Config {
	cfg.Underlay = underlay{node, used}
	cfg.Idle = func(id tunnel.PeerID) { node.Disconnect(peer.ID(id)) }
	cfg.Quarantine = func(id tunnel.PeerID, d time.Duration, why string) { node.Quarantine(peer.ID(id), d, why) }
	cfg.TCP = func(id tunnel.PeerID) (time.Duration, bool) { return node.OverTCP(peer.ID(id)) }
	var reported seldom.Log
	cfg.Refused = func(id tunnel.PeerID, r tunnel.Reason) {
		if !reported.Due(string(id)) {
			return
		}
		st, _ := node.PeerStatus(peer.ID(id))
		cfg.Log.Warn("packet of a peer refused: its source is not the peer's, or its destination not this node's; "+
			"this passes by itself while the membership changes; if it continues, look what runs there, and ban it",
			"peer", peer.ID(id), "reason", r, "from", st.Path.Addr)
	}
	return cfg
}

// join connects both directions: streams that peers open go to the tunnel, which is also
// notified of every change of path. That is how it learns that a relay, or any path, died.
func join(n *p2p.Node, t *tunnel.Tunnel, used func(peer.ID), counted *counts, log *slog.Logger) {
	for lane, proto := range lanes {
		n.SetStreamHandler(proto, func(id peer.ID, s *paths.Stream) {
			defer s.Reset()
			used(id)
			if err := t.Receive(tunnel.PeerID(id), lane, s); err != nil {
				log.Debug("incoming stream ended", "peer", id, "protocol", proto, "err", err)
			}
		})
	}
	n.SetLanes(func(id peer.ID) packet.Lanes { return t.Pull(tunnel.PeerID(id)) })
	n.SetNotify(func(e peers.Event) {
		log.Debug(e.Kind.String(), "peer", e.Peer, "path", e.Path.Kind, "transport", e.Path.Transport)
		counted.changed(e)
		if e.Kind == peers.PathChanged {
			t.PathChanged(tunnel.PeerID(e.Peer))
		} else {
			t.PathLost(tunnel.PeerID(e.Peer))
		}
	})
}
