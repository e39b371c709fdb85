package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// Commits of versions 0.1.0 and 0.2.0, and of the last state with ClusterNetworkPolicies and a webhook, which no version had.
const (
	release010 = "9ffdad197926fcefc51264a34a9849b46eecbf42"
	release020 = "34de8396da5a170b76b155768c0f81f61d0b0b74"
	unreleased = "7d87c7ca2640c9ca8d97ff642a649887108350ff"
)

// programsOf builds a commit's programs.
func programsOf(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	switch err := lab.BuildCommit(within(t, 10*time.Minute), commit, dir); {
	case errors.Is(err, lab.ErrNoCommit):
		t.Skip("NOT RUN: ", err)
	case err != nil:
		t.Fatal(err)
	}
	return dir
}

// rolling is a mesh in which one program after the other changes its version.
type rolling struct {
	lab   *lab.Lab
	nodes []*lab.Node
	pods  []*lab.Pod // one of each node
	made  int        // further pods: a pod of the same name would get the address again
}

// TestUpgrade runs a mesh of version 0.1.0 and exchanges one program after the other for today's, in both orders: pods
// stay, every pair talks after every step. Then a site steps back offline.
func TestUpgrade(t *testing.T) {
	tier.Long(t)
	old := programsOf(t, release010)
	for name, relaysFirst := range map[string]bool{"RelaysFirst": true, "AgentsFirst": false} {
		t.Run(name, func(t *testing.T) {
			r := newRolling(t, old)
			relays := func() {
				for _, x := range r.lab.Relays {
					r.relay(t, x, "")
				}
			}
			if relaysFirst {
				relays()
			}
			for i, n := range r.nodes {
				r.agent(t, n, "", i%2 == 0)
			}
			if !relaysFirst {
				relays()
			}
			r.back(t, old)
		})
	}
}

// TestUpgradeKeepsPaths exchanges the programs of version 0.2.0, one after the other: every path stays what it was, but VXLAN
// across a router. That pair takes the tunnel, and the note names the line with which it is back.
func TestUpgradeKeepsPaths(t *testing.T) {
	tier.Long(t)
	old := programsOf(t, release020)
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site-a", lab.EIM)
	near, next, routed := node(t, s, "edge-1", lab.NodeOptions{}), node(t, s, "edge-2", lab.NodeOptions{}), node(t, s, "edge-3", lab.NodeOptions{})
	far, public := node(t, site(t, l, "site-b", lab.EIM), "edge-4", lab.NodeOptions{}), cloud(t, l, "cloud-1", lab.NodeOptions{})
	ownSubnet(t, routed)
	l.Relays[0].Programs = old
	r := &rolling{lab: l, nodes: l.Nodes()}
	for _, n := range r.nodes {
		n.Programs = old
	}
	startAll(t, l)
	for _, n := range r.nodes {
		r.pods = append(r.pods, pod(t, n, "first-of-"+n.Name))
	}
	paths := func(when string, others ...string) {
		t.Helper()
		r.talk(t, when, r.pods)
		ctx := within(t, 40*time.Second)
		for _, x := range []struct {
			a, b  *lab.Node
			kinds []string
		}{{near, next, []string{"native"}}, {near, routed, others}, {near, public, []string{"direct", "punched"}}, {near, far, []string{"direct", "punched"}}} { // 0.2.0 has another word for some
			for _, n := range [][2]*lab.Node{{x.a, x.b}, {x.b, x.a}} {
				if _, err := n[0].WaitPath(ctx, n[1], x.kinds...); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
	}
	paths("all of 0.2.0", "vxlan")
	r.relay(t, l.Relays[0], "")
	tunnel := []string{"direct", "punched", "relayed"}
	for i, n := range r.nodes { // edge-1 is the first: it has no VXLAN with edge-3 of 0.2.0 any longer
		r.agent(t, n, "", i == 0)
		paths(n.Name+" exchanged", tunnel...)
	}
	st, err := near.Status(t.Context())
	ok(t, err)
	named := regexp.MustCompile(`lan: \{trusted: \[([^ \]]+)\]\}`)
	for _, f := range st.Findings {
		if m := named.FindStringSubmatch(f.Remedy); f.Check == "lan-trusted" && f.Severity == "note" && strings.Contains(f.Detail, routed.Name) && m != nil {
			l.Cluster.LAN = &lab.Trust{Trusted: m[1:]}
		}
	}
	if l.Cluster.LAN == nil {
		t.Fatalf("no note names the line to add for %s: %+v", routed.Name, st.Findings)
	}
	ok(t, l.WriteMembership())
	paths("with the line that the note names", "vxlan")
}

// TestForwardingMeetsOlder has a relay, or a peer, of an older version, which know no forwarding: circuits carry all, in both
// directions, and what can be forwarded is once that program is exchanged again.
func TestForwardingMeetsOlder(t *testing.T) {
	tier.Long(t)
	for version, commit := range map[string]string{"0.1.0": release010, "0.2.0": release020} {
		old := programsOf(t, commit)
		for who, want := range map[string]string{
			"relay": "in the circuit: the relay's version forwards no packets",
			"peer":  "in the circuit: the peer takes no sealed packets",
		} {
			t.Run(version+"/"+who, func(t *testing.T) { meetOlder(t, old, who, want) })
		}
	}
}

// meetOlder exchanges the relay, or the peer, for programs in old under flows in both directions, and back. want is what status says
// of datagrams meanwhile at the node that offers sealed packets; the other one says that there are none yet.
func meetOlder(t *testing.T, old, who, want string) {
	p := newRelayedPair(t, 1)
	exchange := func(dir string) {
		t.Helper()
		if r := p.lab.Relays[0]; who == "relay" {
			ok(t, r.Process.Stop())
			r.Programs = dir
			ok(t, r.Start())
			ok(t, r.WaitUp(within(t, 5*time.Second)))
			ok(t, r.WaitReservations(within(t, 20*time.Second), 2))
		} else {
			ok(t, p.n2.Agent.Stop())
			p.n2.Programs = dir
			ok(t, p.n2.Start())
			ready(t, p.n2)
		}
		curlPods(t, p.pod1, p.pod2, 10*time.Second)
		curlPods(t, p.pod2, p.pod1, 10*time.Second)
	}
	for _, to := range [][2]*lab.Pod{{p.pod1, p.pod2}, {p.pod2, p.pod1}} {
		end := lasting(t, to[0].NS, "icmp", to[1].IP4(), "--interval", "50ms")
		defer func() { _, _ = end() }()
	}
	p.forwarded(t)
	exchange(old)
	new := map[string][]*lab.Node{"relay": {p.n1, p.n2}, "peer": {p.n1}}[who]
	for _, n := range new {
		ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error {
			other := p.n2
			if n == p.n2 {
				other = p.n1
			}
			st, err := n.Status(t.Context())
			if peer := st.Peer(other.Name); err == nil && (peer.Path != "relayed" || peer.Datagrams != want && peer.Datagrams != "in the circuit: no datagrams yet") {
				err = fmt.Errorf("%s: %+v", n.Name, peer)
			}
			return err
		}))
	}
	exchange("")
	p.forwarded(t)
}

// newRolling starts two sites, a node in the cloud and two relays, all of them with the programs in dir.
func newRolling(t *testing.T, dir string) *rolling {
	l := newLab(t)
	relay(t, l, "relay-1")
	relay(t, l, "relay-2")
	a, b := site(t, l, "site-a", lab.EIM), site(t, l, "site-b", lab.EIM)
	r := &rolling{lab: l, nodes: []*lab.Node{
		node(t, a, "edge-1", lab.NodeOptions{}), node(t, a, "edge-2", lab.NodeOptions{}),
		node(t, b, "edge-3", lab.NodeOptions{}), cloud(t, l, "cloud-1", lab.NodeOptions{}),
	}}
	for _, x := range l.Relays {
		x.Programs = dir
	}
	for _, n := range r.nodes {
		n.Programs = dir
	}
	startAll(t, l)
	for _, n := range r.nodes {
		r.pods = append(r.pods, pod(t, n, "first-of-"+n.Name))
	}
	r.talk(t, "all of the older version", r.pods)
	return r
}

// talk wants every pair of pods to reach each other, with its own address seen.
func (r *rolling) talk(t *testing.T, when string, pods []*lab.Pod) {
	t.Helper()
	elapsed := stopwatch(t)
	ctx := within(t, 20*time.Second)
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			for _, addrs := range pairs(from, to) {
				err := lab.Until(ctx, 50*time.Millisecond, func() error {
					return tryCurl(ctx, from.NS, to, addrs[1], addrs[0], 2*time.Second)
				})
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
		}
	}
	t.Logf("%s: every pair after %v", when, elapsed().Round(10*time.Millisecond))
}

func (r *rolling) relay(t *testing.T, x *lab.Relay, dir string) {
	t.Helper()
	ok(t, x.Process.Stop())
	x.Programs = dir
	ok(t, x.Start())
	ok(t, x.WaitUp(within(t, 5*time.Second)))
	ok(t, x.WaitReservations(within(t, 20*time.Second), len(r.nodes)))
	r.talk(t, x.Name+" exchanged", r.pods)
}

// agent exchanges a node's agent; with the snapshot the new one finds rubbish where the membership was, and has nothing
// but what the other version left.
func (r *rolling) agent(t *testing.T, n *lab.Node, dir string, snapshot bool) {
	t.Helper()
	ok(t, n.Agent.Stop())
	n.Programs = dir
	good, err := os.ReadFile(n.Membership)
	ok(t, err)
	if snapshot {
		ok(t, lab.ReplaceFile(n.Membership, "nodes: {"))
	}
	r.start(t, n)
	r.talk(t, fmt.Sprintf("%s exchanged, from its snapshot: %t", n.Name, snapshot), r.pods)
	ok(t, lab.ReplaceFile(n.Membership, string(good)))
	r.records(t, n)
}

// start starts a node's agent where pods are already, so that its file of the node's blocks is there before.
func (r *rolling) start(t *testing.T, n *lab.Node) {
	t.Helper()
	ok(t, os.Remove(filepath.Join(n.Config.RuntimeDir, "subnet.json")))
	ok(t, n.Start())
	ok(t, n.WaitPods(within(t, 10*time.Second)))
}

// records holds that the plugin reads what the other version's wrote of addresses: a new pod gets none that is taken,
// and the first is deleted and checked as if it were its own.
func (r *rolling) records(t *testing.T, n *lab.Node) {
	t.Helper()
	r.made++
	p := pod(t, n, fmt.Sprintf("%d-of-%s", r.made, n.Name))
	for _, other := range r.pods {
		if p.IP4() == other.IP4() || p.IP6() == other.IP6() {
			t.Errorf("%s: %v was given twice", n.Name, p.Addrs)
		}
	}
	r.talk(t, "a new pod on "+n.Name, []*lab.Pod{p, r.pods[0], r.pods[len(r.pods)-1]})
	for i, first := range r.pods {
		if first.Node == n {
			ok(t, first.Delete(t.Context()))
			r.pods[i] = p
		}
	}
}

// back gives a site without its uplink the older version again, one agent after the other; then the uplink returns.
func (r *rolling) back(t *testing.T, dir string) {
	t.Helper()
	s := r.nodes[0].Site
	ok(t, s.Router.Script("ip link set wan0 down"))
	inside := r.pods[:2]
	r.talk(t, "without uplink", inside)
	for _, n := range r.nodes[:2] {
		ok(t, n.Agent.Stop())
		ok(t, n.Script("ip link delete edgemesh-vx")) // as docs/upgrade.md says
		n.Programs = dir
		ok(t, lab.ReplaceFile(n.Membership, "nodes: {"))
		r.start(t, n)
		r.talk(t, n.Name+" stepped back without uplink", inside)
	}
	ok(t, s.Router.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
	r.talk(t, "the uplink is back", r.pods)
	for _, n := range r.nodes[:2] {
		r.records(t, n)
	}
}
