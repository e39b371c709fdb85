// Package describe says in the words of the control protocol what p2p, the tunnel and the LAN paths know of the other members.
package describe

import (
	"math"
	"slices"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/lan/decide"
	"edgemesh/internal/cause"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/relay/relays"
)

// Idle is the path of a member that was never used, or was disconnected.
const Idle = "idle"

// NAT is what is known of the NAT before this node.
func NAT(st p2p.Status) control.NAT {
	return control.NAT{Kind: st.Kind.String(), Detail: st.NAT, Router: st.Router}
}

// Relays are the relays that this node uses.
func Relays(all []relays.Status) []control.RelayStatus {
	out := []control.RelayStatus{}
	for _, r := range all {
		s := control.RelayStatus{
			PeerID: r.ID.String(), Addr: r.Addr, Proxy: r.Proxy, Connected: r.Connected, Reserved: r.Reserved, Spare: r.Spare, Version: r.Version, Error: r.Error, Cause: r.Cause,
		}
		if r.RTT > 0 {
			s.RTTMs = Millis(r.RTT)
		}
		out = append(out, s)
	}
	return out
}

// Peer is how the tunnel reaches a member.
func Peer(m mesh.Node, p peers.Status, t tunnel.PeerStats) control.PeerStatus {
	s := control.PeerStatus{
		Node: m.Name, Site: m.Site, PeerID: string(m.PeerID), PodCIDRs: wording.Texts(m.PodCIDRs),
		Path: Idle, TxBytes: t.TxBytes, RxBytes: t.RxBytes, Drops: t.Drops.Total(),
	}
	for _, r := range tunnel.Reasons() {
		if n := t.Drops.Of(r); n > 0 {
			if s.DropsBy == nil {
				s.DropsBy = map[string]uint64{}
			}
			s.DropsBy[r.String()] = n
		}
	}
	if p.Path.Kind == paths.KindNone && !p.Wanted && !waiting(t) {
		return s
	}
	s.Path, s.Transport, s.Endpoint, s.Relay, s.Reason = string(p.Path.Kind), p.Path.Transport, p.Path.Addr, p.Path.Relay, p.Reason
	s.Choice, s.NAT64, s.Datagrams, s.Punch = t.Choice, p.Path.NAT64, p.Path.Datagrams, punch(p.Punch)
	if p.Path.Kind == paths.KindNone {
		s.Failed, s.Silent, s.Cause = p.Failed, p.Silent, p.Cause
		if !p.Heard.IsZero() {
			s.LastHeard = &p.Heard
		}
		if !p.Offline.IsZero() {
			s.Offline = &p.Offline
		}
	}
	if p.Path.RTT > 0 {
		s.RTTMs, s.WayMs = Millis(p.Path.RTT), Millis(p.Path.Queue)
	}
	if !p.Since.IsZero() {
		s.Since = &p.Since
	}
	var delay time.Duration
	for _, l := range t.Lanes {
		delay = max(delay, l.Delay)
	}
	if delay > 0 {
		s.QueueMs = Millis(delay)
	}
	if rate := t.Lanes[tunnel.StreamLane].Rate; rate > 0 {
		mbps := math.Round(rate*8/1e4) / 100
		s.RateMbps = &mbps
	}
	return s
}

// LAN puts a native or VXLAN path in place of the tunnel's in a member's status, or adds why there is none.
func LAN(s control.PeerStatus, st decide.Status) control.PeerStatus {
	s.LANBytes = st.Received
	if st.Kind == "" {
		if s.Path != Idle && s.Offline == nil && st.Reason != "" {
			s.Reason = decide.Join(s.Reason, st.Reason)
		}
		if s.Path == string(paths.KindNone) && !st.Heard.IsZero() && (s.LastHeard == nil || st.Heard.After(*s.LastHeard)) {
			s.LastHeard = &st.Heard
		}
		return s
	}
	s.Offline, s.LastHeard, s.Failed, s.Silent, s.Cause = nil, nil, false, false, cause.Cause{}
	s.Path, s.Transport, s.Reason, s.Proof = string(st.Kind), string(st.Kind), st.Reason, st.Proof
	if st.Kind == mesh.Native {
		s.Transport = "ip"
	}
	s.Since, s.Relay, s.Datagrams, s.Endpoint, s.NAT64 = &st.Since, "", "", st.Via.String(), false
	s.RTTMs, s.WayMs, s.QueueMs, s.RateMbps = nil, nil, nil, nil // the tunnel's
	if st.RTT > 0 {
		s.RTTMs = Millis(st.RTT)
	}
	return s
}

func punch(p *peers.Punch) *control.Punch {
	if p == nil {
		return nil
	}
	out := &control.Punch{Attempts: p.Failed, Last: p.Last, Missing: p.Missing, Tried: p.Dials, Awaits: string(p.Await)}
	if out.Tried == nil {
		out.Tried = []string{}
	}
	if !p.Next.IsZero() {
		out.Next = &p.Next
	}
	return out
}

// waiting reports whether packets wait for a path.
func waiting(t tunnel.PeerStats) bool {
	return slices.ContainsFunc(t.Lanes[:], func(l tunnel.LaneStats) bool {
		return l.State == tunnel.LaneConnecting || l.QueuedPackets > 0
	})
}

// Millis is d in milliseconds.
func Millis(d time.Duration) *float64 {
	ms := float64(d.Microseconds()) / 1000
	return &ms
}
