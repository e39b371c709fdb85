package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/lab"
)

// macOf is a link's MAC on a node.
func macOf(t *testing.T, n *lab.Node, link string) string {
	t.Helper()
	out, err := n.Run(t.Context(), "cat", "/sys/class/net/"+link+"/address")
	ok(t, err)
	return strings.TrimSpace(out)
}

// TestMemberCannotSpoofOnTheLAN: a member sends frames of its own, natively and inside
// VXLAN. Those with the addresses of its own pods arrive, those of another member's do not,
// though that one's packets come in by the same ways.
func TestMemberCannotSpoofOnTheLAN(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site", lab.EIM)
	witness, victim, thief := node(t, s, "edge-1", lab.NodeOptions{}), node(t, s, "edge-2", lab.NodeOptions{}), node(t, s, "edge-3", lab.NodeOptions{})
	startAll(t, l)
	pod1, pod2, pod3 := pod(t, witness, "one"), pod(t, victim, "two"), pod(t, thief, "three")
	for _, p := range []*lab.Pod{pod2, pod3} {
		curlPods(t, p, pod1, 5*time.Second)
		_, err := witness.WaitPath(within(t, 15*time.Second), p.Node, "native")
		ok(t, err)
	}
	for way, args := range map[string][]string{
		"native": {"--from-mac", macOf(t, thief, "eth0"), "--to-mac", macOf(t, witness, "eth0"), "--dev", "eth0"},
		// Inside VXLAN the MAC is the thief's word.
		"vxlan": {"--from-mac", macOf(t, victim, "edgemesh-vx"), "--to-mac", macOf(t, witness, "edgemesh-vx"),
			"--vtep", fmt.Sprintf("%s:%d", witness.Addr, mesh.VXLANPort), "--vni", fmt.Sprint(mesh.VXLANID)},
	} {
		send := func(src, dst netip.Addr) {
			t.Helper()
			ok(t, thief.Tool(t.Context(), nil, append(append([]string{"spoof"}, args...), "--src", src.String(), dst.String())...))
		}
		for i, own := range pairs(pod3, pod1) {
			if way == "native" && own[0].Is6() { // the LAN has no IPv6
				continue
			}
			forged := pairs(pod2, pod1)[i][0]
			before := seen(t, pod1, forged)
			send(forged, own[1])
			// What came after them proves that they would have arrived by now.
			ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
				was := seen(t, pod1, own[0])
				send(own[0], own[1])
				time.Sleep(20 * time.Millisecond) // sleep: they arrive, if they do
				if n := seen(t, pod1, own[0]) - was; n < 3 {
					return fmt.Errorf("%s: %d of 3 datagrams of the member's own %s arrived", way, n, own[0])
				}
				return nil
			}))
			if n := seen(t, pod1, forged) - before; n > 0 {
				t.Errorf("%s: %d datagrams with another member's %s arrived", way, n, forged)
			}
		}
	}
	curlPods(t, pod2, pod1, 3*time.Second)
}
