package manifests

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

// They need helm, kubeconform and an API server.
var _ = tier.Package(tier.OfAll)

const (
	root  = "../.."
	chart = root + "/manifests/edgemesh"
	// relayAddr is a relay as a user gives it.
	relayAddr = "/ip4/203.0.113.5/tcp/4470/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
)

// must is what a cluster cannot do without.
func must() []string { return []string{"--set", "podNetwork.podCIDRs={10.244.0.0/16}"} }

// once is what is made once for all tests, by its name.
type once struct{ made sync.Map }

// get has it made where nobody did yet.
func (o *once) get(t *testing.T, name string, how func() (string, error)) string {
	t.Helper()
	v, _ := o.made.LoadOrStore(name, sync.OnceValues(how))
	out, err := v.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tools are paths of programs; rendered is what helm makes of its flags, for which it takes longer than most tests.
var tools, rendered once

// tool builds a tool where it is not built yet, and returns its path.
func tool(t *testing.T, name string) string {
	t.Helper()
	return tools.get(t, name, func() (string, error) {
		c := exec.Command(root+"/build/tool.sh", name)
		c.Stderr = os.Stderr
		out, err := c.Output()
		if err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
		return strings.TrimSpace(string(out)), nil
	})
}

// command runs a program and returns what it printed.
func command(t *testing.T, program string, args ...string) (stdout string, err error) {
	t.Helper()
	c := exec.Command(program, args...)
	// Nothing of the user's: neither clusters nor repositories.
	c.Env = kubeapi.Environ("HOME="+t.TempDir(), "KUBECONFIG=/nonexistent")
	var out, bad bytes.Buffer
	c.Stdout, c.Stderr = &out, &bad
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err,
			out.String(), bad.String())
	}
	return out.String(), nil
}

// object is one rendered object.
type object map[string]any

// at is what is at a path of keys, nil where there is nothing.
func (o object) at(keys ...string) any {
	var v any = map[string]any(o)
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (o object) kind() string { s, _ := o.at("kind").(string); return s }
func (o object) name() string { s, _ := o.at("metadata", "name").(string); return s }

// parse reads a stream of YAML documents.
func parse(t *testing.T, text string) []object {
	t.Helper()
	var out []object
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if len(o) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// template is what the chart makes of values, as text.
func template(t *testing.T, args ...string) string {
	t.Helper()
	helm := tool(t, "helm")
	return rendered.get(t, strings.Join(args, "\x00"), func() (string, error) {
		return command(t, helm, append([]string{"template", "edgemesh", chart, "-n", "kube-system"}, args...)...)
	})
}

// render is what the chart makes of values.
func render(t *testing.T, args ...string) []object {
	t.Helper()
	return parse(t, template(t, args...))
}

// find returns the one object of that kind and name.
func find(t *testing.T, list []object, kind, name string) object {
	t.Helper()
	for _, o := range list {
		if o.kind() == kind && o.name() == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func has(list []object, kind, name string) bool {
	for _, o := range list {
		if o.kind() == kind && o.name() == name {
			return true
		}
	}
	return false
}

func read(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// set is helm's flags that set these values.
func set(values ...string) (flags []string) {
	for _, v := range values {
		flags = append(flags, "--set", v)
	}
	return flags
}

// with adds to the values that the chart requires.
func with(flags ...[]string) []string { return append(must(), slices.Concat(flags...)...) }

// structure is helm's flag that sets a value which is a structure.
func structure(value string) []string { return []string{"--set-json", value} }

// literal is helm's flag that sets a value as it is.
func literal(key, value string) []string { return []string{"--set-string", key + "=" + value} }

// nodeCA has the form of cloudcore's CA.
const nodeCA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

// pluginJSON and nodesJSON use every key there is.
const (
	pluginJSON = `agent.cni={
		"keepFor": "72h",
		"keepOnly": "statefulset",
		"exclude": ["10.244.0.2-10.244.0.9", "fd00::/120"],
		"promiscMode": true,
		"allowSpoofing": true,
		"chained": [{"type": "portmap"}, {"type": "bandwidth", "ingressRate": 100000000}]
	}`
	nodesJSON = `agent.nodes={
		"edge-1": {
			"cniMode": "keep",
			"lan": {"vxlan": false},
			"tunQueues": 2,
			"proxy": "none",
			"discovery": {"mdns": false},
			"punch": {"guess": "never"},
			"cni": {"keepFor": "3h"}
		},
		"edge-2": {
			"listen": ["/ip4/0.0.0.0/tcp/443", "/ip4/0.0.0.0/udp/4470/quic-v1"],
			"relay": {"enabled": true, "announce": ["/ip4/203.0.113.9"], "limits": {"maxCircuits": 9}}
		}
	}`
)

// variants are uses of the chart.
func variants() map[string][]string {
	return map[string][]string{
		"least": must(),
		"dual-stack": set(
			"podNetwork.podCIDRs={10.244.0.0/16,fd00:10:244::/48}",
			"podNetwork.relays={"+relayAddr+"}",
		),
		"relay": with(set(
			"relay.enabled=true",
			"relay.announce={/ip4/203.0.113.5}",
			"relay.port=4001",
			"relay.limits.maxCircuits=100",
		)),
		"low ports": with(set(
			"relay.enabled=true",
			"relay.port=443",
			"agent.listen={/ip4/0.0.0.0/udp/4001/quic-v1,/ip4/0.0.0.0/tcp/443}",
		)),
		"privileged": with(set(
			"agent.privileged=true",
			"agent.verbose=true",
			"agent.metricsAddress=",
			"relay.metricsAddress=",
		)),
		"everything": with(set(
			"apiServer.host=203.0.113.10",
			"image.pullSecrets={a,b}",
			"image.registry=registry.example.org:5000/edge",
			"image.tag=1.2.3",
			"agent.listen={/ip4/0.0.0.0/udp/4001/quic-v1}",
			"agent.metricsAddress=0.0.0.0:9469",
			"agent.podAnnotations.a=b",
			"agent.updateStrategy.maxSurge=10%",
			"agent.nodeSelector.site=a",
			"agent.hostPaths.cniConf=/var/lib/rancher/k3s/agent/etc/cni/net.d",
			"agent.punch.birthday=true",
			"agent.discovery.portMapping=false",
			"agent.cniMode=keep",
			"agent.localUID=990",
			"agent.joinSecret=edgemesh-join",
			"agent.proxy=http://10.1.1.1:3128",
			"agent.proxyCredentials=/var/lib/edgemesh/proxy-credentials",
			"controller.replicas=3",
			"podNetwork.admitLabel=node-restriction.kubernetes.io/edgemesh=yes",
			"agent.seccompProfile=edgemesh-agent.json",
			"agent.env.GODEBUG=gctrace=1",
			"podNetwork.encryption=always",
			"podNetwork.memberRelays=true",
			"podNetwork.hostAccess=nodes",
			"podNetwork.hostPorts={53/udp,53/tcp}",
			"podNetwork.podDenyCIDRs={169.254.169.254/32,10.0.0.0/8}",
			"relay.enabled=true",
		), structure(`agent.lan={"native": false, "vxlanPort": 5215}`), structure(pluginJSON)),
		"own PodNetwork": set("podNetwork.create=false", "controller.enabled=false"),
		"low metrics": with(set(
			"relay.enabled=true",
			"relay.metricsAddress=127.0.0.1:970",
			"agent.metricsAddress=127.0.0.1:969",
		)),
		"monitored": with(set(
			"agent.metricsAddress=mesh:9469",
			"relay.enabled=true",
			"relay.metricsAddress=mesh:9479",
			"monitoring.podMonitor=true",
			"monitoring.rules=true",
			"monitoring.dashboards=true",
			"monitoring.labels.release=stack",
		)),
		"KubeEdge": with(set("kubeedge.enabled=true"), literal("kubeedge.ca", nodeCA)),
		"KubeEdge, everything": with(set(
			"kubeedge.enabled=true",
			"kubeedge.label=site.example.org/edge",
			"kubeedge.certificates=/srv/edgecore/certs",
			"kubeedge.cloudcore.namespace=edge-system",
			"kubeedge.cloudcore.name=core",
			"agent.joinSecret=edgemesh-join",
			"apiServer.host=203.0.113.10",
		)),
		"single nodes": with(set("agent.tunQueues=3"), structure(nodesJSON)),
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	for name, values := range variants() {
		if _, err := command(t, tool(t, "helm"), append([]string{
			"lint", "--strict", chart,
		}, values...)...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Host bits inside of a byte are beyond what a schema can see.
func TestHostBits(t *testing.T) {
	t.Parallel()
	helm := tool(t, "helm")
	for cidr, want := range map[string]string{
		"10.244.8.0/20":      "10.244.8.0/20 has bits set behind its prefix length: byte 3 must be a multiple of 16",
		"10.3.0.0/15":        "byte 2 must be a multiple of 2",
		"10.244.0.5/30":      "byte 4 must be a multiple of 4",
		"fd00:10:244:1::/56": "fd00:10:244:1::/56 has bits set behind its prefix length: group 4 must be a multiple of 0x100",
		"fd00::1/80":         "group 8 must be a multiple of 0x10000", "fd00:0:0:1:2:3:4:5/127": "group 8 must be a multiple of 0x2",
		"fd00:10:244:100::/56": "", "fd00::/64": "", "fd00::1:0/112": "", "fd00:0:0:1:2:3:4:4/127": "", "fd00:10:244:8a00::/55": "", "::1:0/112": "",
		"10.244.0.0/20": "", "10.2.0.0/15": "", "10.244.0.4/30": "", "8.0.0.0/5": "",
	} {
		_, err := command(t, helm, "template", "x", chart, "--set", "podNetwork.podCIDRs={"+cidr+"}")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", cidr, err, want)
		}
	}
}

// A limit is judged as the quantity that it is.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	helm := tool(t, "helm")
	for limit, want := range map[string]string{
		"agent=10Mi": "agent.resources.limits.memory: 10Mi is too little", "agent=0.01Gi": "64Mi or more", "agent=1000000": "64Mi or more",
		"agent=67108863": "64Mi or more", "agent=64M": "64Mi or more", "agent=65535Ki": "64Mi or more", "relay=1e7": "relay.resources.limits.memory: 1e7",
		"controller=31Mi": "32Mi or more", "agent=64MB": "/agent/resources/limits/memory",
		"agent=64Mi": "", "agent=65536Ki": "", "agent=1e9": "", "agent=0.0625Gi": "", "agent=67108864": "", "relay=1G": "", "controller=32Mi": "",
	} {
		who, value, _ := strings.Cut(limit, "=")
		for _, flag := range []string{"--set", "--set-string"} {
			_, err := command(t, helm, append([]string{"template", "x", chart, flag, who + ".resources.limits.memory=" + value}, with(set("relay.enabled=true"))...)...)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %s: %v, want %q", flag, limit, err, want)
			}
		}
	}
}

// The plain manifests are what the chart renders now.
func TestPlainManifestsAreUpToDate(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command(root+"/build/manifests.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"edgemesh.yaml", "edgemesh-relay.yaml"} {
		fresh, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(fresh) != read(t, "manifests/"+name) {
			t.Errorf("manifests/%s is not what the chart renders: run `make manifests` and commit it", name)
		}
	}
}

// Values that cannot work are refused before anything is installed, and the
// message names the value.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	helm := tool(t, "helm")
	refusals := map[string]string{
		"podNetwork.podCIDRs=":                             "/podNetwork/podCIDRs",
		"podNetwork.podCIDRs={10.244.0.0}":                 "/podNetwork/podCIDRs/0",
		"podNetwork.podCIDRs={10.244.0.0/16}x":             "",
		"podNetwork.podCIDRs={10.244.0.1/16}":              "/podNetwork/podCIDRs/0", // host bits
		"podNetwork.podCIDRs={10.244.0.0/16,fd00::1/64}":   "/podNetwork/podCIDRs/1",
		"podNetwork.podCIDRs={fd00:1:2:3:4::/64}":          "/podNetwork/podCIDRs/0",
		"agent.proxy=10.1.1.1:3128":                        "/agent/proxy",
		"podNetwork.relays={/ip4/203.0.113.5/tcp/4470}":    "/podNetwork/relays/0",
		"podNetwork.encryption=never":                      "/podNetwork/encryption",
		"podNetwork.admitLabel=role":                       "/podNetwork/admitLabel",
		"controller.metricsPort=80":                        "/controller/metricsPort",
		"controller.replica=2":                             "/controller",
		"podNetwork.hostAccess=some":                       "/podNetwork/hostAccess",
		"podNetwork.hostPorts={53}":                        "/podNetwork/hostPorts/0",
		"podNetwork.hostPorts={65536/udp}":                 "/podNetwork/hostPorts/0",
		"podNetwork.podDenyCIDRs={169.254.169.254}":        "/podNetwork/podDenyCIDRs/0",
		"podNetwork.blockSize=31":                          "/podNetwork/blockSize",
		"podNetwork.podCIDR=10.244.0.0/16":                 "/podNetwork",
		"apiServer.host=https://203.0.113.10":              "/apiServer/host",
		"agent.cni.keepOnly=some":                          "/agent/cni/keepOnly",
		"agent.cni.keepFor=3 days":                         "/agent/cni/keepFor",
		"agent.cni.keepFor=0h0m":                           "/agent/cni/keepFor",
		"agent.cni.exclude={here}":                         "/agent/cni/exclude/0",
		"agent.cni.chained={portmap}":                      "/agent/cni/chained/0",
		"agent.cni.chained[0].type=edgemesh-cni":           "/agent/cni/chained/0",
		"agent.cni.keep=all":                               "/agent/cni",
		"agent.hostPaths.state=var/lib":                    "/agent/hostPaths/state",
		"agent.metricsAddress=9469":                        "/agent/metricsAddress",
		"agent.discovery.upnp=false":                       "/agent/discovery",
		"agent.lan.vxlanPort=0":                            "/agent/lan/vxlanPort",
		"agent.proxy=socks5://10.1.1.1:1080":               "/agent/proxy",
		"agent.proxy=http://u:p@10.1.1.1:3128":             "/agent/proxy",
		"agent.tunQueues=9":                                "/agent/tunQueues",
		"agent.nodes.edge-1.tunQueues=9":                   "/agent/nodes/edge-1/tunQueues",
		"agent.nodes.edge-1.stateDir=/x":                   "/agent/nodes/edge-1",
		"agent.nodes.Edge_1.tunQueues=1":                   "Edge_1",
		"agent.nodes.edge-1.relay.enable=true":             "/agent/nodes/edge-1/relay",
		"agent.punch.birthday=2":                           "/agent/punch/birthday",
		"agent.punch.guess=sometimes":                      "/agent/punch/guess",
		"agent.nodes.edge-1.punch.guess=false":             "/agent/nodes/edge-1/punch/guess",
		"podNetwork.memberRelays=all":                      "/podNetwork/memberRelays",
		"agent.listen={/ip4/0.0.0.0/udp/4001}":             "/agent/listen/0",
		"image.pullPolicy=Sometimes":                       "/image/pullPolicy",
		"relay.announce={203.0.113.5}":                     "/relay/announce/0",
		"relay.limits.maxCircuit=1":                        "/relay/limits",
		"relays.enabled=true":                              "relays",
		"agent.updateStrategy.maxSurge=all":                "/agent/updateStrategy/maxSurge",
		"agent.updateStrategy.maxSurge=0":                  "/agent/updateStrategy", // neither, which the API refuses
		"agent.updateStrategy.maxUnavailable=1":            "/agent/updateStrategy", // both
		"image.registry=https://registry.example.org":      "/image/registry",
		"relay.port=70000":                                 "/relay/port",
		"podNetwork.wanCIDRs={company}":                    "/podNetwork/wanCIDRs/0",
		"agent.privileged=perhaps":                         "/agent/privileged",
		"relay.limits.bufferSize=1024":                     "/relay/limits/bufferSize",
		"agent.resources.request.cpu=1":                    "/agent/resources",
		"image.tag=a b":                                    "/image/tag",
		"relay.replicas=-1":                                "/relay/replicas",
		"podNetwork.podCIDRs={10.0.0.0/16,10.0.0.0/16}":    "/podNetwork/podCIDRs",
		"agent.seLinuxOptions.type=1":                      "", // numbers are not strings
		"agent.tolerations.operator=Exists":                "/agent/tolerations",
		"podNetwork.blockSizeIPv6=127":                     "/podNetwork/blockSizeIPv6",
		"relay.metricsAddress=here:9470":                   "/relay/metricsAddress",
		"apiServer.port=https":                             "/apiServer/port",
		"relay.enabled=yes":                                "/relay/enabled",
		"relay.stateDir=":                                  "/relay/stateDir",
		"agent.nodeSelector.site=1":                        "/agent/nodeSelector",
		"podNetwork.relays={/ip4/203.0.113.5/tcp/1/p2p/Q}": "/podNetwork/relays/0",
	}
	for _, sets := range apart(refusals) {
		_, err := command(t, helm, append([]string{"template", "x", chart}, with(set(sets...))...)...)
		for _, set := range sets {
			if err == nil {
				t.Errorf("%s is accepted", set)
			} else if !strings.Contains(err.Error(), refusals[set]) {
				t.Errorf("%s is accepted, or the message does not name %q: %v", set, refusals[set], err)
			}
		}
		if err != nil && (strings.Contains(err.Error(), "pattern") || strings.Contains(err.Error(), "'not'")) {
			t.Errorf("a message has a pattern in place of words: %v", err)
		}
	}
}

// A value that was removed is refused where it is in use, and the message names it and what replaces it; its old default is not.
func TestRemovedValue(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"true": true, "false": false} {
		_, err := command(t, tool(t, "helm"), append([]string{"template", "x", chart}, with(set("controller.map="+value))...)...)
		if refused := err != nil && strings.Contains(err.Error(), "controller.map was removed") && strings.Contains(err.Error(), "kubectl edgemesh map NODE"); refused != want {
			t.Errorf("controller.map=%s: %v", value, err)
		}
	}
}

// apart groups values that one run of helm can refuse: none is inside another, and no message is good for two.
func apart(refusals map[string]string) (groups [][]string) {
	inside := func(a, b string) bool {
		place := func(set string) string {
			key, _, _ := strings.Cut(set, "=")
			return strings.ReplaceAll(key, "[", ".") + "."
		}
		return strings.HasPrefix(place(a), place(b)) || strings.Contains(refusals[a], refusals[b]) // "" is in every message
	}
	for _, set := range slices.Sorted(maps.Keys(refusals)) {
		i := slices.IndexFunc(groups, func(g []string) bool {
			return !slices.ContainsFunc(g, func(other string) bool { return inside(set, other) || inside(other, set) })
		})
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], set)
	}
	return groups
}
