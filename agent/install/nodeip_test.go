package install

import (
	"errors"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/nodeip"
)

const (
	subnet = `{"podCIDRs":["10.244.1.0/24","fd00:1::/64"],"clusterCIDRs":["10.244.0.0/16"],"mtu":1500}`
	conf   = "/etc/systemd/system/kubelet.service.d/90-edgemesh-node-ip.conf"
)

// joined puts kubeadm's kubelet, and what an agent left, on the host.
func (b *box) joined() {
	b.put("run/edgemesh/subnet.json", subnet)
	b.put("lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
	b.put("usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
		"[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS \\\n  $KUBELET_EXTRA_ARGS\n")
}

func (b *box) put(path, text string) { write(b.t, filepath.Join(b.o.Root, path), text) }

// recorded wants the record to say which --node-ip kubelet was given: doctor compares that with what it reports.
func (b *box) recorded(want ...string) {
	b.t.Helper()
	got, err := nodeip.Recorded(filepath.Join(b.o.Root, b.o.StateDir))
	if err != nil || !slices.EqualFunc(got, want, func(a netip.Addr, s string) bool { return a.String() == s }) {
		b.t.Errorf("the record says %v, %v; want %v", got, err, want)
	}
}

func (b *box) restarts(unit string) int {
	return len(slices.DeleteFunc(slices.Clone(b.calls), func(c string) bool { return c != "restart "+unit }))
}

func TestNodeIPOfKubeadm(t *testing.T) {
	b := newBox(t, Systemd)
	b.joined()
	before := b.tree()
	b.o.NodeIP = NodeIPMesh
	b.install()
	const want = `[Unit]
Wants=edgemesh-agent.service
After=edgemesh-agent.service

[Service]
ExecStartPre=-/usr/local/bin/edgemesh-agent node-ip --wait 10s
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_EXTRA_ARGS --node-ip=10.244.1.1,fd00:1::1
`
	if text := b.tree()[conf]; !strings.HasSuffix(text, "\n"+want) {
		t.Errorf("%s:\n%s\nwant\n%s", conf, text, want)
	}
	if at := slices.Index(b.calls, "restart kubelet.service"); at < slices.Index(b.calls, "restart "+UnitName) || b.calls[at-1] != "daemon-reload" {
		t.Errorf("calls are %q: kubelet is restarted after the agent", b.calls)
	}
	b.recorded("10.244.1.1", "fd00:1::1")
	b.install()     // nothing new
	b.o.NodeIP = "" // an upgrade leaves it
	b.install()     //
	b.put("run/edgemesh/subnet.json", strings.ReplaceAll(subnet, "10.244.1.0", "10.244.7.0"))
	if b.restarts("kubelet.service") != 1 || b.tree()[conf] == "" {
		t.Errorf("calls are %q: kubelet is restarted once", b.calls)
	}
	b.o.NodeIP = NodeIPMesh // another block
	b.install()
	if text := b.tree()[conf]; !strings.Contains(text, "--node-ip=10.244.7.1,fd00:1::1\n") || strings.Contains(text, "10.244.1.1") || b.restarts("kubelet.service") != 2 {
		t.Errorf("another block: %s, calls %q", text, b.calls)
	}
	b.recorded("10.244.7.1", "fd00:1::1")
	b.o.NodeIP = NodeIPOff
	b.install()
	b.recorded()
	b.install()
	if text, left := b.tree()[conf]; left || b.restarts("kubelet.service") != 3 {
		t.Errorf("left %q, calls %q", text, b.calls)
	}
	// An uninstallation gives kubelet its choice back before the address goes.
	b.o.NodeIP = NodeIPMesh
	b.install()
	b.calls = nil
	b.o.Purge = true
	b.uninstall()
	if at := slices.Index(b.calls, "restart kubelet.service"); at < 0 || at > slices.Index(b.calls, "cleanup") {
		t.Errorf("calls of uninstall are %q", b.calls)
	}
	before["/run/edgemesh/subnet.json"] = b.tree()["/run/edgemesh/subnet.json"]
	if after := b.tree(); !maps.Equal(after, before) {
		t.Errorf("left %v, was %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}

// TestNodeIPOfOthers: k3s has drop-ins of its configuration, edgecore has none.
func TestNodeIPOfOthers(t *testing.T) {
	b := newBox(t, Systemd)
	b.put("run/edgemesh/subnet.json", subnet)
	b.put(k3s.kubeconfig, "apiVersion: v1\nkind: Config\n")
	b.o.NodeIP = NodeIPMesh
	b.install()
	if text := b.tree()["/etc/rancher/k3s/config.yaml.d/90-edgemesh-node-ip.yaml"]; !strings.HasSuffix(text, "\nnode-ip: \"10.244.1.1,fd00:1::1\"\n") {
		t.Errorf("k3s: %q", text)
	}
	if b.restarts("k3s-agent.service") != 1 || strings.Contains(b.tree()["/etc/systemd/system/k3s-agent.service.d/90-edgemesh-node-ip.conf"], "ExecStart=") {
		t.Errorf("k3s: calls %q, files %v", b.calls, b.tree())
	}

	b = newBox(t, Systemd)
	b.put("run/edgemesh/subnet.json", subnet)
	b.put(edgeCore, "modules: {metaManager: {metaServer: {enable: true}}}\n")
	b.o.NodeIP = NodeIPMesh
	b.install()
	b.said("set modules.edged.nodeIP: 10.244.1.1 in "+edgeCore, "systemctl restart edgecore.service")
	b.recorded() // whether it was done by hand is not known
}

// TestNodeIPOfStaticPod: kubelet starts the agent, so it must not wait for it.
func TestNodeIPOfStaticPod(t *testing.T) {
	b := newBox(t, StaticPod)
	b.joined()
	b.put("etc/kubernetes/manifests/kube-apiserver.yaml", "kind: Pod\n")
	b.o.NodeIP, b.o.Membership = NodeIPMesh, "/etc/edgemesh/cluster.yaml"
	b.install()
	if text := b.tree()[conf]; strings.Contains(text, "Pre=") || strings.Contains(text, "[Unit]") || !strings.Contains(text, "--node-ip=10.244.1.1") {
		t.Errorf("%s", text)
	}
	b.said("control-plane node")
}

// TestNodeIPWithDaemonSet: nothing else is installed; the other forms come over it and leave it to the DaemonSet.
func TestNodeIPWithDaemonSet(t *testing.T) {
	b := newBox(t, DaemonSet)
	b.joined()
	before := b.tree()
	if err := Install(t.Context(), b.o); !errors.Is(err, ErrBadOption) {
		t.Errorf("without --node-ip: %v", err)
	}
	files := func(want ...string) {
		t.Helper()
		now := b.tree()
		maps.DeleteFunc(now, func(path, _ string) bool {
			_, was := before[path]
			return was || b.tree()[path] == "/" || strings.HasPrefix(path, "/var/lib/edgemesh")
		})
		if got := slices.Sorted(maps.Keys(now)); !slices.Equal(got, want) {
			t.Errorf("files %v, want %v", got, want)
		}
	}
	b.o.NodeIP = NodeIPMesh
	b.install()
	files(conf)
	if text := b.tree()[conf]; strings.Contains(text, "Pre=") || !slices.Equal(b.calls, []string{"daemon-reload", "restart kubelet.service"}) {
		t.Errorf("%s, calls %q", text, b.calls)
	}
	b.o.Form, b.o.NodeIP, b.o.Membership = Systemd, NodeIPKept, "/etc/edgemesh/cluster.yaml"
	b.install()
	b.o.KeepNetwork = true
	b.uninstall()
	b.said("kept     kubelet's --node-ip")
	b.recorded("10.244.1.1", "fd00:1::1")
	files(conf)
	b.o.Form, b.o.NodeIP, b.o.KeepNetwork = DaemonSet, NodeIPOff, false
	b.install()
	files()
	b.o.NodeIP = NodeIPMesh
	b.install()
	b.calls = nil
	b.uninstall()
	files()
	if slices.Contains(b.calls, "cleanup") || b.restarts("kubelet.service") != 1 {
		t.Errorf("calls of uninstall are %q", b.calls)
	}
}

// TestNodeIPRefused: nothing is written before the node has a block, or for a kubelet that is not found.
func TestNodeIPRefused(t *testing.T) {
	b := newBox(t, Systemd)
	b.o.NodeIP = NodeIPMesh
	before := b.tree()
	if err := Install(t.Context(), b.o); !errors.Is(err, nodeip.ErrNoBlock) {
		t.Errorf("without a block: %v", err)
	}
	b.put("run/edgemesh/subnet.json", subnet)
	if err := Install(t.Context(), b.o); err == nil || !strings.Contains(err.Error(), "no unit kubelet.service") || !strings.Contains(err.Error(), "--node-ip=10.244.1.1,fd00:1::1") {
		t.Errorf("without kubelet: %v", err)
	}
	b.o.NodeIP = "192.168.1.10"
	if err := Install(t.Context(), b.o); !errors.Is(err, ErrBadOption) {
		t.Errorf("a foreign address: %v", err)
	}
	after := b.tree()
	maps.DeleteFunc(after, func(path, _ string) bool { return strings.HasPrefix(path, "/run") })
	if !maps.Equal(after, before) {
		t.Errorf("written: %v", after)
	}
}
