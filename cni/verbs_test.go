package main_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Every version the plugin speaks, called by the library that runtimes use.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
			n.version = v
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"edgemesh","plugins":[%s]}`, v, n.netconf(nil)))
			if err != nil {
				t.Fatal(err)
			}
			cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
			podNS := newNS(t)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: podNS.Path(), IfName: "eth0",
				Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web-0"}}}
			ctx := context.Background()
			err = n.netns.Do(func(ns.NetNS) error {
				res, err := cni.AddNetworkList(ctx, list, rt)
				if err != nil {
					return err
				}
				if res.Version() != v {
					t.Errorf("result of version %s", res.Version())
				}
				b, _ := json.Marshal(res)
				for _, part := range []string{`"10.244.1.2/24"`, `"fd00:1::2/64"`, `"10.244.1.1"`, `"edgemesh-br"`, `"0a:58:0a:f4:01:02"`} {
					if !bytes.Contains(b, []byte(part)) {
						t.Errorf("result lacks %s: %s", part, b)
					}
				}
				if err := cni.CheckNetworkList(ctx, list, rt); err != nil && v != "0.3.1" {
					t.Errorf("CHECK: %v", err)
				}
				if err := cni.GetStatusNetworkList(ctx, list); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				if err := cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}); err != nil {
					t.Errorf("GC: %v", err)
				}
				if len(n.veths()) != 1 {
					t.Errorf("GC removed a valid attachment")
				}
				return cni.DelNetworkList(ctx, list, rt)
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(n.veths()) != 0 || len(n.used()) != 0 {
				t.Errorf("left after DEL: %v %v", n.veths(), n.used())
			}
		})
	}
}

// allAddresses is a runtimeDir whose subnet.json would give pods an empty mask.
func allAddresses(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "subnet.json"), []byte(`{"podCIDRs":["0.0.0.0/0"],"mtu":1500}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestVersionVerb(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	out, err := n.call("VERSION", "", "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		CNIVersion        string
		SupportedVersions []string
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "supported", v.SupportedVersions, []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"})
	if v.CNIVersion != "1.1.0" {
		t.Errorf("request without a version: %s", out)
	}
	if out, err = n.call("VERSION", "", "", "", []byte(`{"cniVersion":"0.4.0"}`)); err != nil || !bytes.Contains(out, []byte(`"cniVersion":"0.4.0"`)) {
		t.Errorf("request in 0.4.0: %s, %v", out, err)
	}
	if out, err := exec.Command(n.plugin, "version").Output(); err != nil || !strings.HasPrefix(string(out), "edgemesh dev (commit unknown)\n") || !strings.HasSuffix(string(out), "\nCNI: 0.3.1 0.4.0 1.0.0 1.1.0\n") {
		t.Errorf("the operator's version: %q, %v", out, err)
	}
}

// An error says which version of the specification it follows: the call's,
// also where the call is refused before anything is looked at.
func TestErrorVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	for _, c := range []struct {
		version, id, want string
		code              uint
	}{
		{"0.4.0", "x", "0.4.0", 8},
		{"0.4.0", "", "0.4.0", 4},
		{"0.2.0", "x", "0.2.0", 1},
		{"", "x", "1.1.0", 1},
	} {
		n.version = c.version
		cmd := exec.Command(n.plugin)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + c.id, "CNI_NETNS=/nonexistent", "CNI_IFNAME=eth0", "CNI_PATH=/"}
		cmd.Stdin = bytes.NewReader(n.netconf(nil))
		out, err := cmd.Output()
		if err == nil {
			t.Fatal("ADD into no namespace succeeded")
		}
		var e struct {
			CNIVersion, Msg string
			Code            uint
		}
		if err := json.Unmarshal(out, &e); err != nil || e.CNIVersion != c.want || e.Code != c.code || e.Msg == "" {
			t.Errorf("%+v: %s, %v", c, out, err)
		}
	}
}

// The specification's text, verb by verb, where it says what a plugin must do
// with a bad or repeated call.
func TestConformance(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("web-0")
	dead := filepath.Join(t.TempDir(), "gone")
	conf := func(extra map[string]any) []byte { return n.netconf(extra) }
	for _, c := range []struct {
		what, verb, id, netns, args string
		stdin                       []byte
		code                        uint
		says                        string
	}{
		{"incompatible version", "ADD", "x", dead, "", conf(map[string]any{"cniVersion": "0.2.0"}), 1, "incompatible"},
		{"future version", "ADD", "x", dead, "", conf(map[string]any{"cniVersion": "9.0.0"}), 1, "incompatible"},
		{"no container", "ADD", "", dead, "", conf(nil), 4, "CNI_CONTAINERID"},
		{"bad container", "ADD", "../x", dead, "", conf(nil), 4, "containerID"},
		{"no namespace", "ADD", "x", "", "", conf(nil), 4, "CNI_NETNS"},
		{"dead namespace", "ADD", "x", dead, "", conf(nil), 8, "network namespace"},
		{"the plugin's own namespace", "ADD", "x", n.netns.Path(), "", conf(nil), 8, "own"},
		{"no JSON", "ADD", "x", dead, "", []byte("{"), 6, ""},
		{"wrong type", "ADD", "x", dead, "", conf(map[string]any{"bridge": 5}), 7, "bridge"},
		{"DEL with a directory of the wrong type", "DEL", p.id, "", "", conf(map[string]any{"dataDir": 5, "bridge": 5}), 7, "dataDir"},
		{"no network name", "ADD", "x", dead, "", conf(map[string]any{"name": ""}), 7, "name"},
		{"bad option", "ADD", "x", dead, "", conf(map[string]any{"keepOnly": "some"}), 7, "keepOnly"},
		{"bad duration", "ADD", "x", dead, "", conf(map[string]any{"keepFor": "3 days"}), 7, "keepFor"},
		{"bad exclusion", "ADD", "x", dead, "", conf(map[string]any{"exclude": []string{"10.0.0.9-10.0.0.1"}}), 7, "exclude"},
		{"relative directory", "ADD", "x", dead, "", conf(map[string]any{"dataDir": "data"}), 7, "dataDir"},
		{"bridge name", "ADD", "x", dead, "", conf(map[string]any{"bridge": "a/b"}), 7, "bridge"},
		{"pod name with a slash", "ADD", "x", dead, "K8S_POD_NAMESPACE=a;K8S_POD_NAME=../b", conf(nil), 4, "K8S_POD_NAME"},
		{"garbage in CNI_ARGS", "ADD", "x", dead, "nonsense", conf(nil), 4, "CNI_ARGS"},
		{"no address in CNI_ARGS", "ADD", "x", dead, "IP=some", conf(nil), 4, "CNI_ARGS: IP"},
		{"no address in a capability", "ADD", "x", dead, "", conf(map[string]any{"runtimeConfig": map[string]any{"ips": []string{"some"}}}), 7, "runtimeConfig.ips"},
		{"long container", "ADD", strings.Repeat("c", 160), dead, "", conf(nil), 4, "CNI_CONTAINERID"},
		{"long network name", "ADD", "x", dead, "", conf(map[string]any{"name": strings.Repeat("n", 160)}), 7, "at most 159 fit"},
		{"bad prevResult", "ADD", "x", dead, "", conf(map[string]any{"prevResult": "none"}), 7, "prevResult"},
		{"block of all addresses", "STATUS", "", "", "", conf(map[string]any{"runtimeDir": allAddresses(t)}), 50, "0.0.0.0/0"},
		{"no subnet yet", "ADD", "x", p.netns.Path(), "", conf(map[string]any{"runtimeDir": dead}), 11, "edgemesh-agent"},
		{"interface exists", "ADD", "again", p.netns.Path(), "", conf(nil), 105, "already"},
		{"ADD repeated", "ADD", p.id, p.netns.Path(), args("web-0", "uid-web-0"), conf(nil), 105, "already"},
		{"requested address in use", "ADD", "x", newNS(t).Path(), "IP=10.244.1.2", conf(nil), 101, "10.244.1.2 is in use by default/web-0"},
		{"requested address of another net", "ADD", "x", newNS(t).Path(), "IP=10.9.1.2", conf(nil), 101, "10.9.1.2"},
		{"CHECK without prevResult", "CHECK", p.id, p.netns.Path(), "", conf(nil), 7, "prevResult"},
		{"CHECK in 0.3.1", "CHECK", p.id, p.netns.Path(), "", conf(map[string]any{"cniVersion": "0.3.1"}), 1, "CHECK"},
		{"CHECK of a stranger", "CHECK", "stranger", p.netns.Path(), "", conf(map[string]any{"prevResult": p.result}), 104, "no record"},
		{"GC without a list", "GC", "", "", "", conf(nil), 7, "valid-attachments"},
		{"GC with a bad list", "GC", "", "", "", conf(map[string]any{"cni.dev/valid-attachments": "all"}), 7, "valid-attachments"},
		{"no version", "ADD", "x", dead, "", conf(map[string]any{"cniVersion": ""}), 1, "incompatible"},
		{"STATUS without a place for records", "STATUS", "", "", "", conf(map[string]any{"dataDir": "/dev/null/x"}), 50, "/dev/null"},
		{"GC in 1.0.0", "GC", "", "", "", conf(map[string]any{"cniVersion": "1.0.0"}), 1, "GC"},
		{"STATUS in 1.0.0", "STATUS", "", "", "", conf(map[string]any{"cniVersion": "1.0.0"}), 1, "STATUS"},
		{"STATUS without subnet", "STATUS", "", "", "", conf(map[string]any{"runtimeDir": dead}), 50, "subnet"},
		{"STATUS with a bad option", "STATUS", "", "", "", conf(map[string]any{"keepFor": "x"}), 50, "keepFor"},
		{"unknown verb", "UPDATE", "x", dead, "", conf(nil), 4, "UPDATE"},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := n.call(c.verb, c.id, c.netns, c.args, c.stdin)
			wantCode(t, err, c.code, c.says)
		})
	}
	for name, says := range map[string]string{"": "CNI_IFNAME", "a/b": "interface name", "sixteen-bytes-and-more": "interface name"} {
		n.env = []string{"CNI_IFNAME=" + name}
		_, err := n.call("ADD", "x", newNS(t).Path(), "", conf(nil))
		n.env = nil
		wantCode(t, err, 4, says)
	}
	t.Run("nothing happened", func(t *testing.T) {
		wantEqual(t, "addresses", n.used(), []string{"10.244.1.2"})
		if v := n.veths(); len(v) != 1 {
			t.Errorf("interfaces %v", v)
		}
		if err := p.check(); err != nil {
			t.Error(err)
		}
	})
	wrong := n.add("wrong-types")
	for _, c := range []struct {
		what, verb, id, netns, args string
		stdin                       []byte
	}{
		{"DEL of a stranger", "DEL", "stranger", "", "", conf(nil)},
		{"DEL without namespace", "DEL", p.id, "", args("web-0", ""), conf(nil)},
		{"DEL again", "DEL", p.id, "", args("web-0", ""), conf(nil)},
		{"DEL with the namespace gone", "DEL", p.id, dead, "", conf(nil)},
		{"DEL with bad options", "DEL", p.id, "", "nonsense", conf(map[string]any{"keepOnly": "some", "exclude": []string{"x"}})},
		{"DEL with options of the wrong type", "DEL", wrong.id, "", "", conf(map[string]any{"promiscMode": "yes", "exclude": "10.244.1.9"})},
		{"DEL without subnet", "DEL", p.id, "", "", conf(map[string]any{"runtimeDir": dead})},
		{"DEL with an empty store", "DEL", p.id, "", "", conf(map[string]any{"dataDir": dead})},
		{"STATUS", "STATUS", "", "", "", conf(nil)},
		{"GC with null", "GC", "", "", "", conf(map[string]any{"cni.dev/valid-attachments": nil})},
		{"GC of the first text", "GC", "", "", "", conf(map[string]any{"cni.dev/attachments": []any{}})},
	} {
		t.Run(c.what, func(t *testing.T) {
			if _, err := n.call(c.verb, c.id, c.netns, c.args, c.stdin); err != nil {
				t.Error(err)
			}
		})
	}
	if len(n.used()) != 0 || len(n.veths()) != 0 {
		t.Errorf("left: %v %v", n.used(), n.veths())
	}
}

// A lost record is no reason to end a pod: its interface vouches for the
// address, which nobody else gets.
func TestLostStore(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("web-0")
	if err := os.RemoveAll(n.data); err != nil {
		t.Fatal(err)
	}
	if err := p.check(); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the next pod", n.add("web-1").addrs(), []string{"10.244.1.3"})
	p.del()
	wantEqual(t, "in use", n.used(), []string{"10.244.1.3"})
}

// Each single change that CHECK must notice.
func TestCheckNotices(t *testing.T) {
	t.Parallel()
	inPod := func(p *pod, f func(netlink.Link) error) error {
		return p.netns.Do(func(ns.NetNS) error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return f(l)
		})
	}
	onHost := func(p *pod, f func(netlink.Link) error) error {
		return p.node.netns.Do(func(ns.NetNS) error {
			l, err := netlink.LinkByName(p.result.Interfaces[1].Name)
			if err != nil {
				return err
			}
			return f(l)
		})
	}
	for what, change := range map[string]func(p *pod) error{
		"lacks 10.244.1.": func(p *pod) error {
			return inPod(p, func(l netlink.Link) error {
				a, err := netlink.ParseAddr(p.addrs()[0] + "/24")
				if err != nil {
					return err
				}
				return netlink.AddrDel(l, a)
			})
		},
		"default route through fd00:1::1": func(p *pod) error {
			return inPod(p, func(l netlink.Link) error {
				routes, err := netlink.RouteList(l, netlink.FAMILY_V6)
				for _, r := range routes {
					if r.Gw != nil {
						return netlink.RouteDel(&r)
					}
				}
				return err
			})
		},
		"eth0 in the container is down": func(p *pod) error { return inPod(p, netlink.LinkSetDown) },
		"host interface":                func(p *pod) error { return inPod(p, netlink.LinkDel) },
		"is down":                       func(p *pod) error { return onHost(p, netlink.LinkSetDown) },
		"not a port":                    func(p *pod) error { return onHost(p, netlink.LinkSetNoMaster) },
		"has MAC": func(p *pod) error {
			return inPod(p, func(l netlink.Link) error {
				return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 1})
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
			p := n.add("web-0")
			if err := p.check(); err != nil {
				t.Fatalf("untouched: %v", err)
			}
			if err := change(p); err != nil {
				t.Fatal(err)
			}
			wantCode(t, p.check(), 104, what)
		})
	}
}

// CHECK takes the MAC that a chained plugin (tuning) has set, where the source filter does not drop it.
func TestCheckChainedMAC(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	const mac = "02:00:00:00:00:01"
	retune := func(p *pod) {
		t.Helper()
		p.result.Interfaces[slices.IndexFunc(p.result.Interfaces, func(i *current.Interface) bool { return i.Name == "eth0" })].Mac = mac
		inNS(t, p.netns, "ip", "link", "set", "eth0", "address", mac)
	}
	filtered := n.add("web-0")
	retune(filtered)
	wantCode(t, filtered.check(), 104, "allowSpoofing")
	n.conf["allowSpoofing"] = true
	p := n.add("web-1")
	retune(p)
	if err := p.check(); err != nil {
		t.Error(err)
	}
	inNS(t, p.netns, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:02")
	wantCode(t, p.check(), 104, "not "+mac)
}

func TestGC(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	var pods []*pod
	for i := range 4 {
		pods = append(pods, n.add(fmt.Sprintf("web-%d", i)))
	}
	// Another network with the same store is not ours to clean.
	n.conf["name"] = "second"
	other := n.add("other")
	delete(n.conf, "name")
	dropNS(pods[0].netns) // vanished without DEL
	valid := []map[string]string{{"containerID": pods[2].id, "ifname": "eth0"}, {"containerID": pods[3].id, "ifname": "net9"}}
	if _, err := n.call("GC", "", "", "", n.netconf(map[string]any{"cni.dev/valid-attachments": valid})); err != nil {
		t.Fatal(err)
	}
	want := append(slices.Clone(pods[2].addrs()), other.addrs()...)
	slices.Sort(want)
	got := n.used()
	slices.Sort(got)
	wantEqual(t, "in use", got, want)
	if len(n.veths()) != 2 {
		t.Errorf("interfaces: %v", n.veths())
	}
	if err := pods[2].check(); err != nil {
		t.Error(err)
	}
	wantEqual(t, "kept for its name", n.add("web-1").addrs(), pods[1].addrs())
}

// A pod may have two interfaces in this network, as Multus attaches it: both addresses answer, and the first keeps the default route.
func TestSecondInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	web, other := n.add("web"), n.add("other")
	n.env = append(n.env, "CNI_IFNAME=net1")
	out, err := n.call("ADD", web.id, web.netns.Path(), args("web", "uid-web"), n.netconf(nil))
	if err != nil {
		t.Fatal(err)
	}
	second := *web
	if second.result, err = parseResult(out); err != nil || len(second.result.Routes) != 0 || len(second.addrs()) != 2 {
		t.Fatalf("%+v, %v", second.result, err)
	}
	if err := second.check(); err != nil {
		t.Errorf("CHECK of the second: %v", err)
	}
	for _, a := range append(web.addrs(), second.addrs()...) {
		for _, from := range []ns.NetNS{n.netns, other.netns} {
			if err := answers(from, a); err != nil {
				t.Error(err)
			}
		}
	}
	err = web.netns.Do(func(ns.NetNS) error {
		// Answers to other nodes leave where the address is.
		for addr, dev := range map[string]string{second.addrs()[0]: "net1", web.addrs()[0]: "eth0"} {
			out, err := exec.Command("ip", "route", "get", "10.244.7.7", "from", addr).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "dev "+dev) {
				t.Errorf("from %s: %s, %v", addr, out, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second.del()
	n.env = n.env[:len(n.env)-1]
	if err := web.check(); err != nil {
		t.Errorf("CHECK of the first after the second's DEL: %v", err)
	}
	if used := n.used(); len(used) != 4 {
		t.Errorf("addresses in use: %v", used)
	}
	// The other way round: the first goes before the second.
	n.env = append(n.env, "CNI_IFNAME=net1")
	if out, err = n.call("ADD", web.id, web.netns.Path(), args("web", "uid-web"), n.netconf(nil)); err != nil {
		t.Fatal(err)
	}
	n.env = n.env[:len(n.env)-1]
	if second.result, err = parseResult(out); err != nil {
		t.Fatal(err)
	}
	web.del()
	for _, a := range second.addrs() {
		if err := answers(n.netns, a); err != nil {
			t.Errorf("the second after the first's DEL: %v", err)
		}
	}
	n.env = append(n.env, "CNI_IFNAME=net1")
	second.del()
	if used := n.used(); len(used) != 2 || len(n.veths()) != 1 {
		t.Errorf("in use: %v, %v", used, n.veths())
	}
}

// TestOnlyFurtherInterface: another network has eth0 and the default route, as with Multus. What the pod sends to pods of the cluster leaves through
// this network, of both IP versions, but not to a range of which the other network has a part.
func TestOnlyFurtherInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	if err := os.WriteFile(filepath.Join(n.run, "subnet.json"), []byte(`{"podCIDRs":["10.244.1.0/24","fd00:1::/64"],"clusterCIDRs":["10.244.0.0/16","10.200.0.0/16","fd00::/16"],"mtu":1500}`), 0o644); err != nil {
		t.Fatal(err)
	}
	netns := newNS(t)
	err := netns.Do(func(ns.NetNS) error {
		out, err := exec.Command("sh", "-ec", `ip link set lo up
			ip link add eth0 type bridge; ip addr add 192.0.2.2/24 dev eth0; ip -6 addr add 2001:db8::2/64 dev eth0 nodad; ip link set eth0 up
			ip route add default via 192.0.2.1; ip route add 10.200.7.0/24 via 192.0.2.1; ip -6 route add default via 2001:db8::1`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.env = append(n.env, "CNI_IFNAME=net1")
	out, err := n.call("ADD", "multus", netns.Path(), args("web", "uid-web"), n.netconf(nil))
	if err != nil {
		t.Fatal(err)
	}
	result, err := parseResult(out)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, r := range result.Routes {
		told = append(told, r.Dst.String())
	}
	wantEqual(t, "routes of the result", told, []string{"10.244.0.0/16", "fd00::/16"})
	own := result.IPs[0].Address.IP.String()
	err = netns.Do(func(ns.NetNS) error {
		// What comes later: a route of eth0 into a range, and another address of it.
		if out, err := exec.Command("sh", "-ec", "ip route add 10.244.99.0/24 via 192.0.2.1; ip addr add 192.0.2.3/24 dev eth0").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for to, dev := range map[string]string{"10.244.99.9": "eth0", "10.244.7.7 from 192.0.2.3": "eth0", "10.244.7.7": "net1", "fd00:7::7": "net1", "10.200.1.1": "eth0", "10.200.7.7": "eth0", "198.51.100.1": "eth0", "2001:db8:9::1": "eth0",
			"10.244.7.7 from 192.0.2.2": "eth0", "fd00:7::7 from 2001:db8::2": "eth0", "10.244.7.7 from " + own: "net1", "198.51.100.1 from " + own: "net1"} {
			out, err := exec.Command("ip", append([]string{"route", "get"}, strings.Fields(to)...)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "dev "+dev) {
				t.Errorf("to %s, want %s: %s, %v", to, dev, out, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFormerNames: a pod made by a release before, whose interface had another name, is checked, not attached again, and deleted.
func TestFormerNames(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("web-0")
	if name := n.veths()[0]; !strings.HasPrefix(name, "veth") || len(name) > 15 {
		t.Errorf("%s: usual exclusions of veth* do not match", name)
	}
	sum := sha256.Sum256([]byte("edgemesh\x00" + p.id + "\x00eth0"))
	name := "em" + hex.EncodeToString(sum[:6])
	n.onHost(func() error {
		l, err := netlink.LinkByName(p.result.Interfaces[1].Name)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, name), netlink.LinkSetUp(l))
	})
	if err := p.check(); err != nil {
		t.Error(err)
	}
	if _, err := n.call("ADD", p.id, newNS(t).Path(), args("web-0", "uid-web-0"), n.netconf(nil)); err == nil {
		t.Error("attached twice")
	}
	p.del()
	if v := n.veths(); len(v) != 0 || len(n.used()) != 0 {
		t.Errorf("left: %v %v", v, n.used())
	}
}

// TestSetDownIsNoFailedADD: another program set the host's end down; the pod keeps its interface, and its address when the store is lost.
func TestSetDownIsNoFailedADD(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("web-0")
	n.onHost(func() error {
		l, err := netlink.LinkByName(p.result.Interfaces[1].Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
	if _, err := n.call("ADD", p.id, newNS(t).Path(), args("web-0", "uid-web-0"), n.netconf(nil)); err == nil {
		t.Error("a running pod's interface was taken from it")
	}
	wantEqual(t, "interfaces", n.veths(), []string{p.result.Interfaces[1].Name})
}

// onHost runs f in the node's namespace.
func (n *node) onHost(f func() error) {
	n.t.Helper()
	if err := n.netns.Do(func(ns.NetNS) error { return f() }); err != nil {
		n.t.Fatal(err)
	}
}
