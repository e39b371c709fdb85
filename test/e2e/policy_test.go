package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
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
// plugin, from the first moment of an offline start, and while the agent restarts.
func TestPolicy(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n1, n2 := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	file := filepath.Join(n1.Dir, "policies.yaml")
	l.Cluster.Policies = file
	ok(t, os.WriteFile(file, nil, 0o600))
	startAll(t, l)
	web, near, far := pod(t, n1, "web"), pod(t, n1, "near"), pod(t, n2, "far")
	curlPods(t, near, web, 3*time.Second)
	curlPods(t, far, web, 5*time.Second)

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
	ok(t, lab.ReplaceFile(file, policyFile(onlyNear, web, near, far)))
	refused("over the tunnel", far, web)
	refused("egress on the same node", web, near)
	curlPods(t, near, web, 2*time.Second)
	curlPods(t, web, web, 2*time.Second)
	curl(t, n1.NS, web, web.IP4(), netip.Addr{}, 2*time.Second) // its own node

	out, _, err := n1.AgentCommand(t.Context(), "policy", "default/web", "--runtime-dir", n1.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, file, "ingress: isolated by default/only-near", "accepted by default/only-near:", far.IP4().String()+" to "+web.IP4().String()+", TCP port 9376")
	t.Run("Broken", func(t *testing.T) {
		slow(t)
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
		slow(t)
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
	t.Run("Restart", func(t *testing.T) {
		slow(t)
		pings := func(n int) string { // twenty a second, from beside the node's pods and from another node
			out, _ := far.Run(t.Context(), "ping", "-n", "-i", "0.05", "-W", "1", "-c", fmt.Sprint(n), web.IP4().String())
			return out
		}
		done := make(chan string)
		go func() { done <- pings(160) }()
		for range 2 {
			_ = n1.Agent.Stop()
			ok(t, n1.Start())
			ready(t, n1)
		}
		if out := <-done; !strings.Contains(out, " 0 received") {
			t.Errorf("while the agent restarts, packets pass against a policy:\n%s", out)
		}
		if err := ping(t, far, near.IP4(), 3*time.Second); err != nil {
			t.Errorf("what no policy forbids does not pass either: this proves nothing: %v", err)
		}
	})
	t.Run("OfflineStart", func(t *testing.T) {
		slow(t)
		_ = n1.Agent.Stop() // it may have stopped above
		ok(t, n1.Script("nft delete table inet edgemesh-policy", "ip link set eth0 down || ip link set wan0 down"))
		ok(t, os.RemoveAll(n1.Config.RuntimeDir))
		ok(t, os.Remove(file))
		ok(t, os.Remove(n1.Membership))
		ok(t, n1.Start())
		subnet := filepath.Join(n1.Config.RuntimeDir, "subnet.json")
		ok(t, lab.Until(within(t, 10*time.Second), time.Millisecond, func() error { _, err := os.Stat(subnet); return err }))
		out, err := n1.Run(t.Context(), "nft", "list", "table", "inet", "edgemesh-policy")
		if err != nil || !strings.Contains(out, web.IP4().String()+" : jump in-") {
			t.Errorf("pods can be made, and the policy is not in force: %v\n%s", err, out)
		}
		refused("offline", web, near)
		curlPods(t, near, web, 2*time.Second)
	})
}
