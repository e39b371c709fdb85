package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// flannel makes of two nodes what flanneld and the conflist of its manifest make:
// flannel.1 with static entries, routes in main, its chains; its plugin calls bridge.
func flannel(t *testing.T, nodes [2]*lab.Node) {
	t.Helper()
	for i, n := range nodes {
		block := n.PodCIDRs[0]
		base := strings.TrimSuffix(block, "0/24")
		n.Plugin = bridgePlugin(t, n)
		n.Plugin.Netconf = fmt.Sprintf(`{
			"cniVersion": "1.0.0", "name": "cbr0", "type": "bridge", "bridge": "cni0", "mtu": 1450,
			"isGateway": true, "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true,
			"ipam": {
				"type": "host-local", "dataDir": %q,
				"ranges": [[{"subnet": %q}]], "routes": [{"dst": "10.244.0.0/16"}]
			}}`, filepath.Join(n.Dir, "host-local"), block)
		ok(t, n.Script(
			fmt.Sprintf("ip link add flannel.1 address 02:00:00:00:01:0%d mtu 1450 "+
				"type vxlan id 1 local %s dev %s dstport 8472 nolearning", i, n.Addr, n.Uplink),
			"ip addr add "+base+"0/32 dev flannel.1",
			"ip link set flannel.1 up",
			"sysctl -qw net.ipv4.ip_forward=1",
			"iptables -N FLANNEL-FWD",
			"iptables -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD",
			"iptables -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT",
			"iptables -A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT",
			"iptables -t nat -N FLANNEL-POSTRTG",
			"iptables -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
			"iptables -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN",
			"iptables -t nat -A FLANNEL-POSTRTG -s "+block+" -d 10.244.0.0/16 -j RETURN",
			"iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d "+block+" -j RETURN",
			"iptables -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d "+block+" -j RETURN",
			"iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully",
			"iptables -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE --random-fully"))
	}
	for i, n := range nodes {
		peer := nodes[1-i]
		base, mac := strings.TrimSuffix(peer.PodCIDRs[0], "0/24"), fmt.Sprintf("02:00:00:00:01:0%d", 1-i)
		ok(t, n.Script("ip neigh add "+base+"0 lladdr "+mac+" dev flannel.1 nud permanent",
			fmt.Sprintf("bridge fdb append %s dev flannel.1 dst %s", mac, peer.Addr),
			"ip route add "+peer.PodCIDRs[0]+" via "+base+"0 dev flannel.1 onlink"))
	}
}

// TestFlannelStays: cloud nodes keep Flannel among themselves, and reach an edge's pods
// through the tunnel; nothing of Flannel's changes, during and after.
func TestFlannelStays(t *testing.T) {
	tier.Long(t)
	flannelStays(t, flannel)
}

// TestFlanneldStays is the same with the real flanneld and its plugin.
func TestFlanneldStays(t *testing.T) {
	tier.Long(t)
	flannelStays(t, flanneld)
}

// flanneld runs the real one on two nodes as its manifest does, leases through a real
// kube-apiserver, and its plugin with the conflist of the manifest. Port mapping, the
// conflist's second plugin, is left out: no pod here has ports on its host.
func flanneld(t *testing.T, nodes [2]*lab.Node) {
	t.Helper()
	program, plugin := tool(t, "flannel"), tool(t, "flannel-cni")
	c, kubeconfig := kubernetes(t, nodes[:]...)
	for _, n := range nodes {
		ok(t, c.CreateNode(n.Name, n.PodCIDRs...))
		// A kubelet's Node has annotations; flanneld counts on it.
		annotations := map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
		ok(t, c.Patch("/api/v1/nodes/"+n.Name, map[string]any{"metadata": map[string]any{"annotations": annotations}}))
		dir := filepath.Join(n.Dir, "flannel")
		ok(t, os.MkdirAll(dir, 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, "net-conf.json"),
			[]byte(`{"Network":"10.244.0.0/16","EnableNFTables":false,"Backend":{"Type":"vxlan"}}`), 0o644))
		_, err := n.NS.Start("flanneld-"+n.Name, "env", "NODE_NAME="+n.Name, "POD_NAME=flannel",
			"POD_NAMESPACE=kube-flannel", program, "--ip-masq", "--kube-subnet-mgr", "--kube-api-url", c.URL,
			"--kubeconfig-file", kubeconfig, "--iface", n.Uplink, "--subnet-file", filepath.Join(dir, "subnet.env"),
			"--net-config-path", filepath.Join(dir, "net-conf.json"))
		ok(t, err)
		n.Plugin = bridgePlugin(t, n)
		ok(t, os.Symlink(plugin, filepath.Join(n.Plugin.Dir, "flannel")))
		n.Plugin.Name = "flannel"
		n.Plugin.Netconf = fmt.Sprintf(`{
			"name": "cbr0", "cniVersion": "0.3.1", "type": "flannel",
			"delegate": {"hairpinMode": true, "isDefaultGateway": true},
			"subnetFile": %q, "dataDir": %q, "ipam": {"dataDir": %q}}`,
			filepath.Join(dir, "subnet.env"), filepath.Join(dir, "data"), filepath.Join(n.Dir, "host-local"))
	}
	for i, n := range nodes {
		peer := nodes[1-i].PodCIDRs[0]
		ok(t, lab.Until(within(t, 60*time.Second), 100*time.Millisecond, func() error {
			out, err := n.Run(t.Context(), "sh", "-c", strings.Join([]string{
				"ip route show " + peer + " dev flannel.1",
				"iptables -w -t nat -S FLANNEL-POSTRTG",
				"iptables -w -S FLANNEL-FWD",
				"ls " + n.Dir + "/flannel",
			}, ";"))
			for _, want := range []string{peer, "MASQUERADE", "-d 10.244.0.0/16", "subnet.env"} {
				if err == nil && !strings.Contains(out, want) {
					err = fmt.Errorf("flanneld on %s has not set %s:\n%s", n.Name, want, out)
				}
			}
			return err
		}))
	}
}

// tool is the path of a program that build/tool.sh builds.
func tool(t *testing.T, name string) string {
	t.Helper()
	root, err := repo.Root()
	ok(t, err)
	cmd := exec.Command(filepath.Join(root, "build/tool.sh"), name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	ok(t, err)
	return strings.TrimSpace(string(out))
}

func flannelStays(t *testing.T, install func(*testing.T, [2]*lab.Node)) {
	l := newLab(t)
	relay(t, l, "relay")
	var clouds [2]*lab.Node
	for i := range clouds {
		clouds[i] = cloud(t, l, fmt.Sprintf("cloud-%d", i+1),
			lab.NodeOptions{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i+1)}})
		clouds[i].Config.CNIMode = "keep"
	}
	edge := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{PodCIDRs: []string{"10.244.3.0/24"}})
	install(t, clouds)
	pod1, pod2 := pod(t, clouds[0], "one"), pod(t, clouds[1], "two")
	curlPods(t, pod1, pod2, 3*time.Second)
	before := hostState(t, clouds[0])
	startRelays(t, l)
	for _, n := range l.Nodes() {
		ok(t, n.Start())
		ok(t, n.WaitReserved(within(t, 15*time.Second)))
	}
	ready(t, edge)
	pod3 := pod(t, edge, "three")
	for _, p := range [][2]*lab.Pod{{pod1, pod3}, {pod3, pod1}, {pod2, pod3}, {pod1, pod2}, {pod2, pod1}} {
		curlPods(t, p[0], p[1], 5*time.Second)
	}
	through := func() string {
		out, err := clouds[0].Run(t.Context(), "cat", "/sys/class/net/flannel.1/statistics/tx_packets")
		ok(t, err)
		return out
	}
	count := through()
	curlPods(t, pod1, pod2, 3*time.Second)
	if through() == count {
		t.Error("packets between Flannel's nodes no longer take flannel.1")
	}
	// The mesh address, which Flannel has given to its bridge, and not the lower one of flannel.1.
	curl(t, clouds[0].NS, pod3, pod3.IP4(), netip.MustParseAddr("10.244.1.1"), 5*time.Second)
	ok(t, clouds[0].Agent.Stop())
	if _, stderr, err := clouds[0].AgentCommand(t.Context(), "cleanup", "--config",
		clouds[0].ConfigFile()); err != nil {
		t.Errorf("cleanup: %v %s", err, stderr)
	}
	sameState(t, before, hostState(t, clouds[0]))
	curlPods(t, pod1, pod2, 3*time.Second)
}
