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

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// flannel makes of two nodes what flanneld and the conflist of its manifest make.
func flannel(t *testing.T, nodes [2]*lab.Node) {
	t.Helper()
	for i, n := range nodes {
		flannelOn(t, n, i, nodes[1-i])
	}
}

// flannelOn makes it of the ith one: flannel.1 with static entries, routes in main, its chains; its plugin calls bridge.
func flannelOn(t *testing.T, n *lab.Node, i int, peer *lab.Node) {
	t.Helper()
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
	there, mac := strings.TrimSuffix(peer.PodCIDRs[0], "0/24"), fmt.Sprintf("02:00:00:00:01:0%d", 1-i)
	ok(t, n.Script("ip neigh add "+there+"0 lladdr "+mac+" dev flannel.1 nud permanent",
		fmt.Sprintf("bridge fdb append %s dev flannel.1 dst %s", mac, peer.Addr),
		"ip route add "+peer.PodCIDRs[0]+" via "+there+"0 dev flannel.1 onlink"))
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

// TestMoveFromFlannel moves one of two nodes from Flannel to our plugin, and back: at each step all pods reach each other with their
// own addresses, though Flannel's routes to the moved node stay, and no source of the cluster is let in anywhere else.
func TestMoveFromFlannel(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site", lab.EIM)
	var nodes [2]*lab.Node
	for i := range nodes {
		nodes[i] = node(t, s, fmt.Sprintf("shop-%d", i+1), lab.NodeOptions{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i+1)}})
		nodes[i].Config.CNIMode = "keep"
	}
	moving, stays := nodes[0], nodes[1]
	thief, _, err := s.AddHost("thief")
	ok(t, err)
	flannel(t, nodes)
	old, neighbour := pod(t, moving, "old"), pod(t, stays, "neighbour")
	startRelays(t, l)
	for _, n := range nodes {
		ok(t, n.Start())
		ok(t, n.WaitReserved(within(t, 15*time.Second)))
	}
	both := func(a, b *lab.Pod, by string) {
		t.Helper()
		for _, way := range [][2]*lab.Pod{{a, b}, {b, a}} {
			ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
				return tryCurl(t.Context(), way[0].NS, way[1], way[1].IP4(), way[0].IP4(), time.Second)
			}))
		}
		out, err := stays.Run(t.Context(), "ip", "route", "get", a.IP4().String(), "from", b.IP4().String(), "iif", "cni0")
		ok(t, err)
		if !strings.Contains(out, "dev "+by) {
			t.Errorf("packets to %s leave by %s, want %s", a.Name, out, by)
		}
	}
	label := func(labels map[string]string) {
		t.Helper()
		l.Cluster.Nodes[0].Labels = labels
		ok(t, l.WriteMembership())
	}
	both(old, neighbour, "flannel.1")

	// The label alone: the pods are where they were, and the mesh has the way to the node and from it.
	label(map[string]string{mesh.MovedLabel: ""})
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		out, err := stays.Run(t.Context(), "ip", "rule")
		if err == nil && !strings.Contains(out, "to 10.244.1.0/24 lookup 5210") {
			err = fmt.Errorf("no rule leads to the mesh:\n%s", out)
		}
		return err
	}))
	both(old, neighbour, "edgemesh-tun")
	out, _, _ := moving.AgentCommand(t.Context(), "doctor", "--runtime-dir", moving.Config.RuntimeDir)
	contains(t, out, "the move to this network has begun", "cniMode: own", "node.yaml", "kubectl label node shop-1 "+mesh.MovedLabel+"-")

	ok(t, thief.Script("ip route add 10.244.1.0/24 via "+moving.Addr.String()))
	forge(t, thief, neighbour.IP4(), old, old.IP4())

	// What a reboot leaves: no pod, none of Flannel's interfaces, no rule of its.
	reboot := func(mode string) {
		t.Helper()
		moving.Agent.Kill()
		ok(t, moving.Script("for f in -4 -6; do ip $f rule flush; ip $f rule add pref 32766 lookup main; ip $f rule add pref 32767 lookup default; done",
			"for l in cni0 flannel.1 edgemesh-br edgemesh-tun edgemesh-vx; do ip link del $l 2>/dev/null || true; done",
			"nft flush ruleset"))
		moving.Config.CNIMode = mode
	}
	ok(t, old.Delete(t.Context()))
	reboot("own")
	moving.Plugin = nil
	ok(t, moving.Start())
	ready(t, moving)
	moved := pod(t, moving, "moved")
	both(moved, neighbour, "edgemesh-tun")
	// The guard has no exception for Flannel's addresses.
	honest(t, neighbour, moved)
	forge(t, thief, neighbour.IP4(), moved, moved.IP4())

	// And back.
	ok(t, moved.Delete(t.Context()))
	label(nil)
	reboot("keep")
	flannelOn(t, moving, 0, stays)
	ok(t, moving.Start())
	ok(t, moving.WaitReserved(within(t, 15*time.Second)))
	both(pod(t, moving, "back"), neighbour, "flannel.1")
}
