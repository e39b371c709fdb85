package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// policyFile is a file of policies with these pods: labels app by name.
func policyFile(policies string, pods ...*lab.Pod) string {
	var b strings.Builder
	b.WriteString("kind: Namespace\nmetadata: {name: default}\n")
	for _, p := range pods {
		var ips []string
		for _, a := range p.Addrs {
			ips = append(ips, fmt.Sprintf("{ip: %q}", a))
		}
		fmt.Fprintf(&b, "---\nkind: Pod\nmetadata: {namespace: default, name: %s, labels: {app: %[1]s}}\nstatus: {podIPs: [%s]}\n", p.Name, strings.Join(ips, ", "))
	}
	return b.String() + policies
}

// onlyNear allows web nothing but HTTP from near, in both directions of policies.
const onlyNear = `---
kind: NetworkPolicy
apiVersion: networking.k8s.io/v1
metadata: {namespace: default, name: only-near}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: near}}}]
    ports: [{port: 9376}]
`

// TestPolicy holds that NetworkPolicies from a file are enforced: between pods of one node and over the tunnel, for new pods by the
// plugin, and from the first moment of an offline start.
func TestPolicy(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n1, n2 := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	file := filepath.Join(n1.Dir, "policies.yaml")
	l.Cluster.Policies = file
	ok(t, os.WriteFile(file, []byte("kind: NetworkPolicy\n"), 0o600)) // not valid: nothing is known at the first start
	startAll(t, l)
	web, near, far := pod(t, n1, "web"), pod(t, n1, "near"), pod(t, n2, "far")

	passes := func(from *lab.Pod, to netip.Addr) error {
		_, err := from.Get(t.Context(), to, 300*time.Millisecond)
		return err
	}
	refused := func(what string, from, to *lab.Pod) {
		t.Helper()
		ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
			for _, a := range to.Addrs {
				if passes(from, a) == nil {
					return fmt.Errorf("%s: %s reaches %s", what, from.Name, to.Name)
				}
			}
			return nil
		}))
	}
	refused("first start", near, web)
	ok(t, lab.ReplaceFile(file, ""))
	curlPods(t, near, web, 5*time.Second)
	curlPods(t, far, web, 5*time.Second)
	ok(t, lab.ReplaceFile(file, policyFile(onlyNear, web, near, far)))
	refused("over the tunnel", far, web)
	refused("egress on the same node", web, near)
	curlPods(t, near, web, 2*time.Second)
	curlPods(t, web, web, 2*time.Second)
	curl(t, n1.NS, web, web.IP4(), netip.Addr{}, 2*time.Second) // its own node

	out, _, err := n1.AgentCommand(t.Context(), "policy", "default/web", "--runtime-dir", n1.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, file, "ingress: isolated by default/only-near", "accepted by default/only-near:", far.IP4().String()+" to "+web.IP4().String()+", TCP port 9376")
	t.Run("Shown", func(t *testing.T) {
		tier.Long(t)
		captured := make(chan string, 1)
		go func() {
			out, more, err := n1.AgentCommand(t.Context(), "capture", "--pod", web.IP4().String(), "--duration", "3s", "--runtime-dir", n1.Config.RuntimeDir)
			captured <- fmt.Sprint(out, more, err)
		}()
		time.Sleep(500 * time.Millisecond) // sleep: the capture begins
		noAnswer(t, far.NS, web.IP4(), "over the tunnel")
		noAnswer(t, web.NS, far.IP4(), "egress over the tunnel")
		contains(t, <-captured, "TCP, 60 bytes  [peer edge-2, path ", ", dropped here by NetworkPolicy default/only-near]",
			fmt.Sprintf("never sent: %s to %s, TCP port 9376, ", web.IP4(), far.IP4()), "dropped by NetworkPolicy default/only-near")
		there, _, _ := n2.AgentCommand(t.Context(), "doctor", web.IP4().String(), "--runtime-dir", n2.Config.RuntimeDir)
		contains(t, there, "ingress is isolated by default/only-near, and none of them accepts that")
		here, _, _ := n1.AgentCommand(t.Context(), "doctor", far.IP4().String(), "--runtime-dir", n1.Config.RuntimeDir)
		contains(t, here, fmt.Sprintf("dropped within the last minute: %s to %s, TCP port 9376, egress of default/web by default/only-near", web.IP4(), far.IP4()))
	})
	t.Run("Broken", func(t *testing.T) {
		tier.Long(t)
		ok(t, lab.ReplaceFile(file, "kind: NetworkPolicy\nmetadata: {namespace: default, name: typo}\nspec: {ingres: []}\n"))
		ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
			if log := n1.Agent.Tail(1 << 20); !strings.Contains(log, file) || !strings.Contains(log, "default/typo") || !strings.Contains(log, "ingres") {
				return fmt.Errorf("the log does not name file, policy and field")
			}
			return nil
		}))
		refused("with a broken file", far, web)
		ok(t, lab.ReplaceFile(file, policyFile(onlyNear, web, near, far)))
	})
	t.Run("NewPodIsClosed", func(t *testing.T) {
		fresh := pod(t, n1, "fresh")
		refused("a pod that the file does not know", near, fresh)
		ok(t, lab.ReplaceFile(file, policyFile(onlyNear, web, near, far, fresh)))
		curlPods(t, near, fresh, 5*time.Second)
	})
	t.Run("PluginAlone", func(t *testing.T) {
		tier.Long(t)
		ok(t, n1.Agent.Stop())
		alone := pod(t, n1, "alone")
		for _, a := range alone.Addrs {
			noAnswer(t, near.NS, a, "a pod that was made while no agent ran")
		}
		ok(t, alone.Delete(t.Context()))
		out, err := n1.Run(t.Context(), "nft", "list", "table", "inet", "edgemesh-policy")
		ok(t, err)
		for _, a := range alone.Addrs {
			if strings.Contains(out, a.String()+" :") {
				t.Errorf("DEL left %s:\n%s", a, out)
			}
		}
	})
	t.Run("PowerCut", func(t *testing.T) {
		ok(t, os.Remove(file))
		ok(t, os.Remove(n1.Membership))
		ok(t, n1.Script("ip link set eth0 down || ip link set wan0 down"))
		for range map[bool]int{false: 1, true: 20}[tier.IsLong()] {
			if powerCut(t, n1, &web, &near, refused); t.Failed() {
				return
			}
		}
		cut(t, n1, web, near)
		ok(t, os.WriteFile(filepath.Join(n1.Config.StateDir, "policies.json"), []byte("{"), 0o600))
		ok(t, n1.Start())
		web, near = comeBack(t, n1, web), comeBack(t, n1, near)
		ok(t, web.Serve(within(t, 5*time.Second)))
		refused("with a torn copy", near, web)
	})
}

// cut ends the node in an instant, with its pods.
func cut(t *testing.T, n *lab.Node, pods ...*lab.Pod) {
	t.Helper()
	n.Agent.Kill()
	for _, p := range pods {
		ok(t, p.Delete(t.Context())) // as kubelet does it after the boot
	}
	ok(t, n.Script("nft flush ruleset", "ip link del edgemesh-br", "conntrack -F"))
	ok(t, os.RemoveAll(n.Config.RuntimeDir))
}

// comeBack makes a pod as soon as the node can, at the addresses that it had.
func comeBack(t *testing.T, n *lab.Node, old *lab.Pod) (made *lab.Pod) {
	t.Helper()
	ok(t, lab.Until(within(t, 10*time.Second), time.Millisecond, func() (err error) { made, err = n.AddPod(t.Context(), old.Name); return err }))
	if !slices.Equal(made.Addrs, old.Addrs) {
		t.Fatalf("%s had %v, and has %v", old.Name, old.Addrs, made.Addrs)
	}
	return made
}

// powerCut ends the node in an instant and boots it offline: no packet against the policy passes, from the moment in which the pod has an
// address, and what it allows does.
func powerCut(t *testing.T, n *lab.Node, web, near **lab.Pod, refused func(what string, from, to *lab.Pod)) {
	t.Helper()
	cut(t, n, *web, *near)
	ok(t, n.Start())
	*near = comeBack(t, n, *near)
	against(t, *web, []*lab.Pod{*near}, func() {
		*web = comeBack(t, n, *web)
		ok(t, (*web).Serve(within(t, 5*time.Second)))
		ok(t, (*near).Serve(within(t, 5*time.Second)))
		time.Sleep(200 * time.Millisecond) // sleep: packets continue
	})
	refused("offline", *web, *near)
	curlPods(t, *near, *web, 2*time.Second)
	curl(t, n.NS, *web, (*web).IP4(), netip.Addr{}, 2*time.Second)
}

// against holds that no echo request and no datagram of these pods is answered while do runs: 100 a second of each.
func against(t *testing.T, to *lab.Pod, from []*lab.Pod, do func()) {
	t.Helper()
	if answers := passing(t, to, from, do); answers != (passed{}) {
		t.Errorf("passed against a policy: %+v", answers)
	}
}

// passed are answers.
type passed struct{ pings, datagrams int }

// passing counts them.
func passing(t *testing.T, to *lab.Pod, from []*lab.Pod, do func()) (n passed) {
	t.Helper()
	var pings, datagrams []*lab.Process
	for _, p := range from {
		for i, a := range to.Addrs {
			name := fmt.Sprint(p.Full, i, "-", time.Now().UnixNano())
			ping, err := p.Start("pings-"+name, "ping", "-n", "-i", "0.01", "-W", "1", a.String())
			ok(t, err)
			gaps, err := p.StartTool("datagrams-"+name, "gaps", "--proto", "udp", "--interval", "10ms", "--linger", "0s", "--duration", "1h", a.String())
			ok(t, err)
			pings, datagrams = append(pings, ping), append(datagrams, gaps)
		}
	}
	do()
	for i, p := range slices.Concat(pings, datagrams) {
		if !p.Running() {
			t.Errorf("%s ended: %s", p.Name, p.Tail(3))
		}
		if i < len(pings) {
			p.Kill()
			n.pings += strings.Count(p.Tail(1<<20), "bytes from")
			continue
		}
		ok(t, p.Stop())
		var g lab.Gaps
		if err := json.Unmarshal([]byte(p.Tail(1)), &g); err != nil {
			t.Errorf("%s: %v: %s", p.Name, err, p.Tail(3))
		}
		n.datagrams += g.Received
	}
	return n
}

// TestPolicyHolds: while policies that forbid a packet do not change, none passes: while the agent restarts, is killed, is upgraded, while the
// file is read again, and changes a thousand times a minute, and while another program flushes all rules.
func TestPolicyHolds(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	n1, n2 := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	file := filepath.Join(n1.Dir, "policies.yaml")
	l.Cluster.Policies = file
	ok(t, os.WriteFile(file, nil, 0o600))
	startAll(t, l)
	web, near, far := pod(t, n1, "web"), pod(t, n1, "near"), pod(t, n2, "far")
	curlPods(t, far, web, 5*time.Second)
	policies := policyFile(onlyNear, web, near, far)
	ok(t, lab.ReplaceFile(file, policies))
	strangers := []*lab.Pod{far, near} // near may use HTTP, and nothing else
	ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
		if n := passing(t, web, strangers, func() { time.Sleep(200 * time.Millisecond) }); n != (passed{}) { // sleep: nothing passes meanwhile
			return fmt.Errorf("%+v pass", n)
		}
		return nil
	}))
	restart := func(end func() error) func(*testing.T) {
		return func(t *testing.T) {
			against(t, web, strangers, func() {
				for range 3 {
					_ = end()
					ok(t, n1.Start())
					ready(t, n1)
				}
			})
		}
	}
	t.Run("Restart", restart(func() error { return n1.Agent.Stop() }))
	t.Run("Kill", restart(func() error { n1.Agent.Kill(); return nil }))
	t.Run("Upgrade", func(t *testing.T) {
		other := t.TempDir() // another build of the same rules
		for _, program := range []string{"edgemesh-agent", "edgemesh-cni"} {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(n1.AgentPath()), program))
			ok(t, err)
			ok(t, os.WriteFile(filepath.Join(other, program), append(b, 0), 0o755))
		}
		restart(func() error {
			n1.Programs = map[string]string{"": other}[n1.Programs]
			return n1.Agent.Stop()
		})(t)
	})
	t.Run("Reload", func(t *testing.T) {
		against(t, web, strangers, func() {
			for i := range 12 {
				ok(t, lab.ReplaceFile(file, []string{policies, "kind: Broken\n", policies + strings.ReplaceAll(onlyNear, "only-near", "too")}[i%3]))
				time.Sleep(500 * time.Millisecond) // sleep: the rate of changes
			}
		})
	})
	t.Run("Storm", func(t *testing.T) {
		const changes = 1000
		against(t, web, strangers, func() {
			every := time.NewTicker(time.Minute / changes)
			defer every.Stop()
			for i := range changes {
				<-every.C
				more := fmt.Sprintf("---\nkind: NetworkPolicy\nmetadata: {namespace: default, name: storm-%d}\nspec: {podSelector: {}, ingress: [{ports: [{port: %d}], from: [{podSelector: {matchLabels: {app: near}}}]}]}\n",
					i%7, 9000+i)
				ok(t, lab.ReplaceFile(file, policies+more))
			}
			ok(t, lab.ReplaceFile(file, policies))
		})
		curlPods(t, near, web, 5*time.Second)
	})
	t.Run("Flush", func(t *testing.T) {
		const flushes = 10
		against(t, web, strangers, func() { // the second table stands
			for range flushes {
				ok(t, n1.Script("nft flush ruleset"))
				time.Sleep(3 * time.Second) // sleep: the repair passes
			}
		})
	})
	if n := passing(t, near, []*lab.Pod{far}, func() { time.Sleep(time.Second) }); n.pings < 50 || n.datagrams < 50 { // sleep: packets pass meanwhile
		t.Errorf("of what no policy forbids %+v pass in a second: this proves nothing", n)
	}
}
