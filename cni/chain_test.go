package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
)

// referencePlugins builds the real plugins, pinned in ../test/cni/testdata/plugins.
func referencePlugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir+"/",
		"github.com/containernetworking/plugins/plugins/ipam/host-local",
		"github.com/containernetworking/plugins/plugins/main/bridge",
		"github.com/containernetworking/plugins/plugins/main/loopback",
		"github.com/containernetworking/plugins/plugins/meta/bandwidth",
		"github.com/containernetworking/plugins/plugins/meta/firewall",
		"github.com/containernetworking/plugins/plugins/meta/portmap",
		"github.com/containernetworking/plugins/plugins/meta/tuning")
	cmd.Dir = "../test/cni/testdata/plugins"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the reference plugins: %v\n%s", err, out)
	}
	return dir
}

// portmap, bandwidth, tuning and firewall do their work behind our plugin in
// one list, as runtimes call it.
func TestChained(t *testing.T) {
	refs := referencePlugins(t)
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"edgemesh","plugins":[%s,
		{"type":"portmap","capabilities":{"portMappings":true}},
		{"type":"bandwidth","capabilities":{"bandwidth":true}},
		{"type":"tuning","sysctl":{"net.core.somaxconn":"512"}},
		{"type":"firewall","backend":"iptables"}]}`, n.netconf(map[string]any{"cniVersion": "1.0.0"})))
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir, refs}, t.TempDir(), nil)
	podNS, client := newNS(t), newNS(t)
	rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: podNS.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web-0"}},
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
			"bandwidth":    map[string]any{"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
		}}
	ctx := context.Background()
	var result []byte
	err = n.netns.Do(func(ns.NetNS) error {
		res, err := cni.AddNetworkList(ctx, list, rt)
		if err != nil {
			return err
		}
		result, _ = json.Marshal(res)
		return cni.CheckNetworkList(ctx, list, rt)
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, result)
	}
	// A LAN host comes in by the hostPort.
	inNS(t, n.netns, "ip", "link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", filepath.Base(client.Path()))
	inNS(t, n.netns, "ip", "addr", "add", "192.168.7.1/24", "dev", "lan0")
	inNS(t, n.netns, "ip", "link", "set", "lan0", "up")
	inNS(t, n.netns, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	inNS(t, client, "ip", "addr", "add", "192.168.7.2/24", "dev", "eth0")
	inNS(t, client, "ip", "link", "set", "eth0", "up")
	serve(t, podNS, ":80")
	from := dial(t, client, "192.168.7.1:8080")
	if from != "192.168.7.2" {
		t.Errorf("the pod sees %s through the hostPort, want the client", from)
	}
	if out := inNS(t, podNS, "cat", "/proc/sys/net/core/somaxconn"); strings.TrimSpace(out) != "512" {
		t.Errorf("tuning: somaxconn %s", out)
	}
	if out := inNS(t, n.netns, "tc", "qdisc"); strings.Count(out, "qdisc tbf") != 2 {
		t.Errorf("bandwidth: %s", out)
	}
	if out := inNS(t, n.netns, "iptables", "-S", "CNI-FORWARD"); !strings.Contains(out, "10.244.1.2/32") {
		t.Errorf("firewall: %s", out)
	}
	// The source filter stands beside the bandwidth plugin's qdisc.
	inNS(t, podNS, "ip", "addr", "add", "10.244.1.99/32", "dev", "eth0")
	if err := answers(podNS, "10.244.1.1", "-I", "10.244.1.2"); err != nil {
		t.Error(err)
	}
	if ping(podNS, "10.244.1.1", "-I", "10.244.1.99") == nil {
		t.Error("a spoofed source got an answer")
	}
	err = n.netns.Do(func(ns.NetNS) error { return cni.DelNetworkList(ctx, list, rt) })
	if err != nil {
		t.Fatal(err)
	}
	if out := inNS(t, n.netns, "iptables-save"); strings.Contains(out, "10.244.1.2") {
		t.Errorf("rules left after DEL: %s", out)
	}
}

// serve answers each TCP connection in netns with the client's address.
func serve(t *testing.T, netns ns.NetNS, addr string) {
	t.Helper()
	var l net.Listener
	err := netns.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = c.Write([]byte(host))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

// dial returns what a server of serve says.
func dial(t *testing.T, netns ns.NetNS, addr string) string {
	t.Helper()
	buf := make([]byte, 64)
	var n int
	err := netns.Do(func(ns.NetNS) error {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		n, err = c.Read(buf)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// A node moves over from the reference bridge and host-local, running pods
// included: nobody's address is given away, and pods come back with theirs.
func TestMigrateFromHostLocal(t *testing.T) {
	refs := referencePlugins(t)
	n := newNode(t, "10.244.1.0/24")
	oldData, results := filepath.Join(t.TempDir(), "networks"), filepath.Join(t.TempDir(), "cache")
	old, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"cbr0","plugins":[
		{"type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"subnet":"10.244.1.0/24"}}]}`, oldData))
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{refs}, results, nil)
	for i := range 3 {
		rt := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("old-%d", i), NetNS: newNS(t).Path(), IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", fmt.Sprintf("web-%d", i)}}}
		err := n.netns.Do(func(ns.NetNS) error {
			_, err := cni.AddNetworkList(context.Background(), old, rt)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	err = n.netns.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command(n.plugin, "ipam", "import", filepath.Join(oldData, "cbr0"), "--data-dir", n.data,
			"--runtime-dir", n.run, "--results", filepath.Join(results, "results")).CombinedOutput()
		return err
	})
	if err != nil || !strings.Contains(string(out), "3 records") {
		t.Fatalf("import: %v %s", err, out)
	}
	wantEqual(t, "a new pod beside the old ones", n.add("new").addrs(), []string{"10.244.1.5"})
	for i := range 3 {
		p := n.add(fmt.Sprintf("web-%d", i))
		wantEqual(t, p.name+" on the new network", p.addrs(), []string{fmt.Sprintf("10.244.1.%d", i+2)})
	}
}
