package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// former is the commit of version 0.1.0.
const former = "9ffdad197926fcefc51264a34a9849b46eecbf42"

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
	slow(t)
	old := t.TempDir()
	switch err := lab.BuildCommit(within(t, 10*time.Minute), former, old); {
	case errors.Is(err, lab.ErrNoCommit):
		t.Skip("NOT RUN: ", err)
	case err != nil:
		t.Fatal(err)
	}
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
