package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestFaultMTUHole: large packets vanish between two nodes of one LAN. Each time doctor names it first; once both interfaces
// have the MTU that it asks for, doctor is content and the native path is back.
func TestFaultMTUHole(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newLANPair(t, nil)
	page := readNewcomer(t)
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	p.both(t, 30*time.Second, "native")
	show := newShown(t, p.n1, p.n1, p.n2)
	mtu := func(bytes string) {
		for _, n := range []*lab.Node{p.n1, p.n2} {
			ok(t, n.NS.Script("ip link set "+n.Uplink+" mtu "+bytes))
		}
	}
	for round := range faultRounds {
		t.Run(fmt.Sprint(round+1), func(t *testing.T) {
			if f, found := wrong(t, p.n1); found {
				t.Fatalf("before: %+v", f)
			}
			undo := p.block(t, "ip saddr 10.244.0.0/16 meta length gt 1400", "udp dport 5210 meta length gt 1400")
			curlPods(t, p.pod1, p.pod2, 10*time.Second)
			first(t, p.n1, "mtu", "warning")
			show.await(t, p.n1, "mtu", true)
			page.run(t, "large packets vanish on the LAN", p.n1, p.n2, p.pod2.IP4())
			mtu("1400")
			p.both(t, 60*time.Second, "native")
			healed(t, p.pod1, p.pod2, p.n1, p.n2)
			show.await(t, p.n1, "mtu", false)
			undo()
			mtu("1500")
			p.both(t, 30*time.Second, "native")
		})
	}
}

// TestFaultProxy: a site's proxy refuses user and password (407). Each time doctor names it first; once they are in the file,
// the running agent is back without a restart.
func TestFaultProxy(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443")
	l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+"/tcp/443/p2p/"+r.PeerID)
	p := &pair{lab: l}
	shut := site(t, l, "site-1", lab.EIM)
	p.n1, p.n2 = node(t, shut, "edge-1", lab.NodeOptions{}), node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	proxy := onlyProxy(t, l, shut, "edge secret-1")
	throughProxy(t, p.n1, "edge:secret-1")
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	page, show := readNewcomer(t), newShown(t, p.n1, p.n1, p.n2)
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	password := func(is string) { ok(t, os.WriteFile(p.n1.Config.ProxyUser, []byte("edge:"+is+"\n"), 0o600)) }
	for round := range faultRounds {
		t.Run(fmt.Sprint(round+1), func(t *testing.T) {
			if f, found := wrong(t, p.n1); found && f.Severity == "broken" {
				t.Fatalf("before: %+v", f)
			}
			password("secret-2")
			proxy.Kill()
			proxy.start(t)
			first(t, p.n1, "proxy", "broken")
			show.await(t, p.n1, "proxy", true)
			page.run(t, "the proxy refuses", p.n1, p.n2, p.pod2.IP4())
			password("secret-1")
			start := time.Now()
			ok(t, lab.Until(within(t, 60*time.Second), 100*time.Millisecond, func() error {
				if f, found := wrong(t, p.n1); found && f.Severity == "broken" {
					return fmt.Errorf("after the remedy: %+v", f)
				}
				return nil
			}))
			curlPods(t, p.pod1, p.pod2, 10*time.Second)
			show.await(t, p.n1, "proxy", false)
			t.Logf("well again %v after the password was corrected", time.Since(start).Round(time.Millisecond))
		})
	}
}
