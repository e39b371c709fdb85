package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// caller does what a container runtime does with a node's conflist.
type caller struct {
	n    *lab.Node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	opts map[string]any // capabilities
}

func newCaller(t *testing.T, n *lab.Node, opts map[string]any) *caller {
	t.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(n.Config.CNIConfDir, "10-edgemesh.conflist"))
	ok(t, err)
	cache := filepath.Dir(filepath.Dir(n.Config.CNIDataDir)) // as a runtime's, where dataDir ends with networks/edgemesh
	if filepath.Base(filepath.Dir(n.Config.CNIDataDir)) != "networks" {
		cache = t.TempDir()
	}
	return &caller{n, libcni.NewCNIConfigWithCacheDir([]string{n.Config.CNIBinDir}, cache, nil), list, opts}
}

// call runs f, which calls plugins for the pod in netns, inside the node.
func (r *caller) call(netns *lab.NS, pod string, f func(*libcni.RuntimeConf) error) error {
	host, err := ns.GetNS("/run/netns/" + r.n.Full)
	if err != nil {
		return err
	}
	defer host.Close()
	return host.Do(func(ns.NetNS) error {
		return f(&libcni.RuntimeConf{
			ContainerID:    "c-" + pod,
			NetNS:          "/run/netns/" + netns.Full,
			IfName:         "eth0",
			CapabilityArgs: r.opts,
			Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod}},
		})
	})
}

func (r *caller) add(ctx context.Context, netns *lab.NS, pod string) (addrs []netip.Addr, err error) {
	err = r.call(netns, pod, func(rt *libcni.RuntimeConf) error {
		res, err := r.cni.AddNetworkList(ctx, r.list, rt)
		if err != nil {
			return err
		}
		b, err := json.Marshal(res)
		if err != nil {
			return err
		}
		var got struct {
			IPs []struct {
				Address netip.Prefix `json:"address"`
			} `json:"ips"`
		}
		if err := json.Unmarshal(b, &got); err != nil {
			return err
		}
		for _, ip := range got.IPs {
			addrs = append(addrs, ip.Address.Addr())
		}
		return r.cni.CheckNetworkList(ctx, r.list, rt)
	})
	return addrs, err
}

func (r *caller) del(ctx context.Context, netns *lab.NS, pod string) error {
	return r.call(netns, pod, func(rt *libcni.RuntimeConf) error { return r.cni.DelNetworkList(ctx, r.list, rt) })
}

// metaPlugins builds the reference plugins for chains into dir.
func metaPlugins(t *testing.T, dir string) {
	t.Helper()
	root, err := repo.Root()
	ok(t, err)
	const meta = "github.com/containernetworking/plugins/plugins/meta/"
	build := exec.Command("go", "build", "-o", dir+"/", meta+"portmap", meta+"bandwidth", meta+"tuning",
		meta+"firewall")
	build.Dir, build.Env = filepath.Join(root, "test", "cni", "testdata", "plugins"), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the reference plugins: %v\n%s", err, out)
	}
}

// TestConflist holds that what the operator asked for in agent.yaml is what a
// runtime does with the conflist, and that the conflist comes when the node can
// serve pods.
func TestConflist(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	a := site(t, l, "site-a", lab.EIM)
	n := node(t, a, "edge-1", lab.NodeOptions{})
	n.Config.CNIConfDir, n.Config.CNIBinDir = filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "cnibin")
	n.DataDir = filepath.Join(n.Dir, "cni", "networks", "edgemesh")
	n.Config.CNIDataDir = n.DataDir
	ok(t, os.MkdirAll(n.Config.CNIBinDir, 0o755))
	block := netip.MustParsePrefix(n.PodCIDRs[0])
	at := func(last byte) netip.Addr {
		b := block.Addr().As4()
		return netip.AddrFrom4([4]byte{b[0], b[1], b[2], last})
	}
	n.Config.CNI = map[string]any{
		"keepOnly":    "statefulset",
		"promiscMode": true,
		"exclude":     []string{fmt.Sprintf("%s-%s", at(2), at(9))},
		"chained": []map[string]any{{"type": "portmap"}, {"type": "bandwidth"}, {
			"type":   "tuning",
			"sysctl": map[string]string{"net.core.somaxconn": "512"},
		},
			{"type": "firewall", "backend": "iptables"}},
	}
	conflist := filepath.Join(n.Config.CNIConfDir, "10-edgemesh.conflist")
	doctor := func(parts ...string) error {
		out, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir)
		if err == nil {
			return fmt.Errorf("doctor is content: %s", out)
		}
		for _, p := range parts {
			if !strings.Contains(out, p) {
				return fmt.Errorf("doctor does not say %q: %s", p, out)
			}
		}
		return nil
	}
	docker := []string{
		"ip link add docker0 type bridge", "ip addr add " + at(129).String() + "/24 dev docker0",
		"ip link set docker0 up",
	}

	ok(t, n.Script(docker...))
	startRelays(t, l)
	ok(t, n.Start())

	// Neither the plugins nor the addresses are there: no runtime may think otherwise.
	ok(t, lab.Until(within(t, 10*time.Second), 200*time.Millisecond, func() error {
		return doctor("cni.chained[0]: portmap is not in "+n.Config.CNIBinDir, "docker0")
	}))
	metaPlugins(t, n.Config.CNIBinDir)
	ok(t, lab.Until(within(t, 20*time.Second), 200*time.Millisecond, func() error {
		return doctor("docker0 has address "+at(129).String(), "the CNI configuration waits")
	}))
	contains(t, n.Agent.Tail(1000), "the CNI configuration waits", "daemon.json")
	if _, err := os.Stat(conflist); err == nil {
		t.Fatal("the runtime is told of a plugin that refuses pods")
	}
	ok(t, n.Script("ip link del docker0"))
	ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond,
		func() error { _, err := os.Stat(conflist); return err }))

	r := newCaller(t, n, map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": lab.ServePort, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000},
	})
	web, err := n.NewNS("web-0")
	ok(t, err)
	addrs, err := r.add(t.Context(), web, "web-0")
	ok(t, err)
	if len(addrs) == 0 || addrs[0] != at(10) {
		t.Errorf("addresses %v; %s is the first that is not excluded", addrs, at(10))
	}
	t.Run("Options", func(t *testing.T) {
		out, err := n.Run(t.Context(), "ip", "link", "show", "edgemesh-br")
		ok(t, err)
		contains(t, out, "PROMISC")
		s, err := n.Status(t.Context())
		ok(t, err)
		if s.Pools[0].Size != 245 || s.Pools[0].Used != 1 {
			t.Errorf("the pool, 8 of 253 being excluded: %+v", s.Pools[0])
		}
	})
	t.Run("Chain", func(t *testing.T) {
		_, err := web.Serve(within(t, 5*time.Second), "web-0")
		ok(t, err)
		h, addr, err := a.AddHost("visitor")
		ok(t, err)
		var reply lab.Reply
		ok(t, h.Tool(t.Context(), &reply, "get", "--timeout", "3s", fmt.Sprintf("http://%s:8080/", n.Addr)))
		if reply.Name != "web-0" || reply.Client != addr {
			t.Errorf("through the hostPort: %+v, want the visitor's address %s", reply, addr)
		}
		for _, c := range []struct {
			ns   *lab.NS
			args string
			want string
		}{
			{n.NS, "tc qdisc", "qdisc tbf"},
			{web, "sysctl -n net.core.somaxconn", "512"},
			{n.NS, "iptables -w -S CNI-FORWARD", at(10).String() + "/32"},
		} {
			out, err := c.ns.Run(t.Context(), strings.Fields(c.args)...)
			ok(t, err)
			contains(t, out, c.want)
		}
	})
	t.Run("FlushedFirewall", func(t *testing.T) {
		h, _, err := a.AddHost("after")
		ok(t, err)
		for _, flush := range []string{"nft flush ruleset", "iptables -w -t nat -F", "iptables -w -t nat -F PREROUTING"} {
			ok(t, n.Script(flush))
			start := time.Now()
			ok(t, lab.Until(within(t, 30*time.Second), 100*time.Millisecond, func() error {
				return h.Tool(t.Context(), nil, "get", "--timeout", "1s", fmt.Sprintf("http://%s:8080/", n.Addr))
			}))
			t.Logf("%s: the hostPort is back after %d ms", flush, time.Since(start).Milliseconds())
		}
		out, err := n.Run(t.Context(), "iptables", "-w", "-S", "CNI-FORWARD")
		ok(t, err)
		contains(t, out, at(10).String()+"/32")
		contains(t, n.Agent.Tail(1000), "rules for hostPorts were gone", "default/web-0")
		// What cannot be made again is named by pod.
		portmap := filepath.Join(n.Config.CNIBinDir, "portmap")
		ok(t, os.Rename(portmap, portmap+".away"))
		// One that waits for the firewall's lock holds up nothing else.
		ok(t, os.WriteFile(portmap, []byte("#!/bin/sh\nsleep 4\nexit 1\n"), 0o755))
		for range 2 {
			ok(t, n.Script("nft flush ruleset"))
			fair.Eventually(t, 5*time.Second, "the guard is back", func() error { _, err := n.Run(t.Context(), "nft", "list", "table", "inet", "edgemesh"); return err })
		}
		ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
			status, _, err := n.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
			if err == nil && !(strings.Contains(status, "host-ports") && strings.Contains(status, "default/web-0")) {
				err = fmt.Errorf("status: %s", status)
			}
			return err
		}))
		ok(t, os.Rename(portmap+".away", portmap))
	})
	t.Run("KeepOnly", func(t *testing.T) {
		api, err := n.NewNS("api")
		ok(t, err)
		_, err = r.add(t.Context(), api, "api-5d9c7b7f6b-x2x9z")
		ok(t, err)
		for pod, netns := range map[string]*lab.NS{"web-0": web, "api-5d9c7b7f6b-x2x9z": api} {
			ok(t, r.del(t.Context(), netns, pod))
			kept, err := filepath.Glob(filepath.Join(n.DataDir, "*_default_"+pod))
			ok(t, err)
			if (len(kept) > 0) != (pod == "web-0") {
				t.Errorf("%s: kept %v", pod, kept)
			}
		}
	})
	t.Run("Usage", func(t *testing.T) {
		s, err := n.Status(t.Context())
		ok(t, err)
		if p := s.Pools[0]; p.Used != 0 || p.Kept != 1 || p.Oldest == nil {
			t.Errorf("the pool, with one pod gone: %+v", p)
		}
		text, _, err := n.AgentCommand(t.Context(), "status", "--runtime-dir", n.Config.RuntimeDir)
		ok(t, err)
		contains(t, text, "RESERVED", "OLDEST", n.PodCIDRs[0])
		metrics, err := n.Run(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:9469/metrics")
		ok(t, err)
		contains(t, metrics, `edgemesh_pool_size{family="ipv4"} 245`,
			`edgemesh_pool_addresses{family="ipv4",state="used"} 0`,
			`edgemesh_pool_addresses{family="ipv4",state="kept"} 1`,
			`edgemesh_pool_oldest_release_timestamp_seconds{family="ipv4"} `)
		list, err := n.Run(t.Context(), filepath.Join(n.Config.CNIBinDir, "edgemesh-cni"), "ipam", "list", "--conf",
			conflist)
		ok(t, err)
		contains(t, list, "245 usable, 0 used, 1 kept", "default/web-0")
	})
	t.Run("OverlapLaterEndsNoPod", func(t *testing.T) {
		ok(t, n.Script(docker...))
		again, err := r.add(t.Context(), web, "web-0")
		ok(t, err)
		if fmt.Sprint(again) != fmt.Sprint(addrs) {
			t.Errorf("web-0 had %v, now has %v", addrs, again)
		}
		ok(t, r.del(t.Context(), web, "web-0"))
		if _, err := os.Stat(conflist); err != nil {
			t.Errorf("the conflist: %v", err)
		}
	})
}
