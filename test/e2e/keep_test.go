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

// flannelsConf leaves Flannel's configuration where the node's runtime looks for its network.
func flannelsConf(t *testing.T, n *lab.Node, _ *lab.Cluster) {
	n.Config.CNIConfDir = filepath.Join(n.Dir, "net.d")
	ok(t, os.MkdirAll(n.Config.CNIConfDir, 0o755))
	ok(t, os.WriteFile(filepath.Join(n.Config.CNIConfDir, "10-flannel.conflist"),
		[]byte(`{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [{"type": "flannel"}]}`), 0o644))
}

// bridgePlugin builds the reference bridge and host-local plugins and returns a
// configuration of them for the node's blocks, masquerading included.
func bridgePlugin(t *testing.T, n *lab.Node) *lab.Plugin {
	t.Helper()
	root, err := repo.Root()
	ok(t, err)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/",
		"github.com/containernetworking/plugins/plugins/ipam/host-local",
		"github.com/containernetworking/plugins/plugins/main/bridge")
	build.Dir, build.Env = filepath.Join(root, "test", "cni", "testdata", "plugins"), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the reference plugins: %v\n%s", err, out)
	}
	var ranges []string
	for _, b := range n.PodCIDRs {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet":%q}]`, b))
	}
	return &lab.Plugin{
		Dir:  dir,
		Name: "bridge",
		Netconf: fmt.Sprintf(`{"cniVersion":"1.0.0","name":"kept","type":"bridge","bridge":"cni0",
		"isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}}`, filepath.Join(n.Dir, "host-local"), strings.Join(ranges, ",")),
	}
}

// TestKeepCNI holds that a node whose pods another plugin makes takes part: its
// pods and ours reach each other, with their own addresses, and nothing of the
// other plugin is touched.
func TestKeepCNI(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	a, b := site(t, l, "site-a", lab.EIM), site(t, l, "site-b", lab.EIM)
	keep, own1 := node(t, a, "keep-1", lab.NodeOptions{}), node(t, b, "own-1", lab.NodeOptions{})
	own2, fresh := cloud(t, l, "own-2", lab.NodeOptions{}), cloud(t, l, "keep-2", lab.NodeOptions{})
	keep.Plugin, fresh.Plugin, fresh.Config.CNIMode = bridgePlugin(t, keep), bridgePlugin(t, fresh), "keep"
	for _, n := range []*lab.Node{keep, own2} {
		n.Config.CNIConfDir, n.Config.CNIBinDir = filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "cnibin")
		ok(t, os.MkdirAll(n.Config.CNIConfDir, 0o755))
	}
	keep.Config.CNIMode = "keep"
	theirs := filepath.Join(keep.Config.CNIConfDir, "05-bridge.conf")
	ok(t, os.WriteFile(theirs, []byte(keep.Plugin.Netconf), 0o600))

	early := pod(t, keep, "early") // its plugin was there first
	before := hostState(t, keep)
	startRelays(t, l)
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	ready(t, own1, own2)
	ok(t, keep.WaitReserved(within(t, 10*time.Second)))
	ok(t, fresh.WaitReserved(within(t, 10*time.Second)))
	late, pod1, pod2 := pod(t, keep, "late"), pod(t, own1, "one"), pod(t, own2, "two")

	t.Run("AllPairsKeepSourceAddress", func(t *testing.T) {
		pods := []*lab.Pod{early, late, pod1, pod2}
		for _, from := range pods {
			for _, to := range pods {
				if from != to {
					curlPods(t, from, to, 3*time.Second)
				}
			}
		}
	})
	t.Run("Node", func(t *testing.T) {
		for _, to := range []*lab.Pod{pod1, pod2, late} {
			for _, addrs := range pairs(late, to) {
				curl(t, keep.NS, to, addrs[1], gateway(addrs[0]), 3*time.Second)
			}
		}
		curl(t, own1.NS, late, late.IP4(), gateway(pod1.IP4()), 3*time.Second)
	})
	// Its plugin makes its bridge, and so the node's address, when the first pod comes.
	t.Run("AgentBeforeFirstPod", func(t *testing.T) {
		first := pod(t, fresh, "first")
		for _, p := range []*lab.Pod{late, pod1} {
			curlPods(t, first, p, 3*time.Second)
			curlPods(t, p, first, 3*time.Second)
		}
		ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error {
			return tryCurl(t.Context(), fresh.NS, pod1, pod1.IP4(), gateway(first.IP4()), 3*time.Second)
		}))
	})
	t.Run("Internet", func(t *testing.T) {
		_, err := l.WAN.Serve(within(t, 5*time.Second), "internet")
		ok(t, err)
		r, err := late.Get(t.Context(), netip.MustParseAddr(lab.InternetAddr), 2*time.Second)
		if err != nil || r.Client != a.WAN {
			t.Errorf("to the internet: seen as %s, want %s; %v", r.Client, a.WAN, err)
		}
	})
	t.Run("LANHostCannotSpoof", func(t *testing.T) {
		h, addr, err := a.AddHost("thief")
		ok(t, err)
		ok(t, h.Script(fmt.Sprintf("ip route add %s via %s", keep.PodCIDRs[0], keep.Addr)))
		curl(t, h, late, late.IP4(), addr, time.Second) // whom the other plugin lets in is its own affair
		for _, as := range []netip.Addr{early.IP4(), pod1.IP4()} {
			forge(t, h, as, late, late.IP4())
		}
		ok(t, h.Script(fmt.Sprintf("ip route add %s via %s", own1.PodCIDRs[0], keep.Addr)))
		noAnswer(t, h, pod1.IP4(), "a LAN host routes through the node to a far pod")
	})
	t.Run("PodCannotSpoofFarPod", func(t *testing.T) { forge(t, early.NS, pod1.IP4(), pod2, pod2.IP4()) })
	t.Run("NothingOfOursInstalled", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(keep.Config.CNIConfDir, "*"))
		ok(t, err)
		if len(files) != 1 || files[0] != theirs {
			t.Errorf("configurations: %v", files)
		}
		for _, f := range []string{
			filepath.Join(keep.Config.CNIBinDir, "edgemesh-cni"),
			filepath.Join(keep.Config.RuntimeDir, "subnet.json"),
		} {
			if _, err := os.Stat(f); err == nil {
				t.Errorf("%s is there", f)
			}
		}
		if out, err := keep.Run(t.Context(), "ip", "-br", "link"); err != nil || strings.Contains(out, "edgemesh-br") {
			t.Errorf("links: %s %v", out, err)
		}
	})
	t.Run("StatusAndDoctor", func(t *testing.T) {
		s, err := keep.Status(t.Context())
		if err != nil || len(s.Pools) != 0 || s.Peer("own-1").Path == "" {
			t.Errorf("status %+v: %v", s, err)
		}
		out, _, err := keep.AgentCommand(t.Context(), "doctor", "--verbose", "--runtime-dir", keep.Config.RuntimeDir)
		if err != nil {
			t.Errorf("doctor: %v\n%s", err, out)
		}
		contains(t, out, "keep: the pods stay with bridge (configuration 05-bridge.conf, interface cni0)")
		contains(t, keep.Agent.Tail(1000), "keep: the pods stay with bridge")
		// The same plugin is in the way of ours elsewhere.
		ok(t, os.WriteFile(filepath.Join(own2.Config.CNIConfDir, "05-bridge.conf"), []byte(keep.Plugin.Netconf), 0o600))
		out, _, err = own2.AgentCommand(t.Context(), "doctor", "--runtime-dir", own2.Config.RuntimeDir)
		if err == nil {
			t.Error("doctor is content with another plugin's configuration before ours")
		}
		contains(t, out, "05-bridge.conf", "cniMode: keep")
	})
	t.Run("AgentGoneAndCleanup", func(t *testing.T) {
		ok(t, late.Delete(t.Context()))
		ok(t, keep.Agent.Stop())
		noAnswer(t, early.NS, pod1.IP4(), "no agent")
		_, stderr, err := keep.AgentCommand(t.Context(), "cleanup", "--config", keep.ConfigFile())
		if err != nil {
			t.Fatalf("cleanup: %v %s", err, stderr)
		}
		after := hostState(t, keep)
		for what := range before {
			if after[what] != before[what] {
				t.Errorf("%s after cleanup:\n%s\nbefore:\n%s", what, after[what], before[what])
			}
		}
		if err := early.Ping(t.Context(), lab.InternetAddr, time.Second); err != nil {
			t.Errorf("the other plugin's pod after cleanup: %v", err)
		}
	})
}
