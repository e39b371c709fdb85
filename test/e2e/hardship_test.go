package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// local has pings between two pods of a node until the function returned is called, which wants none to be lost.
func local(t *testing.T, from, to *lab.Pod) (end func()) {
	t.Helper()
	wait := lasting(t, from.NS, "icmp", to.IP4(), "--interval", "50ms")
	return func() {
		t.Helper()
		g, err := wait()
		ok(t, err)
		t.Logf("between pods of the node: %d of %d answers, longest gap %.0f ms", g.Received, g.Sent, g.GapMs)
		if g.Received < g.Sent-1 { // the last one may be on its way
			t.Errorf("between pods of the node: %d of %d answers", g.Received, g.Sent)
		}
	}
}

// TestUplinkAway takes the uplink away for 90 s, at the node and behind its router, with a clock that is a day later when it is back. The
// node's pods continue, new ones start, the agent stays, and others are reached again soon.
func TestUplinkAway(t *testing.T) {
	tier.Long(t) // the agent is compiled with a standard library of its own
	beside(t)
	p := newPair(t, lab.EIM, lab.EIM)
	clock, err := p.n1.OwnClock()
	ok(t, err)
	p.n1.Agent.Kill()
	ok(t, p.n1.Start())
	ready(t, p.n1)
	second := pod(t, p.n1, "second")
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	for i, x := range []struct {
		name       string
		away, back func() error
	}{
		{"at the node", func() error { return p.n1.Script("ip link set " + p.n1.Uplink + " down") },
			func() error {
				return p.n1.Script("ip link set "+p.n1.Uplink+" up", "ip route replace default via 192.168.1.1")
			}},
		{"behind the router", func() error { return p.n1.Site.Router.Script("ip link set wan0 down") },
			func() error {
				return p.n1.Site.Router.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr)
			}},
	} {
		t.Run(x.name, func(t *testing.T) {
			pid := p.n1.Agent.PID()
			end := local(t, p.pod1, second)
			ok(t, x.away())
			time.Sleep(30 * time.Second) // sleep: the uplink is down
			ok(t, clock.Set(time.Duration(i+1)*24*time.Hour))
			started := pod(t, p.n1, fmt.Sprintf("meanwhile-%d", i))
			ok(t, p.n1.NS.Ping(t.Context(), started.IP4().String(), 2*time.Second))
			if _, all := verdict(t, p.n1, "status"); len(all) == 0 {
				t.Error("status says nothing of it")
			} else {
				t.Logf("status: %s", all[0].Text)
			}
			time.Sleep(time.Minute) // sleep: the uplink is down
			end()
			ok(t, x.back())
			since := stopwatch(t)
			fair.Eventually(t, 70*time.Second, "the other site is reached", func() error {
				return tryCurl(t.Context(), started.NS, p.pod2, p.pod2.IP4(), started.IP4(), 2*time.Second)
			})
			t.Logf("reached again after %.1f s", since().Seconds())
			curlPods(t, p.pod2, p.pod1, 5*time.Second)
			p.onPaths(t, 70*time.Second, "punched")
			if !p.n1.Agent.Running() || p.n1.Agent.PID() != pid {
				t.Error("the agent has ended")
			}
		})
	}
}

// TestClockStartsIn1970: a node without a clock of its own starts in 1970, with its membership and from its snapshot, and NTP sets the
// clock while it runs. It is a member like others before, and no flow nor path is lost by that.
func TestClockStartsIn1970(t *testing.T) {
	tier.Long(t) // the agent is compiled with a standard library of its own
	beside(t)
	p := newPair(t, lab.EIM, lab.EIM)
	clock, err := p.n1.OwnClock()
	ok(t, err)
	for _, from := range []string{"membership", "snapshot", "snapshot of 1970"} {
		t.Run(from, func(t *testing.T) {
			p.n1.Agent.Kill()
			ok(t, clock.Set(time.Until(time.Date(1970, 1, 1, 0, 0, 20, 0, time.UTC))))
			if from != "membership" {
				ok(t, os.Remove(p.n1.Membership))
			}
			ok(t, p.n1.Start())
			ready(t, p.n1)
			curlPods(t, p.pod1, p.pod2, 5*time.Second)
			curlPods(t, p.pod2, p.pod1, 5*time.Second)
			p.onPaths(t, 30*time.Second, "punched")
			before := p.steady(t)
			wait := pings(t, p.pod1, p.pod2.IP4(), 8*time.Second)
			ok(t, clock.Set(0))
			held(t, []float64{wait()}, worstBack)
			here, err := p.n1.Status(t.Context())
			ok(t, err)
			if is := here.Peer(p.n2.Name); is.Path != before.Path || is.Transport != before.Transport {
				t.Errorf("the path was left: %s %s, before %s %s", is.Path, is.Transport, before.Path, before.Transport)
			}
			// Its records of pods, and what it does about members, from then on.
			ok(t, p.lab.WriteMembership())
			ok(t, p.n1.NS.Ping(t.Context(), pod(t, p.n1, "new-"+strings.ReplaceAll(from, " ", "-")).IP4().String(), 2*time.Second))
			r := p.lab.Relays[0]
			r.Process.Kill()
			ok(t, r.Start())
			ok(t, r.WaitReservations(within(t, 20*time.Second), 2))
			if from == "snapshot" { // the next one starts from what was written in 1970
				ok(t, p.n1.Agent.Stop())
				ok(t, clock.Set(time.Until(time.Date(1970, 1, 1, 0, 0, 20, 0, time.UTC))))
				absent(t, &p.lab.Cluster, 1)
				ok(t, p.lab.WriteMembership())
				ok(t, p.n1.Start())
				ready(t, p.n1)
			}
		})
	}
}

// TestShortOfMemory: the kernel ends an agent for want of memory, again and again. Its node's pods keep their addresses and reach each
// other all the time, new ones start, and with memory enough the agent is back.
func TestShortOfMemory(t *testing.T) {
	tier.Long(t)
	g := newGroup(t, smallMemory)
	p := newPair(t, lab.EIM, lab.EIM)
	second := pod(t, p.n1, "second")
	confined := onDisk(t)
	g.program(t, confined, p.n1.AgentPath())
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	end := local(t, p.pod1, second)
	p.n1.Agent.Kill()
	p.n1.Programs = confined
	addrs := fmt.Sprint(p.pod1.Addrs, second.Addrs)
	limit := func(most int) {
		ok(t, os.WriteFile(filepath.Join(g.dir, g.limit), []byte(fmt.Sprint(most)), 0))
	}
	limit(1 << 20)
	for i := range 3 { // as the service manager starts it
		ok(t, p.n1.Start())
		if err := p.n1.Agent.Wait(within(t, 10*time.Second)); err != nil {
			p.n1.Agent.Kill()
			t.Logf("start %d: 1 MiB is enough to be alive", i)
		}
		ok(t, p.n1.NS.Ping(t.Context(), pod(t, p.n1, fmt.Sprintf("meanwhile-%d", i)).IP4().String(), 2*time.Second))
	}
	kills := g.value(t, g.kills, "oom_kill")
	t.Logf("the kernel ended %d processes of the group", kills)
	if kills == 0 {
		t.Error("the kernel ended nothing: the test shows nothing")
	}
	limit(smallMemory)
	ok(t, p.n1.Start())
	ready(t, p.n1)
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	curlPods(t, p.pod2, p.pod1, 5*time.Second)
	end()
	for _, pod := range []*lab.Pod{p.pod1, second} {
		out, err := pod.Run(t.Context(), "ip", "-o", "addr", "show", "dev", "eth0")
		ok(t, err)
		contains(t, out, pod.IP4().String(), pod.IP6().String())
	}
	t.Logf("the pods have %s", addrs)
	ok(t, p.n1.Agent.Stop())
}

// TestDiskFull: nothing more fits on the disk with the agent's state. A changed membership takes effect, pods
// start, and so does the agent.
func TestDiskFull(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	p := &pair{lab: l}
	p.n1, p.n2 = node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{}), node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	state := p.n1.Config.StateDir
	out, err := exec.Command("sh", "-ec", "d=$(mktemp -d); cp -a "+state+"/. $d; mount -t tmpfs -o size=256k none "+state+"; cp -a $d/. "+state+"; rm -r $d").CombinedOutput()
	if err != nil {
		t.Fatalf("a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() { ok(t, exec.Command("umount", "-l", state).Run()) })
	absent(t, &l.Cluster, 2)
	later := l.Cluster.Nodes[2:]
	l.Cluster.Nodes = l.Cluster.Nodes[:2:2]
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	for i, start := range []bool{false, true} {
		if start {
			ok(t, p.n1.Agent.Stop())
			ok(t, p.n1.Start())
			ready(t, p.n1)
		} else {
			out, _ := exec.Command("dd", "if=/dev/zero", "of="+state+"/hog", "bs=4k").CombinedOutput()
			contains(t, string(out), "No space left")
		}
		name := later[i].Name
		l.Cluster.Nodes = append(l.Cluster.Nodes, later[i])
		ok(t, l.WriteMembership())
		fair.Eventually(t, 10*time.Second, "the changed membership is in force", func() error {
			st, err := p.n1.Status(t.Context())
			if err == nil && st.Peer(name).Node != name {
				err = fmt.Errorf("no %s: %+v", name, st.Peers)
			}
			return err
		})
		q := pod(t, p.n1, name)
		curlPods(t, q, p.pod2, 5*time.Second)
		curlPods(t, p.pod2, p.pod1, 5*time.Second)
	}
	contains(t, p.n1.Agent.Tail(1000), "could not save the membership", "no space left")
}
