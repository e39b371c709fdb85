package e2e

import (
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestFlush: another program's rule leads pods' packets to the site's router, before every place of ours, and the guard drops them. `nft flush
// ruleset` takes the guard away, again and again, also while the agent is writing the rules of iptables that went with it. What leaves until it
// is back is measured.
func TestFlush(t *testing.T) {
	tier.Long(t) // it measures, alone
	l := newLab(t)
	relay(t, l, "relay")
	n, far := node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{}), node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	startAll(t, l)
	from, to := pod(t, n, "one"), pod(t, far, "two")
	curlPods(t, from, to, 5*time.Second)
	ok(t, n.Script("ip route add default via 192.168.1.1 table 1", "ip rule add pref 1 iif edgemesh-br to 10.244.0.0/16 lookup 1"))
	noAnswer(t, from.NS, to.IP4(), "over another program's rule")
	const every, flushes = 2 * time.Millisecond, 10
	strays, err := l.Sniff()
	ok(t, err)
	flow, err := from.NS.StartTool("unanswered", "gaps", "--proto", "udp", "--interval", every.String(), "--duration", "10m", to.IP4().String())
	ok(t, err)
	for i := range flushes {
		ok(t, n.Script("nft flush ruleset"))
		time.Sleep([]time.Duration{3 * time.Second, 300 * time.Millisecond}[i%2]) // sleep: repaired by then, or just not
	}
	time.Sleep(3 * time.Second) // sleep: the repair ends
	flow.Kill()
	all, err := strays()
	ok(t, err)
	open := time.Duration(len(all)) * every / flushes
	t.Logf("%d packets left in clear in %d flushes: open for %s each", len(all), flushes, open)
	if open > 50*time.Millisecond {
		t.Errorf("a flush opens the ranges for %s, want at most 50 ms", open)
	}
}
