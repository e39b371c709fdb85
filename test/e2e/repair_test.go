package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestRepair holds that what other programs break on a host heals by itself,
// within seconds and without a restart of the agent.
func TestRepair(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n1, n2 := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	startAll(t, l)
	one, two := pod(t, n1, "one"), pod(t, n2, "two")
	curlPods(t, one, two, 3*time.Second)
	// forged sends datagrams from the WAN with the address of a far pod, and returns how
	// many arrive.
	ok(t, l.WAN.Script("ip route add "+n1.PodCIDRs[0]+" via "+n1.Addr.String()))
	forged := func() int {
		t.Helper()
		before := seen(t, one, two.IP4())
		ok(t, l.WAN.Tool(t.Context(), nil, "spoof", "--src", two.IP4().String(), one.IP4().String()))
		time.Sleep(100 * time.Millisecond) // sleep: they arrive, if they do
		return seen(t, one, two.IP4()) - before
	}
	t.Run("NobodyRepairs", func(t *testing.T) {
		// While the agent sleeps the guard is missed: what is repaired below is of use.
		ok(t, n1.Script(fmt.Sprintf("kill -STOP %d", n1.Agent.PID()), "nft flush table inet edgemesh"))
		n := forged()
		ok(t, n1.Script(fmt.Sprintf("kill -CONT %d", n1.Agent.PID())))
		if n == 0 {
			t.Error("without the guard, too, no forged datagram arrives: this proves nothing")
		}
	})
	for _, c := range []struct{ name, damage string }{
		{"TUNDeleted", "ip link del edgemesh-tun"},
		{"BridgeDeleted", "ip link del edgemesh-br"},
		{"RoutesFlushed", "ip route flush table 5210"},
		{"RuleDeleted", "ip rule del lookup 5210"},
		{"FirewallFlushed", "for t in filter mangle nat; do iptables -w -t $t -F; done"},
		{"GuardFlushed", "nft flush table inet edgemesh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pid, start := n1.Agent.PID(), time.Now()
			_, err := n1.Run(t.Context(), "sh", "-ec", c.damage)
			ok(t, err)
			ok(t, lab.Until(within(t, 6*time.Second), 50*time.Millisecond, func() error {
				if n := forged(); n > 0 {
					return fmt.Errorf("no guard against forged sources: %d datagrams arrived", n)
				}
				return errors.Join(
					tryCurl(t.Context(), one.NS, two, two.IP4(), one.IP4(), time.Second),
					tryCurl(t.Context(), two.NS, one, one.IP4(), two.IP4(), time.Second))
			}))
			t.Logf("healed after %d ms", time.Since(start).Milliseconds())
			if now := n1.Agent.PID(); now != pid {
				t.Errorf("the agent is another process: %d, was %d", now, pid)
			}
			curlPods(t, one, two, time.Second)
		})
	}
	var findings []finding
	ok(t, lab.Until(within(t, 6*time.Second), 200*time.Millisecond, func() error { // what no packet missed is repaired last
		var code int
		if code, findings = doctorOf(t, n1); code != 0 {
			return fmt.Errorf("doctor finds something broken: %+v", findings)
		}
		return nil
	}))
	told := map[string]int{}
	for _, f := range findings {
		told[f.Check]++
	}
	for check, n := range told {
		if n > 1 && check != "relays" && check != "pool" { // one for each, and for each IP version
			t.Errorf("doctor tells of %s %d times: %+v", check, n, findings)
		}
	}
}
