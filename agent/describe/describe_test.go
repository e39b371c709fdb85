package describe

import (
	"testing"
	"time"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
)

// What is known of the tunnel's path is shown in ms and Mbit/s, what is not known is left out, and of a peer on the LAN nothing
// of the tunnel's path.
func TestQueueAndRate(t *testing.T) {
	path := peers.Status{Wanted: true, Path: paths.Path{Kind: paths.KindPunched, Transport: "tcp"}}
	var stats tunnel.PeerStats
	if s := Peer(mesh.Node{}, path, stats); s.RTTMs != nil || s.WayMs != nil || s.QueueMs != nil || s.RateMbps != nil {
		t.Errorf("not measured: %+v", s)
	}
	path.Path.RTT, path.Path.Queue = 52*time.Millisecond, 0
	if s := Peer(mesh.Node{}, path, stats); s.WayMs == nil || *s.WayMs != 0 {
		t.Errorf("no queue: %+v", s)
	}
	path.Path.Queue = 12500 * time.Microsecond
	stats.Lanes[tunnel.StreamLane] = tunnel.LaneStats{Rate: 1.25e6, Delay: 3 * time.Millisecond}
	s := Peer(mesh.Node{}, path, stats)
	for name, c := range map[string]struct {
		got  *float64
		want float64
	}{"rttMs": {s.RTTMs, 52}, "wayMs": {s.WayMs, 12.5}, "queueMs": {s.QueueMs, 3}, "rateMbps": {s.RateMbps, 10}} {
		if c.got == nil || *c.got != c.want {
			t.Errorf("%s: %v, want %g", name, c.got, c.want)
		}
	}
	s = LAN(s, decide.Status{Kind: mesh.Native, RTT: time.Millisecond})
	if s.RTTMs == nil || *s.RTTMs != 1 || s.WayMs != nil || s.QueueMs != nil || s.RateMbps != nil {
		t.Errorf("on the LAN: %+v", s)
	}
}
