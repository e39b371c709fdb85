package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// asked writes what a newcomer sees who has a question and runs one command, for readers who know nothing else.
type asked struct {
	dir string
	n   int
}

// see runs the command on a node until its output has said, and writes it down.
func (a *asked) see(t *testing.T, question string, n *lab.Node, said string, command ...string) {
	t.Helper()
	a.n++
	var out string
	err := lab.Until(within(t, 60*time.Second), 500*time.Millisecond, func() error {
		stdout, stderr, err := n.AgentCommand(within(t, 30*time.Second), append(command, "--runtime-dir", n.Config.RuntimeDir)...)
		if out = stdout + stderr; !strings.Contains(out, said) {
			return fmt.Errorf("no %q in: %s (%v)", said, out, err) //nolint:errorlint // it may be none
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	text := fmt.Sprintf("Question: %s\n\n%s# edgemesh-agent %s\n%s", question, n.Name, strings.Join(command, " "), out)
	ok(t, os.WriteFile(filepath.Join(a.dir, fmt.Sprintf("q%02d.txt", a.n)), []byte(text), 0o644))
}

// TestQuestions makes twelve troubles, one after the other, and writes what one command says of each into the directory
// EDGEMESH_QUESTIONS: a reader with fresh eyes has to answer each question from it. Words are judged by people, not here.
func TestQuestions(t *testing.T) {
	tier.Long(t)
	a := &asked{dir: os.Getenv("EDGEMESH_QUESTIONS")}
	if a.dir == "" {
		t.Skip("for readers: EDGEMESH_QUESTIONS=DIR")
	}
	l := newLab(t)
	r := relay(t, l, "relay")
	r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443/ws") // tells the time
	shop, depot := site(t, l, "shop", lab.Symmetric), site(t, l, "depot", lab.Symmetric)
	one, till := node(t, shop, "edge-1", lab.NodeOptions{}), node(t, shop, "edge-2", lab.NodeOptions{})
	far, cloud := node(t, depot, "edge-3", lab.NodeOptions{}), cloud(t, l, "cloud-1", lab.NodeOptions{PodCIDRs: []string{"10.244.90.0/30"}}) // one address
	policies := filepath.Join(one.Dir, "policies.yaml")
	l.Cluster.Policies = policies
	ok(t, os.WriteFile(policies, nil, 0o600))
	dns, at, err := l.AddStranger("dns", 1)
	ok(t, err)
	ok(t, dns.Script("iptables -w -A INPUT -p udp --dport 53 -j DROP"))
	startAll(t, l)
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range l.Nodes() {
		pods[n] = pod(t, n, "web-"+n.Name)
	}
	talk := func() {
		t.Helper()
		for _, n := range []*lab.Node{till, far, cloud} {
			curlPods(t, pods[one], pods[n], 30*time.Second)
		}
		ok(t, lab.Until(within(t, 90*time.Second), 500*time.Millisecond, func() error {
			line, all := verdict(t, one, "status")
			if !strings.HasPrefix(line, "OK: ") {
				return fmt.Errorf("before: %s: %+v", line, all)
			}
			return nil
		}))
	}
	busy := func(to *lab.Node) func() {
		end := lasting(t, pods[one].NS, "icmp", pods[to].IP4(), "--interval", "200ms")
		return func() { _, _ = end() }
	}
	talk()
	_, err = one.WaitPath(within(t, 30*time.Second), till, "native")
	ok(t, err)

	a.see(t, "Is this node well, and how does it reach the others?", one, "OK: ", "status")

	end := busy(far)
	ok(t, far.Agent.Stop())
	a.see(t, "Pods on edge-3 do not answer. Why, and what do I do?", one, "is offline", "status")
	end()
	ok(t, far.Start())
	ready(t, far)
	talk()

	end = busy(far)
	a.see(t, "Why is edge-3 slow?", one, "both NATs give each destination another port", "status", "edge-3")
	end()

	end = busy(far)
	r.Process.Kill()
	a.see(t, "Nothing goes to edge-3. Is it me, or the relay?", one, "does not answer", "doctor")
	end()
	ok(t, r.Start())
	ready(t, l.Nodes()...)
	talk()

	end = busy(cloud)
	ok(t, one.Script("ip link set eth0 down"))
	a.see(t, "No pod of other nodes answers. What do I do now?", one, "this node is cut off", "status")
	end()
	ok(t, one.Script("ip link set eth0 up", "ip route replace default via 192.168.1.1"))
	ready(t, one)
	talk()

	drop := "iptables -w -I FORWARD 1 -p tcp -d " + lab.DefaultRange4 + " -j DROP"
	ok(t, one.Script(drop))
	a.see(t, "curl from my pod to "+pods[far].IP4().String()+" hangs, ping works. Why?", one, "drops forwarded packets", "doctor", pods[far].IP4().String())
	ok(t, one.Script(strings.Replace(drop, "-I FORWARD 1", "-D FORWARD", 1)))
	talk()

	ok(t, lab.ReplaceFile(policies, policyFile(strings.ReplaceAll(onlyNear, "{app: web}", "{app: "+pods[one].Name+"}"), pods[one], pods[far])))
	a.see(t, "Pods of this node cannot reach "+pods[one].IP4().String()+" on edge-1, since today. Why?", far, "only-near", "doctor", pods[one].IP4().String())
	ok(t, os.WriteFile(policies, nil, 0o600))
	talk()

	a.see(t, "A second pod on this node stays in ContainerCreating. Why?", cloud, "every address", "doctor")

	udp := []string{"iptables -w -I FORWARD -p udp -j DROP"}
	ok(t, shop.Router.Script(udp...))
	ok(t, one.Agent.Stop())
	ok(t, one.Start())
	ready(t, one)
	curlPods(t, pods[one], pods[cloud], 30*time.Second)
	end = busy(cloud)
	a.see(t, "Everything is slower than it was. What is wrong at this site?", one, "but not by UDP", "doctor")
	end()
	ok(t, shop.Router.Script(strings.Replace(udp[0], "-I", "-D", 1)))
	ok(t, lab.Until(within(t, 60*time.Second), time.Second, func() error { // what a probe has found stays until the next one
		if f, found := wrong(t, one); found {
			return fmt.Errorf("%+v", f)
		}
		return nil
	}))
	talk()

	ok(t, one.Script("nft add table netdev isolation", "nft add chain netdev isolation in '{ type filter hook ingress device eth0 priority -500; }'",
		"nft add rule netdev isolation in ether saddr "+macOf(t, till, "eth0")+" drop")) // as a Wi-Fi does with its clients
	end = busy(till)
	a.see(t, "edge-2 stands beside this node, on the same LAN. Why is it not native?", one, "same LAN?", "status", "edge-2")
	end()
	ok(t, one.Script("nft delete table netdev isolation"))
	talk()

	byName(t, l, one, r)
	ok(t, one.Agent.Stop())
	_ = os.Remove(filepath.Join(one.Config.StateDir, "addresses.json"))
	startBy(t, one, resolver(t, one, at.String()))
	a.see(t, "After a reboot this node reaches nobody. Is it me, or the relay?", one, "no name server says its address", "doctor")

	ok(t, one.Agent.Stop())
	a.see(t, "No new pod starts on edge-1. What do I do now?", one, "no agent is running here", "status")
	if a.n != 12 {
		t.Errorf("%d questions", a.n)
	}
}
