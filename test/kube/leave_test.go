package kube

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// dumpScript prints what a pod network could leave on a node, in lines that begin with
// what they are about. kube-proxy's, kubelet's and portmap's own is left out, and what changes by
// itself.
const dumpScript = `
each() { sed "s|^|$1: |"; }
ip -br link | awk '{sub(/@.*/, "", $1); print $1}' | sort | each link
ip -br addr | awk '{sub(/@.*/, "", $1); $2 = ""; print}' | sort | each addr
ip -d link show type tun | awk '/^[0-9]/{print $2}' | each tun
for f in -4 -6; do
  ip $f route show table all | sed 's/ *$//' | sort | each "route $f"
  ip $f rule | each "rule $f"
done
for s in iptables-nft-save iptables-legacy-save ip6tables-nft-save ip6tables-legacy-save; do
  # An empty chain that is built in and accepts is no trace, nor is an empty table.
  $s 2>/dev/null | sed -n 's/ \[[0-9:]*\]$//; /KUBE-/d; /CNI-HOSTPORT-/d; /^:[A-Z]* ACCEPT$/d; /^[:-]/p' | each $s
done
nft list ruleset 2>/dev/null | grep -oiE '(set|map|chain|table) [^{]*(edgemesh|em-)[^{]*' | each nft
ipset list -n 2>/dev/null | grep -v '^KUBE-' | each ipset
sysctl -a -r '^net\.(ipv4|ipv6|bridge|core)\.' 2>/dev/null | grep -vE 'random|stable_secret|netdev_rss_key|route_localnet|fastopen_key|\.mc_forwarding|tcp_available|tcp_allowed|neigh\.|nf_conntrack' | sort | each sysctl
find /etc/cni /opt/cni /etc/edgemesh /run/edgemesh /var/lib/edgemesh /var/lib/cni /etc/kubernetes/manifests \
  ! -type d 2>/dev/null | grep -v /var/lib/cni/results | sort | each file
find /usr/local/bin /etc/systemd -name "edgemesh*" | each file
`

// dump is what a node is like.
func dump(t *testing.T, c *cluster.Cluster, node string) []string {
	t.Helper()
	out, err := c.On(t.Context(), node, "sh", "-c", dumpScript)
	ok(t, err)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// differs lists the lines that only one of two dumps has, but those that may be added.
func differs(before, after []string, may ...string) []string {
	var out []string
	for _, l := range after {
		if !slices.Contains(before, l) &&
			!slices.ContainsFunc(may, func(m string) bool { return strings.HasPrefix(l, m) }) {
			out = append(out, "+ "+l)
		}
	}
	for _, l := range before {
		if !slices.Contains(after, l) {
			out = append(out, "- "+l)
		}
	}
	return out
}

// gone wants no pod of the workload, nor of CoreDNS, to be left; the controller's goes with the nodes' network.
func gone(ctx context.Context, c *cluster.Cluster) error {
	var list corev1.PodList
	if err := c.API().Get(ctx, "/api/v1/pods", &list); err != nil {
		return err
	}
	for _, p := range list.Items {
		if !p.Spec.HostNetwork && p.Labels["app.kubernetes.io/component"] != "controller" {
			return fmt.Errorf("pod %s is still there", p.Name)
		}
	}
	return nil
}

// Uninstalled as the guide says, with a node of each form: no link, address, route,
// rule, chain, sysctl or file is left on any node that was not there before, and no
// object in the cluster. Installed again, with helm now, a node that kept its key is the same one.
func TestUninstall(t *testing.T) {
	c, i := installed(t)
	if i.before == nil {
		t.Skip("this cluster was installed by an earlier run: what it was like before is not known")
	}
	helm, err := exec.Command(filepath.Join(root, "build/tool.sh"), "helm").Output() // builds it where it is not there
	ok(t, err)
	rollout(t, time.Minute)
	const unit, static = "edge-a1", "edge-b1"
	t.Cleanup(func() { toDaemonSet(t, c, unit); toDaemonSet(t, c, static) }) // nothing to do when all went well
	installUnit(t, c, unit)
	installStaticPod(t, c, static)
	kubectl(t, "label", "node", unit, "network.edgemesh.io/agent=systemd")
	kubectl(t, "label", "node", static, "network.edgemesh.io/agent=static-pod")
	eventually(t, time.Minute, func(ctx context.Context) error { return unitSays(ctx, c, unit, "agent is running") })
	eventually(t, time.Minute, func(ctx context.Context) error { return agentForm(ctx, c, static, "static-agent") })
	ids := map[string]string{}
	for _, n := range cluster.FirstNodes() {
		ids[n] = peerID(t, c, n)
		now := strings.Join(differs(i.before[n], dump(t, c, n)), "\n")
		for _, want := range []string{
			"+ link: edgemesh-br", "+ tun: ", "+ addr: edgemesh-br", "+ rule -4: ", "+ route -4: ",
			"tables-nft-save: ", ":EDGEMESH-", "+ sysctl: net.ipv4.ip_forward = 1",
			"+ file: /etc/cni/net.d/10-edgemesh.conflist", "+ file: /opt/cni/bin/edgemesh-cni",
			"+ file: /run/edgemesh/",
		} {
			if !strings.Contains(now, want) {
				t.Errorf("the dumps do not see what is on %s: no %q in\n%s", n, want, now)
			}
		}
	}

	// The workload first, then the nodes, then the cluster.
	kubectl(t, "delete", "-f", "manifests/", "--timeout=55s")
	eventually(t, 90*time.Second, func(ctx context.Context) error { return gone(ctx, c) })
	// A kubelet must not be left with an address that goes.
	out, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/cleanup-nodes.sh"), "--yes").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "reports its mesh address, which goes with the network, on: edge-b2\n") {
		t.Errorf("cleanup-nodes.sh, while edge-b2 reports its mesh address: %v\n%s", err, out)
	}
	start := time.Now()
	setNodeIP(t, c, "edge-b2", "off") // the only one whose agent the cluster runs
	out, err = c.AdminCommand(t.Context(), filepath.Join(root, "manifests/cleanup-nodes.sh"), "--yes").CombinedOutput()
	t.Logf("cleanup-nodes.sh:\n%s", out)
	ok(t, err)
	ok(t, c.Service(t.Context(), "stop", unit, "edgemesh-agent")) // what systemd would do for uninstall
	for _, n := range []string{unit, static} {
		// The command sees the machine's boot ID, as containers and the unit do (cluster/node-init.sh).
		out, err := c.On(t.Context(), n, "unshare", "-m", "sh", "-c",
			"umount /proc/sys/kernel/random/boot_id && exec "+agentBinary(t)+" uninstall --purge")
		ok(t, err)
		t.Logf("%s: edgemesh-agent uninstall --purge:\n%s", n, out)
	}
	if minor(t, c) < 31 { // it was the chart
		out, err := c.AdminCommand(t.Context(), strings.TrimSpace(string(helm)), "uninstall", "edgemesh", "-n", "kube-system").CombinedOutput()
		if err != nil {
			t.Fatalf("helm uninstall: %v\n%s", err, out)
		}
		kubectl(t, "delete", "-f", filepath.Join(root, "manifests/edgemesh/crds"), "--timeout=55s")
	} else {
		kubectl(t, "delete", "-f", filepath.Join(root, "manifests/edgemesh.yaml"), "--timeout=55s")
		kubectl(t, "-n", "kube-system", "delete", "configmap", "edgemesh-apiserver")
	}
	kubectl(t, "-n", "kube-system", "delete", "lease", "edgemesh-controller")
	kubectl(t, "-n", "kube-system", "delete", "secret", "edgemesh-relay-token", "--ignore-not-found")
	kubectl(t, "label", "nodes", "--all", "network.edgemesh.io/agent-", "network.edgemesh.io/relay-")
	took := time.Since(start)
	stopRelay(t, c)
	ok(t, c.Service(t.Context(), "start", unit, "edgemesh-agent")) // the unit is gone

	lines := 0
	for _, n := range cluster.FirstNodes() {
		may := []string{"file: /var/lib/edgemesh/", "file: /var/lib/cni/networks/edgemesh/"} // the key and the pods' addresses
		if n == unit || n == static {
			may = nil
		}
		// kubelet and the runtime end the agent's pod in their own time.
		var after []string
		eventually(t, time.Minute, func(context.Context) error {
			after = dump(t, c, n)
			if d := differs(i.before[n], after, may...); len(d) > 0 {
				return fmt.Errorf("%s is not as it was:\n%s", n, strings.Join(d, "\n"))
			}
			return nil
		})
		lines += len(after)
	}
	kinds := "daemonsets,deployments,leases,configmaps,secrets,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings," +
		"customresourcedefinitions"
	if minor(t, c) >= 30 {
		kinds += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
	}
	for name := range strings.Lines(kubectl(t, "get", kinds, "-A", "-o", "name")) {
		if strings.Contains(name, "edgemesh") {
			t.Errorf("left in the cluster: %s", name)
		}
	}
	suite.installed = nil
	suite.installed = install(t, c, withHelm(strings.TrimSpace(string(helm))))
	again := suite.installed
	for _, n := range cluster.FirstNodes() {
		if same := peerID(t, c, n) == ids[n]; same == (n == unit || n == static) {
			t.Errorf("%s has its former peer ID: %v", n, same)
		}
	}
	figure(t,
		"uninstalled in %s: nothing left on 4 nodes (2 DaemonSet, 1 unit, 1 static pod), %d lines of dumps compared; installed again with helm: all pairs reachable after %s (promised: 60 s)",
		seconds(took), lines, seconds(again.reachable))
	if again.reachable > time.Minute {
		t.Errorf("all pods reachable after %s, want 60 s", seconds(again.reachable))
	}
}
