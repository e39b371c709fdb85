package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
	"edgemesh/tunnel/p2p/who/clones"
)

// knowsClone is how long machines may take to know of a clone.
const knowsClone = 10 * time.Second

// copyOf puts a copy of a node on another site: its state directory, without what it holds while it runs.
func copyOf(t *testing.T, n *lab.Node, s *lab.Site) *lab.Node {
	t.Helper()
	c := node(t, s, "copy", lab.NodeOptions{NoAgent: true, PodCIDRs: n.PodCIDRs})
	c.Config.NodeName, c.PeerID = n.Name, n.PeerID
	ok(t, c.Script("cp -a "+n.Config.StateDir+"/. "+c.Config.StateDir, "rm -f "+c.Config.StateDir+"/agent.lock"))
	return c
}

// otherHardware has a node's key made on hardware that is not this machine's.
func otherHardware(t *testing.T, n *lab.Node) {
	t.Helper()
	path := filepath.Join(n.Config.StateDir, clones.HardwareFile)
	b, err := os.ReadFile(path)
	ok(t, err)
	var f struct {
		Peer string        `json:"peer"`
		Made clones.Traits `json:"made"`
	}
	ok(t, json.Unmarshal(b, &f))
	if len(f.Made) == 0 {
		t.Skip("NOT RUN: nothing is known of this machine's hardware")
	}
	for kind := range f.Made {
		f.Made[kind] = []string{"another"}
	}
	b, err = json.Marshal(f)
	ok(t, err)
	ok(t, os.WriteFile(path, b, 0o600))
}

// cloneFinding is what a node says of clones; subject is the peer's name, "" for itself.
func cloneFinding(t *testing.T, n *lab.Node, subject string) (f findings.Finding, found bool) {
	t.Helper()
	_, all := verdict(t, n, "status")
	for _, f := range all {
		if f.ID == "clone" && f.Subject == subject {
			return f, true
		}
	}
	return f, false
}

// noClone wants that nobody in the lab has taken a node for a clone.
func noClone(t *testing.T, l *lab.Lab) {
	t.Helper()
	if logs := l.Logs(10000); strings.Contains(logs, "two machines use one node's key") || strings.Contains(logs, "another machine has this node's key") {
		t.Errorf("a node was taken for a clone:\n%s", logs)
	}
}

// TestClone: the copy of a node comes up at another site, behind another NAT. Within 10 s it, the original and a peer say so, by
// name and address, and the original has all of its traffic: 8 of 8.
func TestClone(t *testing.T) {
	for _, tc := range []struct {
		name      string
		copyFirst bool // it is known first, and its hardware is not the key's
	}{{"known first", false}, {"hardware", true}} {
		t.Run(tc.name, func(t *testing.T) {
			tier.Long(t)
			beside(t)
			l := newLab(t)
			relay(t, l, "relay")
			original := node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{})
			peer := node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
			away := site(t, l, "site-3", lab.EIM)
			startAll(t, l)
			_ = pod(t, original, "first") // the copy has one with this address
			to, from := pod(t, original, "server"), pod(t, peer, "client")
			curlPods(t, from, to, 3*time.Second)
			noClone(t, l)
			c := copyOf(t, original, away)
			ok(t, l.WriteMembership())
			if tc.copyFirst {
				original.Agent.Kill()
				otherHardware(t, c)
			}
			ok(t, c.Start())
			ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error { _, err := c.Status(t.Context()); return err }))
			own := pod(t, c, "own")
			if tc.copyFirst {
				ok(t, ping(t, own, from.IP4(), 3*time.Second))
				time.Sleep(2 * time.Second) // sleep: the copy is known first
				ok(t, original.Start())
				ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error { _, err := original.Status(t.Context()); return err }))
			}
			began := time.Now()
			_ = own.Ping(within(t, time.Second), from.IP4().String(), time.Second)
			wants := func(n *lab.Node, subject string, severity findings.Severity, parts ...string) {
				t.Helper()
				ok(t, lab.Until(within(t, knowsClone), 100*time.Millisecond, func() error {
					f, found := cloneFinding(t, n, subject)
					for _, p := range append(parts, "edge-1") {
						if !found || f.Severity != severity || !strings.Contains(f.Text, p) {
							return fmt.Errorf("%s says %+v; want %s, with %v", n.Name, f, severity, parts)
						}
					}
					return nil
				}))
				t.Logf("%s: %.1f s", n.Name, time.Since(began).Seconds())
			}
			wants(original, "", findings.Warning, away.WAN.String(), "stands by")
			wants(c, "", findings.Broken, "stands by")
			wants(peer, "edge-1", findings.Warning, "stands by")
			if !strings.Contains(l.Logs(1000), "two machines use one node's key") {
				t.Error("the relay's log does not say so")
			}
			curlPods(t, from, to, 5*time.Second)
			for i := range 8 {
				if err := ping(t, from, to.IP4(), time.Second); err != nil {
					t.Errorf("ping %d of 8 to the original: %v", i+1, err)
				}
			}
			if err := own.Ping(within(t, time.Second), from.IP4().String(), time.Second); err == nil {
				t.Error("the one that stands by reaches a peer")
			}
			line, all := verdict(t, c, "status")
			if !strings.HasPrefix(line, "TROUBLE: another machine runs as edge-1") || len(findings.Only(findings.Causes(all), findings.Broken)) != 1 {
				t.Errorf("the one that stands by says %q: %+v", line, all)
			}
		})
	}
}

// TestNoClone: a node that is killed while its uplink is cut leaves half-open connections at the relay and its peers. It starts
// again at another address, or with another network card, and is no clone.
func TestNoClone(t *testing.T) {
	tier.Long(t)
	beside(t)
	const times = 30
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site-1", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	peer := node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	startAll(t, l)
	to, from := pod(t, n, "server"), pod(t, peer, "client")
	curlPods(t, from, to, 3*time.Second)
	for i := range times {
		ok(t, s.Router.Script("ip link set wan0 down"))
		n.Agent.Kill()
		ok(t, s.Router.Script("conntrack -F 2>/dev/null || true", "ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
		if i%2 == 1 {
			ok(t, s.SetWAN(netip.AddrFrom4([4]byte{5, 5, 1, byte(100 + i)})))
		}
		if i%3 == 2 {
			ok(t, n.Script(fmt.Sprintf("ip link set %[1]s down; ip link set %[1]s address 02:00:00:00:77:%02[2]x; ip link set %[1]s up; ip route replace default via 192.168.1.1", n.Uplink, i)))
		}
		ok(t, n.Start())
		ready(t, n)
		curlPods(t, to, from, 10*time.Second)
	}
	time.Sleep(time.Second) // sleep: no clone is found meanwhile
	noClone(t, l)
}
