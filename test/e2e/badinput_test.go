package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// otherID and relayID are peer IDs of nobody.
const (
	otherID = "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"
	relayID = "12D3KooWCHicWtBzdrK1QoJGgR8RJTkn5HYdQghawBrdfZ4D8mSf"
)

// badStart is one way to start the agent wrongly.
type badStart struct {
	name    string
	prepare func(t *testing.T, n *lab.Node, c *lab.Cluster) // before the files are written
	config  func(yaml string) string                        // changes the configuration file
	cluster func(yaml string) string                        // changes the membership file
	wrap    func(n *lab.Node) []string                      // runs the agent
	codes   []int
	clean   bool     // nothing is left, though the system is at fault
	wants   []string // in standard error: file, field, remedy; CONFIG, CLUSTER and STATE are the paths
}

func replace(old, new string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic("no " + old + " in " + s)
		}
		return strings.Replace(s, old, new, 1)
	}
}

// swap gives a key of the configuration another value.
func swap(key, value string) func(string) string {
	return func(s string) string {
		return regexp.MustCompile(`(?m)^`+key+`:.*\n(  .*\n)*`).ReplaceAllString(s, "") + key + ": " + value + "\n"
	}
}

func badStarts() []badStart {
	usage, system, either := []int{2}, []int{1}, []int{1, 2}
	second := func(m lab.Member) func(*testing.T, *lab.Node, *lab.Cluster) {
		return func(_ *testing.T, n *lab.Node, c *lab.Cluster) {
			if m.PeerID == "" {
				m.PeerID = n.PeerID
			}
			c.Nodes = append(c.Nodes, m)
		}
	}
	return []badStart{
		{name: "ConfigMissing", config: func(string) string { return "" }, codes: usage, wants: []string{"CONFIG"}},
		{
			name:   "ConfigUnknownField",
			config: func(s string) string { return s + "nodename2: x\n" },
			codes:  usage,
			wants:  []string{"CONFIG", "nodename2"},
		},
		{
			name:   "ConfigNotYAML",
			config: func(s string) string { return s + "\t: [\n" },
			codes:  usage,
			wants:  []string{"CONFIG"},
		},
		{name: "ConfigNoMembership", config: func(s string) string {
			return regexp.MustCompile(`(?m)^membership:\n  file: .*\n`).ReplaceAllString(s, "")
		}, codes: usage, wants: []string{"CONFIG", "membership"}},
		{
			name:   "ConfigBadListen",
			config: func(s string) string { return s + "listen: [nonsense]\n" },
			codes:  usage,
			wants:  []string{"CONFIG", "listen", "nonsense"},
		},
		{
			name:    "BadCIDR",
			cluster: replace("10.244.1.0/24", "10.244.1.0/33"),
			codes:   usage,
			wants:   []string{"CLUSTER", "nodes[0].podCIDRs[0]", "10.244.1.0/33"},
		},
		{
			name:    "CIDRWithHostBits",
			cluster: replace("10.244.1.0/24", "10.244.1.7/24"),
			codes:   usage,
			wants:   []string{"CLUSTER", "nodes[0].podCIDRs[0]", "10.244.1.7/24"},
		},
		{
			name:    "BlockOutsideRanges",
			cluster: replace("10.244.1.0/24", "10.9.1.0/24"),
			codes:   usage,
			wants:   []string{"CLUSTER", "nodes[0].podCIDRs[0]", "10.9.1.0/24"},
		},
		{
			name:    "ClusterUnknownField",
			cluster: func(s string) string { return s + "podCIDR: 10.0.0.0/8\n" },
			codes:   usage,
			wants:   []string{"CLUSTER", "podCIDR"},
		},
		{
			name:    "OverlappingBlocks",
			prepare: second(lab.Member{Name: "other", PeerID: otherID, PodCIDRs: []string{"10.244.0.0/20"}}),
			codes:   usage,
			wants:   []string{"CLUSTER", "podCIDRs", "10.244.0.0/20", "10.244.1.0/24"},
		},
		{
			name:    "OneBlockTwice",
			prepare: second(lab.Member{Name: "other", PeerID: otherID, PodCIDRs: []string{"10.244.1.0/24"}}),
			codes:   usage,
			wants:   []string{"CLUSTER", "podCIDRs", "10.244.1.0/24", "other"},
		},
		{name: "OnePeerIDTwice", prepare: second(lab.Member{Name: "other", PodCIDRs: []string{"10.244.9.0/24"}}),
			codes: usage, wants: []string{"CLUSTER", "peerID", "other"}},
		{
			name:    "OneNameTwice",
			prepare: second(lab.Member{Name: "edge-1", PeerID: otherID, PodCIDRs: []string{"10.244.9.0/24"}}),
			codes:   usage,
			wants:   []string{"CLUSTER", "name", "edge-1"},
		},
		{
			name:    "OverlappingRanges",
			cluster: replace("- 10.244.0.0/16", "- 10.244.128.0/17\n- 10.244.0.0/16"),
			codes:   usage,
			wants:   []string{"CLUSTER", "podCIDRs", "10.244.128.0/17"},
		},
		{
			name:    "OwnNameMissing",
			cluster: replace("name: edge-1", "name: edge-9"),
			codes:   usage,
			wants:   []string{"CLUSTER", "edge-1"},
		},
		{
			name:    "OwnPeerIDAnother",
			prepare: func(_ *testing.T, _ *lab.Node, c *lab.Cluster) { c.Nodes[0].PeerID = otherID },
			codes:   usage,
			wants:   []string{"CLUSTER", otherID, "edge-1"},
		},
		{
			name:    "PeerIDNonsense",
			prepare: func(_ *testing.T, _ *lab.Node, c *lab.Cluster) { c.Nodes[0].PeerID = "12D3Koo" },
			codes:   usage,
			wants:   []string{"CLUSTER", "nodes[0].peerID", "12D3Koo"},
		},
		{
			name:    "RelayWithoutPeerID",
			cluster: func(s string) string { return replace("/p2p/"+relayID, "")(s) },
			codes:   usage,
			wants:   []string{"CLUSTER", "relays[0]", "/p2p/"},
		},
		{
			name:    "MembershipMissing",
			cluster: func(string) string { return "" },
			codes:   usage,
			wants:   []string{"CLUSTER", "CONFIG", "membership.file"},
		},
		{name: "MembershipIsDirectory", config: swap("membership", "{file: /etc}"), codes: usage,
			wants: []string{"CONFIG: membership.file: /etc: not a regular file", "correct the path"}},
		{
			name:   "KubeconfigMissing",
			config: swap("membership", "{kubernetes: {kubeconfig: /none/kubelet.conf}}"),
			codes:  usage,
			wants:  []string{"CONFIG: membership.kubernetes: ", "kubeconfig /none/kubelet.conf: ", "no such file"},
		},
		{name: "NotInAPod", config: swap("membership", "{kubernetes: {}}"), codes: usage,
			wants: []string{"CONFIG: membership.kubernetes: ", "set membership.kubernetes.kubeconfig"}},
		{
			name:    "MembershipTorn",
			cluster: func(s string) string { return s[:len(s)/2] + "\n  - {" },
			codes:   usage,
			wants:   []string{"CLUSTER"},
		},
		{name: "KeyWithLoosePermissions", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			ok(t, os.Chmod(filepath.Join(n.Config.StateDir, "identity.key"), 0o644))
		}, codes: usage, wants: []string{"STATE/identity.key", "0600", "chmod"}},
		{name: "KeyTorn", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			ok(t, os.WriteFile(filepath.Join(n.Config.StateDir, "identity.key"), []byte("torn"), 0o600))
		}, codes: either, wants: []string{"STATE/identity.key"}},
		{name: "KeyUnreadable", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			key := filepath.Join(n.Config.StateDir, "identity.key")
			ok(t, os.Remove(key))
			ok(t, os.Mkdir(key, 0o700))
		}, codes: either, wants: []string{"STATE/identity.key"}},
		{name: "PortInUse", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			squat(t, n, 4001)
			n.Config.Listen = []string{"/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"}
		}, codes: either, wants: []string{"CONFIG", "listen", "4001", "in use"}},
		{name: "ListenElsewhere", config: swap("listen", "[/ip4/9.9.9.9/tcp/4001]"), codes: system,
			wants: []string{"CONFIG: listen: ", "9.9.9.9", "no interface has this address"}, clean: true},
		{name: "MetricsPortInUse", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			squat(t, n, 4002)
			n.Config.MetricsAddress = "127.0.0.1:4002"
		}, codes: usage, wants: []string{"CONFIG: metricsAddress: ", "4002", "in use", "free the port"}, clean: true},
		{
			name: "ListenInsideRange",
			prepare: func(_ *testing.T, n *lab.Node, _ *lab.Cluster) {
				n.Config.Listen = []string{"/ip4/0.0.0.0/tcp/4001", "/ip4/10.244.1.1/udp/4001/quic-v1"}
			},
			codes: usage,
			wants: []string{"CONFIG: listen[1]: /ip4/10.244.1.1/udp/4001/quic-v1", "10.244.0.0/16", "podCIDRs"},
		},
		{
			name:   "StateDirNotWritable",
			config: swap("stateDir", "/proc/self/state"),
			codes:  usage,
			wants:  []string{"CONFIG: stateDir: ", "/proc/self/state", "choose another directory"},
		},
		{name: "PluginDirNotWritable", config: swap("cniBinDir", "/proc/self/bin"), codes: usage,
			wants: []string{"CONFIG: cniBinDir: ", "/proc/self/bin", "choose another directory"}},
		{name: "ConflistDirIsFile", config: swap("cniConfDir", "/dev/null"), codes: usage,
			wants: []string{"CONFIG: cniConfDir: ", "/dev/null", "a file is in the way"}},
		{name: "RecordsBelowFile", prepare: func(_ *testing.T, n *lab.Node, _ *lab.Cluster) {
			n.Config.CNIConfDir, n.Config.CNIDataDir = filepath.Join(n.Dir, "net.d"), "/dev/null/records"
		}, codes: usage,
			wants: []string{"CONFIG: cniDataDir: ", "/dev/null", "a file is in the way"}},
		{name: "AnotherPodNetwork", prepare: flannelsConf, codes: usage, wants: []string{"CONFIG: cniMode: ", "10-flannel.conflist", "set keep"}},
		{
			name: "RuntimeDirReadOnly",
			wrap: func(n *lab.Node) []string {
				return []string{
					"unshare", "-m", "sh", "-c", `mount -t tmpfs -o ro none "$0" && exec "$@"`,
					n.Config.RuntimeDir,
				}
			},
			codes: usage,
			wants: []string{"CONFIG: runtimeDir: ", "read-only", "mount it writable"},
		},
		{name: "NoTUNDevice", wrap: func(n *lab.Node) []string {
			return []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev/net && exec "$@"`, "sh"}
		}, codes: system, wants: []string{"/dev/net/tun", "modprobe tun"}},
		{
			name: "NotRoot",
			prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
				ok(t, n.Script("chown -R 65534:65534 "+n.Dir, "cp "+n.AgentPath()+" "+n.Dir+"/agent"))
			},
			wrap: func(n *lab.Node) []string {
				return []string{
					"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c",
					`shift; exec ` + n.Dir + `/agent "$@"`, "sh",
				}
			},
			codes: either,
			wants: []string{"root"},
		},
	}
}

// badGuards are wrong values of what keeps others out.
func badGuards() []badStart {
	usage := []int{2}
	secret := func(text string, mode os.FileMode) func(*testing.T, *lab.Node, *lab.Cluster) {
		return func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			n.Config.JoinSecretFile = filepath.Join(n.Dir, "join-secret")
			ok(t, os.WriteFile(n.Config.JoinSecretFile, []byte(text), mode))
			ok(t, os.Chmod(n.Config.JoinSecretFile, mode))
		}
	}
	good := strings.Repeat("s3cret", 6)
	add := func(lines string) func(string) string { return func(s string) string { return s + lines + "\n" } }
	return []badStart{
		{name: "SecretMissing", prepare: func(_ *testing.T, n *lab.Node, _ *lab.Cluster) { n.Config.JoinSecretFile = "/nonexistent/join-secret" },
			codes: usage, wants: []string{"CONFIG", "joinSecretFile: ", "/nonexistent/join-secret"}},
		{name: "SecretOthersMayRead", prepare: secret(good, 0o644), codes: usage, wants: []string{"CONFIG", "joinSecretFile: ", "join-secret", "chmod 600"}},
		{name: "SecretGroupMayRead", prepare: secret(good, 0o640), codes: usage, wants: []string{"CONFIG", "joinSecretFile: ", "chmod 600"}},
		{name: "SecretTooShort", prepare: secret("s3cret", 0o600), codes: usage, wants: []string{"CONFIG", "joinSecretFile: ", "line 1", "6 characters"}},
		{name: "KeyOthersMayRead", prepare: func(t *testing.T, n *lab.Node, _ *lab.Cluster) {
			ok(t, os.Chmod(filepath.Join(n.Config.StateDir, "identity.key"), 0o644))
		}, codes: usage, wants: []string{"STATE/identity.key", "0644", "chmod 600"}},
		{name: "BannedRubbish", cluster: add("banned: [Edge_7]"), codes: usage, wants: []string{"CLUSTER", "banned[0]", "Edge_7"}},
		{name: "BannedNoList", cluster: add("banned: edge-7"), codes: usage, wants: []string{"CLUSTER", "banned"}},
		{name: "HostAccess", cluster: add("hostAccess: some"), codes: usage, wants: []string{"CLUSTER", "hostAccess", "some", "none"}},
		{name: "HostPorts", cluster: add("hostPorts: [53]"), codes: usage, wants: []string{"CLUSTER", "hostPorts[0]", "53"}},
		{name: "PodDenyCIDRs", cluster: add("podDenyCIDRs: [10.0.0.1/8]"), codes: usage, wants: []string{"CLUSTER", "podDenyCIDRs[0]", "10.0.0.1/8"}},
	}
}

// TestBadInput starts an agent in every wrong way: it must end within 2 s with
// the right code, name file, field and remedy, and leave the host alone.
func TestBadInput(t *testing.T) {
	beside(t)
	l := newLab(t)
	for i, tc := range append(badStarts(), badGuards()...) {
		t.Run(tc.name, func(t *testing.T) {
			l.Cluster.Nodes, l.Cluster.Relays = nil, []string{"/ip4/5.5.5.5/tcp/4001/p2p/" + relayID}
			n := cloud(t, l, fmt.Sprintf("bad-%d", i), lab.NodeOptions{PodCIDRs: []string{"10.244.1.0/24"}})
			n.Config.NodeName, l.Cluster.Nodes[0].Name = "edge-1", "edge-1"
			if tc.prepare != nil {
				tc.prepare(t, n, &l.Cluster)
			}
			ok(t, n.WriteConfig())
			edit(t, n.ConfigFile(), tc.config)
			ok(t, lab.ReplaceFile(n.Membership, l.Cluster.YAML()))
			edit(t, n.Membership, tc.cluster)

			args := append([]string{}, n.AgentPath(), "run", "--config", n.ConfigFile())
			if tc.wrap != nil {
				args = append(tc.wrap(n), args...)
			}
			stderr := refused(t, n.NS, tc.codes, args...)
			paths := strings.NewReplacer("CONFIG", n.ConfigFile(), "CLUSTER", n.Membership, "STATE", n.Config.StateDir)
			for _, w := range tc.wants {
				contains(t, stderr, paths.Replace(w))
			}
			if tc.codes[0] == 2 || tc.clean {
				if out, _ := n.Run(t.Context(), "ip", "-br", "link"); strings.Contains(out, "edgemesh") {
					t.Errorf("a refused start left interfaces:\n%s", out)
				}
				if out, _ := n.Run(t.Context(), "iptables-save"); strings.Contains(out, "EDGEMESH") {
					t.Errorf("a refused start left rules:\n%s", out)
				}
			}
		})
	}
	t.Run("CommandLine", func(t *testing.T) {
		for _, args := range [][]string{
			{"run", "--config"}, {"run", "--no-such-flag"}, {"run", "extra"}, {"nonsense"}, {"ping"}, {"ping", "a", "b"},
			{"ping", "edge-2", "--count", "-1"}, {"run", "--config", "/nonexistent/agent.yaml"},
		} {
			stderr := refused(t, l.WAN, []int{2}, append([]string{l.Clouds[0].AgentPath()}, args...)...)
			if strings.TrimSpace(stderr) == "" {
				t.Errorf("%v: nothing on standard error", args)
			}
		}
	})
}

// squat lets another program have a port.
func squat(t *testing.T, n *lab.Node, port int) {
	t.Helper()
	p, err := n.StartTool("squatter", "serve", "--name", "squatter", "--port", strconv.Itoa(port))
	ok(t, err)
	t.Cleanup(p.Kill)
	ok(t, lab.Until(within(t, 3*time.Second), 20*time.Millisecond, func() error {
		return n.Tool(t.Context(), nil, "get", fmt.Sprintf("http://127.0.0.1:%d/", port))
	}))
}

// edit changes a file; a change to nothing removes it.
func edit(t *testing.T, path string, change func(string) string) {
	t.Helper()
	if change == nil {
		return
	}
	b, err := os.ReadFile(path)
	ok(t, err)
	if s := change(string(b)); s != "" {
		ok(t, os.WriteFile(path, []byte(s), 0o644))
	} else {
		ok(t, os.Remove(path))
	}
}

// refused runs a program that must end within 2 s with one of the codes, and
// returns its standard error.
func refused(t *testing.T, ns *lab.NS, codes []int, args ...string) string {
	t.Helper()
	elapsed := stopwatch(t)
	_, err := ns.Run(within(t, 6*time.Second), args...)
	took := elapsed()
	var exit *lab.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("not refused: %v", err)
	}
	if !slices.Contains(codes, exit.Code) {
		t.Errorf("exit code %d, want %v: %s", exit.Code, codes, exit.Stderr)
	}
	if took > 2*time.Second {
		t.Errorf("it took %v to refuse", took)
	}
	t.Logf("code %d after %d ms: %s", exit.Code, took.Milliseconds(), strings.TrimSpace(exit.Stderr))
	return exit.Stderr
}

// openKubeconfig has its user's token in itself.
const openKubeconfig = `{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
users: [{name: u, user: {token: secret}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`

// TestBadInputOfRelay does the same for the relay.
func TestBadInputOfRelay(t *testing.T) {
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	cloud(t, l, "node", lab.NodeOptions{})
	ok(t, l.WriteMembership())
	program := filepath.Join(filepath.Dir(l.Clouds[0].AgentPath()), "edgemesh-relay")
	dir := filepath.Dir(r.StateDir)
	good := "stateDir: " + r.StateDir + "\nmembership: {file: " + r.Membership + "}\nmetricsAddress: \"\"\n"
	for _, tc := range []struct {
		name, config string
		prepare      func(t *testing.T)
		codes        []int
		wants        []string
	}{
		{name: "UnknownField", config: good + "nonsense: 1\n", codes: []int{2}, wants: []string{"CONFIG", "nonsense"}},
		{name: "BadListen", config: good + "listen: [1.2.3.4]\n", codes: []int{2}, wants: []string{"CONFIG", "listen"}},
		{
			name:   "BadLimit",
			config: good + "limits: {maxReservations: -1}\n",
			codes:  []int{2},
			wants:  []string{"CONFIG", "limits.maxReservations"},
		},
		{
			name:   "MembershipMissing",
			config: strings.Replace(good, "cluster.yaml", "none.yaml", 1),
			codes:  []int{2},
			wants:  []string{"CONFIG: membership.file: ", dir + "/none.yaml"},
		},
		{
			name:   "KubeconfigMissing",
			config: strings.Replace(good, "file: "+r.Membership, "kubernetes: {kubeconfig: /none/relay.kubeconfig}", 1),
			codes:  []int{2},
			wants:  []string{"CONFIG: membership.kubernetes: ", "/none/relay.kubeconfig"},
		},
		{
			name:   "OpenKubeconfig",
			config: strings.Replace(good, "file: "+r.Membership, "kubernetes: {kubeconfig: "+dir+"/open.kubeconfig}", 1),
			prepare: func(t *testing.T) {
				ok(t, os.WriteFile(filepath.Join(dir, "open.kubeconfig"), []byte(openKubeconfig), 0o644))
				ok(t, os.Chmod(filepath.Join(dir, "open.kubeconfig"), 0o644))
				ok(t, os.Chown(filepath.Join(dir, "open.kubeconfig"), 65534, -1)) // of root's the log warns
			},
			codes: []int{2},
			wants: []string{"CONFIG: membership.kubernetes.kubeconfig: ", "chmod 600 ", "/open.kubeconfig"},
		},
		{name: "PortInUse", config: good + "listen: [/ip4/0.0.0.0/tcp/4001]\n", prepare: func(t *testing.T) {
			p, err := r.StartTool("squatter", "serve", "--name", "squatter", "--port", "4001")
			ok(t, err)
			t.Cleanup(p.Kill)
			ok(t, lab.Until(within(t, 3*time.Second), 20*time.Millisecond, func() error {
				return r.Tool(t.Context(), nil, "get", "http://127.0.0.1:4001/")
			}))
		}, codes: []int{1, 2}, wants: []string{"4001", "in use"}},
		{
			name:   "MetricsElsewhere",
			config: strings.Replace(good, `metricsAddress: ""`, "metricsAddress: 9.9.9.9:80", 1),
			codes:  []int{1},
			wants:  []string{"CONFIG: metricsAddress: ", "no interface has this address: use 127.0.0.1"},
		},
		{name: "KeyWithLoosePermissions", config: good, prepare: func(t *testing.T) {
			key := filepath.Join(r.StateDir, "identity.key")
			ok(t, os.Chmod(key, 0o640))
			t.Cleanup(func() { ok(t, os.Chmod(key, 0o600)) })
		}, codes: []int{2}, wants: []string{"identity.key", "0600"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.prepare != nil {
				tc.prepare(t)
			}
			config := filepath.Join(dir, "bad.yaml")
			ok(t, lab.ReplaceFile(config, tc.config))
			stderr := refused(t, r.NS, tc.codes, program, "run", "--config", config)
			for _, w := range tc.wants {
				contains(t, stderr, strings.Replace(w, "CONFIG", config, 1))
			}
		})
	}
}
