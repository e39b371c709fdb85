package p2p

import (
	"os"
	"testing"
	"time"

	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/paths"
)

// TestSpeed prints what one stream carries over each kind of path, in namespaces
// on one machine. It judges nothing: set P2P_SPEED=1 to run it.
func TestSpeed(t *testing.T) {
	if os.Getenv("P2P_SPEED") == "" {
		t.Skip("set P2P_SPEED=1 to measure")
	}
	for _, nat := range []string{natNone, natSymmetric} {
		_, a, b := twoSites(t, nat, nat)
		a.call(b)
		if nat == natNone {
			a.onPath(b, 10*time.Second, paths.KindDirect, "tcp")
		}
		for _, proto := range []string{string(sinkProto), string(identity.DatagramProtocol)} {
			for range 3 {
				r := a.ask(request{Cmd: "blast", Peer: b.id.String(), Proto: proto, Time: 3 * time.Second})
				if r.Err != "" {
					t.Error(r.Err)
				}
				t.Logf("%s over %s %s: %.0f Mbit/s", proto, r.Path.Kind, r.Path.Transport, float64(r.Bytes)*8/1e6/r.Took.Seconds())
			}
		}
	}
}
