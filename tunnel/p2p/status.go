package p2p

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/nat"
	"edgemesh/tunnel/p2p/relays"
)

// wantedFor is how long after a request for a path a peer counts as wanted.
const wantedFor = time.Minute

// PeerStatus is how one peer is reached now.
type PeerStatus struct {
	Peer  peer.ID
	Path  Path      // the best path for streams
	All   []Path    // every live path, the best first
	Since time.Time // when Path became the best one
	// Wanted says that somebody has lately asked for a path, and in vain so far.
	Wanted bool
	// Reason says why the path is not a better one: the outcome of the last
	// attempt to punch, the NATs on both sides, paths lost. It is empty for a
	// direct path.
	Reason string
}

// Status is a snapshot of the node's connections.
type Status struct {
	Relays []relays.Status // those in use, in order of preference
	Peers  []PeerStatus    // members with a connection or a history, in order of ID
	NAT    string          // what stands between this node and its relays
	Router string          // what routers have granted (portmap), "" for nothing to tell
	// Relay says whether this node is a relay itself; Reservations and Circuits
	// are what it carries for others.
	Relay                  bool
	Reservations, Circuits int
}

// Status returns a snapshot.
func (n *Node) Status() Status {
	var st Status
	st.Relays = n.relays.Status()
	st.NAT = nat.Text(n.puncher.NAT())
	st.Router = n.mapper.String()
	if n.service != nil {
		st.Relay, st.Reservations, st.Circuits = true, n.service.Reservations(), n.service.Circuits()
	}
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	for id, r := range n.peers.m {
		st.Peers = append(st.Peers, r.statusLocked(id))
	}
	slices.SortFunc(st.Peers, func(a, b PeerStatus) int { return strings.Compare(string(a.Peer), string(b.Peer)) })
	return st
}

// CheckRelays pings every relay now and returns what became of that; see relays.Set.Check for what ctx should allow.
func (n *Node) CheckRelays(ctx context.Context) []relays.Status { return n.relays.Check(ctx) }

// PeerStatus returns the state of one peer; ok is false for a peer that is not
// connected and never was.
func (n *Node) PeerStatus(p peer.ID) (st PeerStatus, ok bool) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	r := n.peers.m[p]
	if r == nil {
		return PeerStatus{Peer: p, Path: Path{Kind: KindNone}}, false
	}
	return r.statusLocked(p), true
}

func (r *remote) statusLocked(id peer.ID) PeerStatus {
	st := PeerStatus{Peer: id, Path: r.pathLocked(), Since: r.since,
		Wanted: time.Since(r.wanted) < wantedFor}
	for _, id := range r.m.Ranked(ladder.StreamLane) {
		if p := r.paths[id]; p != nil && !p.conn.IsClosed() {
			st.All = append(st.All, p.pathLocked())
		}
	}
	st.Reason = r.reasonLocked(st.Path)
	return st
}

// reasonLocked says why best is not better.
func (r *remote) reasonLocked(best Path) string {
	var why []string
	switch best.Kind {
	case KindDirect:
		return ""
	case KindNone:
		if r.connectErr != nil {
			why = append(why, causes.OneLine(r.connectErr.Error()))
		}
	case KindRelayed:
		if said, done := r.punch.WhyRelayed(); done {
			why = append(why, said...)
		} else {
			why = append(why, "hole punching has not ended yet")
		}
	case KindPunched:
		why = append(why, "an address is translated by NAT")
		if said := r.punch.LastFailure(); said != "" {
			why = append(why, said)
		}
	}
	if len(r.failures) > 0 {
		why = append(why, "lost before: "+strings.Join(r.failures, ", "))
	}
	return strings.Join(why, "; ")
}

// Ping measures a round trip to peer over the best path, connecting first where
// there is none. The errors are those of OpenStream.
func (n *Node) Ping(ctx context.Context, p peer.ID) (time.Duration, Path, error) {
	s, err := n.OpenStream(ctx, p, identity.PathProtocol)
	if err != nil {
		return 0, Path{Kind: KindNone}, err
	}
	defer s.Reset()
	if d, ok := ctx.Deadline(); ok {
		_ = s.s.SetDeadline(d)
	}
	stop := context.AfterFunc(ctx, s.Reset)
	defer stop()
	start := time.Now()
	f := probeFrame{typ: probeRequest, seq: 1, token: s.path.token}
	if _, err := s.Write(f.append(nil)); err != nil {
		return 0, s.Path(), fmt.Errorf("ping %s: %w", p, err)
	}
	if _, err := readProbe(s); err != nil {
		return 0, s.Path(), fmt.Errorf("ping %s: %w", p, err)
	}
	return time.Since(start), s.Path(), nil
}

// RelayAddrs returns where others reach this node as their relay: announce, or
// where that is empty its public addresses, or those of its uplinks.
func (n *Node) RelayAddrs(announce []ma.Multiaddr) []ma.Multiaddr {
	if len(announce) > 0 {
		return announce
	}
	var public, all []ma.Multiaddr
	for _, e := range n.addrs.Local() {
		a := e.Multiaddr()
		all = append(all, a)
		if manet.IsPublicAddr(a) {
			public = append(public, a)
		}
	}
	if len(public) > 0 {
		return public
	}
	return all
}
