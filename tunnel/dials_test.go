package tunnel_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

// unreachable is an underlay on which nobody is reached.
type unreachable struct{ open, most atomic.Int64 }

func (u *unreachable) Open(ctx context.Context, _ tunnel.PeerID, _ tunnel.Lane) (tunnel.Carrier, error) {
	u.most.Store(max(u.most.Load(), u.open.Add(1)))
	defer u.open.Add(-1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A pod that sends to every other node has few dialed at a time, and keeps no other pod from a peer.
func TestAPodHasFewPeersDialed(t *testing.T) {
	u := &unreachable{}
	n := startNode(t, nodeA, tunnel.Config{Underlay: u, Limits: tunnel.Limits{
		DialsPerPod: 20, Dials: 50, OpenTimeout: 2 * time.Second, WaitTime: time.Second}})
	routes := []tunnel.Route{{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Self: true}}
	const peers = 200
	for i := range peers {
		routes = append(routes, tunnel.Route{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+10)), Peer: tunnel.PeerID(fmt.Sprint(i))})
	}
	n.SetRoutes(routes)
	scan := func(pod byte) {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, pod}), 1000)
		for i := range peers {
			n.dev.Inject(tunneltest.UDPPacket(from, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 10), 1}), 53), nil))
		}
	}
	opens := func(want int64) func() error {
		return func() error {
			if got := u.open.Load(); got != want {
				return fmt.Errorf("%d peers are dialed, want %d", got, want)
			}
			return nil
		}
	}
	scan(5)
	scan(5)
	fair.Eventually(t, patience, "one pod", opens(20))
	scan(6)
	fair.Eventually(t, patience, "another pod", opens(40))
	scan(7)
	fair.Eventually(t, patience, "all pods", opens(50))
	if drops := n.Stats().Total.Drops.Of(tunnel.DropDials); drops == 0 {
		t.Error("nothing is counted")
	}
	fair.Eventually(t, patience, "the dials end", opens(0))
	fair.Eventually(t, patience, "the pod may try again", func() error { scan(5); return opens(20)() })
	if most := u.most.Load(); most > 50 {
		t.Errorf("%d at a time", most)
	}
}
