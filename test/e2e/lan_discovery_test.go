package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestSiteCutOff reboots all nodes of a site that has lost its uplink: relays and
// membership are out of reach, and two of the nodes never talked to each other.
func TestSiteCutOff(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site-a", lab.EIM)
	nodes := []*lab.Node{
		node(t, s, "edge-1", lab.NodeOptions{}), node(t, s, "edge-2", lab.NodeOptions{}),
		node(t, s, "edge-3", lab.NodeOptions{}),
	}
	startAll(t, l)
	var pods []*lab.Pod
	for _, n := range nodes {
		pods = append(pods, pod(t, n, "pod-of-"+n.Name))
	}
	curlPods(t, pods[0], pods[1], 3*time.Second)
	for _, n := range nodes {
		n.Agent.Kill()
	}
	ok(t, s.Router.Script("ip link set wan0 down"))
	for _, n := range nodes {
		ok(t, os.Remove(n.Membership))
		// As if they had never met.
		if err := os.Remove(filepath.Join(n.Config.StateDir, "addresses.json")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		ok(t, n.Start())
	}
	for _, n := range nodes {
		ok(t, n.WaitPods(within(t, 5*time.Second)))
	}
	for _, pair := range [][2]int{{0, 2}, {1, 0}, {2, 1}, {2, 0}} {
		from, to := pods[pair[0]], pods[pair[1]]
		start := time.Now()
		ctx := within(t, 5*time.Second)
		err := lab.Until(ctx, 20*time.Millisecond, func() error {
			return tryCurl(ctx, from.NS, to, to.IP4(), from.IP4(), 2*time.Second)
		})
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s → %s after %d ms", from.Name, to.Name, time.Since(start).Milliseconds())
		if _, err := from.Node.WaitPath(within(t, 5*time.Second), to.Node, "direct", "native"); err != nil {
			t.Error(err)
		}
	}
}
