package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// A node is deleted while it is off, and comes back with its disk: kubelet registers it again, and the cluster gives it
// another block. Its static pod, which kubelet starts before that, and whose record names an address of the old block, gets
// one of the new block and is reached.
func TestNodeRejoins(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-b2"
	t.Cleanup(func() {
		toDaemonSet(t, c, node)
		if _, err := c.On(context.WithoutCancel(t.Context()), node, "rm", "-f", "/etc/kubernetes/manifests/static-web.yaml"); err != nil {
			t.Error(err)
		}
	})
	installUnit(t, c, node)
	kubectl(t, "label", "node", node, "network.edgemesh.io/agent=systemd")
	_, err := c.On(t.Context(), node, "sh", "-c", "cat > /etc/kubernetes/manifests/static-web.yaml <<'Y'\n"+staticWeb+"Y")
	ok(t, err)
	eventually(t, time.Minute, func(ctx context.Context) error { return unitSays(ctx, c, node, "agent is running") })
	cloud := on(t, waitPods(t, "app=web", 4, time.Minute), "cloud")
	before := waitPods(t, "app=static-web", 1, time.Minute)[0]
	ok(t, reach(t.Context(), c, cloud, before))
	old, err := blockOf(t.Context(), c, node)
	ok(t, err)

	ok(t, c.Cut(t.Context(), node))
	kubectl(t, "delete", "node", node)
	eventually(t, time.Minute, func(ctx context.Context) error { return knows(ctx, c, "cloud", node, false) })
	takeBlocks(t, c, old)
	start := time.Now()
	ok(t, c.Start(t.Context(), node))
	eventually(t, time.Minute, func(ctx context.Context) error {
		now, err := blockOf(ctx, c, node)
		if err == nil && now == old {
			return fmt.Errorf("%s has block %v again: this test shows nothing", node, now)
		}
		if err != nil {
			return err
		}
		found, err := pods(ctx, c, "default", "app=static-web")
		switch {
		case err != nil:
			return err
		case len(found) != 1:
			return fmt.Errorf("%d static pods", len(found))
		case !now.Contains(netip.MustParseAddr(found[0].ip)):
			return fmt.Errorf("the static pod has %s, the node has %v and had %v", found[0].ip, now, old)
		}
		return reach(ctx, c, cloud, found[0])
	})
	now, err := blockOf(t.Context(), c, node)
	ok(t, err)
	figure(t, "a node rejoins with its disk and another block: its static pod is reached there %s after power-on", seconds(time.Since(start)))
	addressFollows(t, c, node, old, now)
}

// takeBlocks has other Nodes take the next blocks, until the test ends, so that the next Node gets another one than this: the
// controller-manager gives blocks in their order, and begins with the first free one after it was restarted.
func takeBlocks(t *testing.T, c *cluster.Cluster, past netip.Prefix) {
	t.Helper()
	for i, last := 0, (netip.Prefix{}); !last.IsValid() || last.Addr().Less(past.Addr()); i++ {
		name := fmt.Sprintf("other-%d", i)
		kubectlIn(t, "{apiVersion: v1, kind: Node, metadata: {name: "+name+"}}", "create", "-f", "-")
		t.Cleanup(func() {
			if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "delete", "node", name, "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		})
		eventually(t, time.Minute, func(ctx context.Context) (err error) { last, err = blockOf(ctx, c, name); return err })
	}
}

// blockOf is the block that the cluster gave a node.
func blockOf(ctx context.Context, c *cluster.Cluster, node string) (netip.Prefix, error) {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(n.Spec.PodCIDR)
}

// addressFollows is for a node whose block has changed, and whose kubelet's --node-ip is the old block's address. Until that
// follows, the old address is on the bridge beside the new one and the Node keeps it, pods with hostNetwork included; doctor
// names it. After `install --node-ip` all of them have the new one.
func addressFollows(t *testing.T, c *cluster.Cluster, node string, old, now netip.Prefix) {
	t.Helper()
	before, after := old.Addr().Next().String(), now.Addr().Next().String()
	bridge := func(ctx context.Context, want ...string) error {
		out, err := c.On(ctx, node, "ip", "-4", "-br", "addr", "show", "edgemesh-br")
		have := strings.Fields(out)[min(2, len(strings.Fields(out))):]
		for i, a := range have {
			have[i], _, _ = strings.Cut(a, "/")
		}
		slices.Sort(have)
		slices.Sort(want)
		if err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("%s: the bridge has %v, want %v", node, have, want)
		}
		return err
	}
	reports := func(ctx context.Context, want string) error {
		ip, err := internalIP(ctx, c, node)
		if err == nil && ip != want {
			err = fmt.Errorf("%s: InternalIP is %q, want %s", node, ip, want)
		}
		return err
	}
	host := strings.NewReplacer("host-web", "host-late", "edge-a1", node).Replace(hostWeb)
	t.Cleanup(func() {
		if _, err := c.KubectlIn(context.WithoutCancel(t.Context()), host, "delete", "--ignore-not-found", "--timeout=55s", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		var m struct{ Status struct{ Addresses []string } }
		if err := c.API().Get(ctx, meshAPI+"meshnodes/"+node, &m); err != nil || !slices.Equal(m.Status.Addresses, []string{after}) {
			return errors.Join(err, fmt.Errorf("MeshNode %s has the addresses %v, want %s", node, m.Status.Addresses, after))
		}
		return errors.Join(bridge(ctx, before, after), reports(ctx, before))
	})
	kubectlIn(t, host, "apply", "-f", "-")
	if p := waitPods(t, "app=host-late", 1, time.Minute)[0]; p.ip != before {
		t.Errorf("a pod with hostNetwork has %s, want %s, which kubelet reports", p.ip, before)
	}
	out, err := c.On(t.Context(), node, agentBinary(t), "doctor")
	if want := "kubelet reports " + before + ", of a block that this node no longer has"; !strings.Contains(out+fmt.Sprint(err), want) {
		t.Errorf("doctor does not say %q: %v\n%s", want, err, out)
	}
	start := time.Now()
	_, err = c.On(t.Context(), node, agentBinary(t), "install", "--node-ip")
	ok(t, err)
	ok(t, c.Service(t.Context(), "restart", node, "kubelet"))
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return errors.Join(reports(ctx, after), bridge(ctx, after)) })
	figure(t, "%s: its block %s became %s; %s after `install --node-ip` kubelet reports %s, and the bridge has it alone", node, old, now,
		seconds(time.Since(start)), after)
	kubectl(t, "delete", "pod", "host-late") // as the guide says
	kubectlIn(t, host, "apply", "-f", "-")
	p := waitPods(t, "app=host-late", 1, time.Minute)[0]
	if p.ip != after {
		t.Errorf("recreated, it has %s, want %s", p.ip, after)
	}
	ok(t, reach(t.Context(), c, on(t, waitPods(t, "app=web", 4, time.Minute), "cloud"), p))
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "logs", "host-late")
		return err
	})
}
