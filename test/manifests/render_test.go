package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/config"
)

// pod is the part of a pod's spec that is looked at.
type pod struct {
	HostNetwork                   bool
	DNSPolicy                     string
	PriorityClassName             string
	ServiceAccountName            string
	TerminationGracePeriodSeconds int
	Tolerations                   []map[string]string
	ImagePullSecrets              []map[string]string
	InitContainers, Containers    []container
	Volumes                       []map[string]any
	Affinity                      map[string]any
}

type container struct {
	Name, Image, ImagePullPolicy                string
	Args                                        []string
	Env                                         []env
	Ports                                       []any
	SecurityContext                             map[string]any
	VolumeMounts                                []mount
	StartupProbe, LivenessProbe, ReadinessProbe *struct {
		HTTPGet struct {
			Host, Path string
			Port       int
		}
	}
}

type mount struct {
	Name, MountPath string
	ReadOnly        bool
}

type env struct {
	Name, Value string
	ValueFrom   map[string]map[string]any
}

// podOf reads a pod's spec: of a Pod, or of a template.
func podOf(t *testing.T, o object) pod {
	t.Helper()
	spec := o.at("spec", "template", "spec")
	if o.kind() == "Pod" {
		spec = o.at("spec")
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var p pod
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryVariant(t *testing.T) {
	for name, values := range variants() {
		t.Run(name, func(t *testing.T) {
			for _, o := range render(t, values...) {
				switch o.kind() {
				case "DaemonSet", "Deployment", "ConfigMap", "ServiceAccount":
					if ns := o.at("metadata", "namespace"); ns != "kube-system" {
						t.Errorf("%s %s is in namespace %v", o.kind(), o.name(), ns)
					}
				}
				if o.kind() == "DaemonSet" || o.kind() == "Deployment" {
					check := checkPod
					if o.name() == "edgemesh-controller" {
						check = checkControllersPod
					}
					check(t, podOf(t, o))
					sel, labels := o.at("spec", "selector", "matchLabels"), o.at("spec", "template", "metadata", "labels")
					if !reflect.DeepEqual(sel, labels) {
						t.Errorf("%s selects %v, its pods have %v", o.name(), sel, labels)
					}
				}
			}
		})
	}
}

// Agents of 0.2 list Nodes with kubelets' certificates, whether or not a controller runs: only records and false take that away.
func TestKubeletsListNodes(t *testing.T) {
	for set, lists := range map[string]bool{"agent.cniMode=own": true, "controller.enabled=false": true, "agent.kubeletCredentials=records": false, "agent.kubeletCredentials=false": false,
		"agent.kubeletCredentials=records,controller.enabled=false": true} {
		found := false
		for _, o := range render(t, append(variants()["least"], "--set", set)...) {
			if o.kind() == "ClusterRoleBinding" && o.at("metadata", "name") == "edgemesh:agent-nodes" {
				found = strings.Contains(fmt.Sprint(o.at("subjects")), "system:nodes")
			}
		}
		if found != lists {
			t.Errorf("%s: kubelets list Nodes: %v", set, found)
		}
	}
}

// theirs are the objects of KubeEdge's EdgeMesh v1.17, agent and gateway, by kind, namespace and name.
func theirs() []string {
	return []string{
		"ServiceAccount kubeedge/edgemesh-agent", "DaemonSet kubeedge/edgemesh-agent", "ConfigMap kubeedge/edgemesh-agent-cfg", "ConfigMap kubeedge/edgemesh-agent-psk",
		"ClusterRole /edgemesh-agent", "ClusterRoleBinding /edgemesh-agent",
		"ServiceAccount kubeedge/edgemesh-gateway", "Deployment kubeedge/edgemesh-gateway", "ConfigMap kubeedge/edgemesh-gateway-cfg", "ConfigMap kubeedge/edgemesh-gateway-psk",
		"ClusterRole /edgemesh-gateway", "ClusterRoleBinding /edgemesh-gateway",
	}
}

// Nothing of ours is KubeEdge's EdgeMesh's: neither an object, nor a pod that its selector matches, nor one of its pods by ours.
func TestBesideEdgeMesh(t *testing.T) {
	selector := map[string]any{"k8s-app": "kubeedge", "kubeedge": "edgemesh-agent"}
	for name, values := range variants() {
		t.Run(name, func(t *testing.T) {
			for _, o := range render(t, values...) {
				ns, _ := o.at("metadata", "namespace").(string)
				if id := fmt.Sprintf("%s %s/%s", o.kind(), ns, o.name()); slices.Contains(theirs(), id) {
					t.Errorf("%s is EdgeMesh's", id)
				}
				labels, _ := o.at("spec", "template", "metadata", "labels").(map[string]any)
				ours, _ := o.at("spec", "selector", "matchLabels").(map[string]any)
				if labels["kubeedge"] == selector["kubeedge"] || len(ours) > 0 && within(ours, selector) {
					t.Errorf("%s %s: labels %v, selector %v: EdgeMesh's are %v", o.kind(), o.name(), labels, ours, selector)
				}
			}
		})
	}
}

// within reports whether labels have all that a selector requires.
func within(selector, labels map[string]any) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// checkPod checks what all our pods need.
func checkPod(t *testing.T, p pod) {
	t.Helper()
	if !p.HostNetwork || p.DNSPolicy != "Default" || !strings.HasPrefix(p.PriorityClassName, "system-") {
		t.Errorf("hostNetwork %v, dnsPolicy %s, priority %s", p.HostNetwork, p.DNSPolicy, p.PriorityClassName)
	}
	if len(p.Tolerations) != 1 || p.Tolerations[0]["operator"] != "Exists" || len(p.Tolerations[0]) != 1 {
		t.Errorf("tolerations %v: a node that is not ready, or is cut off, has taints", p.Tolerations)
	}
	var volumes, mounts []string
	for _, v := range p.Volumes {
		volumes = append(volumes, v["name"].(string))
	}
	for _, m := range p.Containers[0].VolumeMounts {
		mounts = append(mounts, m.Name)
	}
	if !slices.Equal(volumes, mounts) {
		t.Errorf("volumes %v, mounts %v", volumes, mounts)
	}
	if p.TerminationGracePeriodSeconds != 10 {
		t.Errorf("grace period %d s", p.TerminationGracePeriodSeconds)
	}
}

// checkControllersPod checks that the controller has no rights on its node.
func checkControllersPod(t *testing.T, p pod) {
	t.Helper()
	if p.HostNetwork || !strings.HasPrefix(p.PriorityClassName, "system-") || p.TerminationGracePeriodSeconds != 10 || p.ServiceAccountName != "edgemesh-controller" {
		t.Errorf("hostNetwork %v, priority %s, grace period %d s, service account %s", p.HostNetwork, p.PriorityClassName, p.TerminationGracePeriodSeconds, p.ServiceAccountName)
	}
	c := p.Containers[0]
	s := c.SecurityContext
	if s["runAsNonRoot"] != true || s["readOnlyRootFilesystem"] != true || s["allowPrivilegeEscalation"] != false ||
		fmt.Sprint(s["capabilities"]) != "map[drop:[ALL]]" || fmt.Sprint(s["seccompProfile"]) != "map[type:RuntimeDefault]" {
		t.Errorf("security context %v", s)
	}
	if len(p.Volumes) != len(c.VolumeMounts) || strings.Contains(fmt.Sprint(p.Volumes), "hostPath") {
		t.Errorf("volumes %v, mounts %v", p.Volumes, c.VolumeMounts)
	}
	if c.Args[0] != "controller" || c.LivenessProbe == nil || c.ReadinessProbe == nil || len(c.Ports) != 1 ||
		c.Args[1] != fmt.Sprintf("--metrics-address=:%d", c.LivenessProbe.HTTPGet.Port) {
		t.Errorf("args %v, ports %v", c.Args, c.Ports)
	}
}

func TestAgentDaemonSet(t *testing.T) {
	ds := find(t, render(t, must()...), "DaemonSet", "edgemesh-agent")
	update, _ := ds.at("spec", "updateStrategy", "rollingUpdate").(map[string]any)
	if fmt.Sprint(update) != "map[maxSurge:10% maxUnavailable:0]" {
		t.Errorf("update strategy %v: the old pod must not end before the new one stands by", update)
	}
	if s, _ := ds.at("spec", "minReadySeconds").(float64); s < 5 {
		t.Errorf("a pod that is ready for %v s ends the old one: one that crashes may be", s)
	}
	p := podOf(t, ds)
	c := p.Containers[0]
	if !slices.Contains(c.Args, "--wait") || len(c.Ports) > 0 {
		t.Errorf("args %v, ports %v: the new pod must be able to stand by beside the old one", c.Args, c.Ports)
	}
	// A profile of our own must be on the node before the pod, so it is only for those who choose it.
	if got := fmt.Sprint(c.SecurityContext["seccompProfile"]); got != "map[type:RuntimeDefault]" || c.SecurityContext["readOnlyRootFilesystem"] != true {
		t.Errorf("security context %v", c.SecurityContext)
	}
	if c.SecurityContext["privileged"] != false ||
		fmt.Sprint(c.SecurityContext["capabilities"]) != "map[add:[NET_ADMIN NET_RAW] drop:[ALL]]" {
		t.Errorf("security context %v", c.SecurityContext)
	}
	// The init container installs the plugin; the agent may only read.
	writable := func(c container) []string {
		var out []string
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly {
				out = append(out, m.Name)
			}
		}
		return out
	}
	if slices.Contains(writable(c), "cni-bin") || len(p.InitContainers) != 1 {
		t.Fatalf("the agent may write to %v, init containers %v", writable(c), p.InitContainers)
	}
	if i := p.InitContainers[0]; i.Image != c.Image || !slices.Equal(i.Args, []string{"plugin"}) || !slices.Equal(writable(i), []string{"cni-bin"}) ||
		fmt.Sprint(i.SecurityContext["capabilities"]) != "map[drop:[ALL]]" {
		t.Errorf("init container %+v", i)
	}
	other := podOf(t, find(t, render(t, with(set("agent.pluginInstall=agent"))...), "DaemonSet", "edgemesh-agent"))
	if len(other.InitContainers) > 0 || !slices.Contains(writable(other.Containers[0]), "cni-bin") {
		t.Errorf("where the agent installs the plugin: %v, init containers %v", writable(other.Containers[0]), other.InitContainers)
	}
	if c.Image != "localhost/edgemesh-agent:"+appVersion(t) {
		t.Errorf("image %s is not what `make images` makes", c.Image)
	}
	for _, probe := range []any{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if got := fmt.Sprintf("%+v",
			reflect.ValueOf(probe).Elem().Interface()); got != "{HTTPGet:{Host:127.0.0.1 Path:/healthz Port:9469}}" {
			t.Errorf("probe %s", got)
		}
	}
	// From a ConfigMap in the environment no container starts while the API is down.
	for _, e := range c.Env {
		if e.ValueFrom["configMapKeyRef"] != nil {
			t.Errorf("%s comes from %v", e.Name, e.ValueFrom)
		}
	}
}

func appVersion(t *testing.T) string {
	t.Helper()
	v, _ := parse(t, read(t, "manifests/edgemesh/Chart.yaml"))[0].at("appVersion").(string)
	return v
}

func TestValuesReachTheirPlace(t *testing.T) {
	all := render(t, variants()["everything"]...)
	p := podOf(t, find(t, all, "DaemonSet", "edgemesh-agent"))
	c := p.Containers[0]
	if got := fmt.Sprint(c.SecurityContext["seccompProfile"]); got != "map[localhostProfile:edgemesh-agent.json type:Localhost]" {
		t.Errorf("seccomp profile %s", got)
	}
	if c.Image != "registry.example.org:5000/edge/edgemesh-agent:1.2.3" || len(p.ImagePullSecrets) != 2 {
		t.Errorf("image %s, pull secrets %v", c.Image, p.ImagePullSecrets)
	}
	if !slices.ContainsFunc(c.Env, func(e env) bool {
		return reflect.DeepEqual(e, env{Name: "KUBERNETES_SERVICE_HOST", Value: "203.0.113.10"})
	}) {
		t.Errorf("environment %+v", c.Env)
	}
	if last := c.Env[len(c.Env)-1]; last.Name != "GODEBUG" || last.Value != "gctrace=1" {
		t.Errorf("agent.env is not in the environment %+v", c.Env)
	}
	if h := c.ReadinessProbe.HTTPGet.Host; h != "127.0.0.1" {
		t.Errorf("an endpoint on all interfaces is probed at %q", h)
	}
	if e := find(t, all, "PodNetwork", "cluster").at("spec", "encryption"); e != "always" {
		t.Errorf("encryption %v", e)
	}
	if m := find(t, all, "PodNetwork", "cluster").at("spec", "memberRelays"); m != true {
		t.Errorf("memberRelays %v", m)
	}
	if text, _ := find(t, all, "ConfigMap", "edgemesh-agent").at("data", "agent.yaml").(string); !strings.Contains(text, "joinSecretFile: /etc/edgemesh-join/join-secret\n") {
		t.Errorf("no join secret in\n%s", text)
	}
	for _, v := range p.Volumes {
		if s, ok := v["secret"].(map[string]any); ok && fmt.Sprint(s) != "map[defaultMode:256 secretName:edgemesh-join]" {
			t.Errorf("the join secret is mounted as %v: others on the node may read it", s) // 256 is 0400
		}
	}
	low := render(t, variants()["low ports"]...)
	metrics, single := render(t, variants()["low metrics"]...), render(t, variants()["single nodes"]...)
	for _, o := range []object{
		find(t, low, "DaemonSet", "edgemesh-agent"), find(t, low, "Deployment", "edgemesh-relay"),
		find(t, metrics, "DaemonSet", "edgemesh-agent"), find(t, metrics, "Deployment", "edgemesh-relay"),
		find(t, single, "DaemonSet", "edgemesh-agent"),
	} {
		if caps := podOf(t, o).Containers[0].SecurityContext["capabilities"]; !strings.Contains(fmt.Sprint(caps), "NET_BIND_SERVICE") {
			t.Errorf("%s listens on a port below 1024 with the capabilities %v", o.name(), caps)
		}
	}

	relay := render(t, variants()["relay"]...)
	checkRelay(t, find(t, relay, "Deployment", "edgemesh-relay"), "65532", "map[drop:[ALL]]")
	checkRelay(t, find(t, low, "Deployment", "edgemesh-relay"), "0", "map[add:[NET_BIND_SERVICE] drop:[ALL]]")
	if text, _ := find(t, relay, "ConfigMap", "edgemesh-relay").at("data", "relay.yaml").(string); !strings.Contains(text, "/ip4/0.0.0.0/udp/4001/quic-v1") ||
		!strings.Contains(text, `announce: ["/ip4/203.0.113.5"]`) ||
		!strings.Contains(text, `limits: {"maxCircuits":100}`) {
		t.Errorf("relay.yaml:\n%s", text)
	}

	privileged := podOf(t, find(t, render(t, variants()["privileged"]...), "DaemonSet", "edgemesh-agent")).Containers[0]
	if privileged.SecurityContext["privileged"] != true || privileged.LivenessProbe != nil ||
		!slices.Contains(privileged.Args, "--verbose") {
		t.Errorf("privileged, verbose and without metrics: %+v", privileged)
	}
	if d := find(t, all, "Deployment", "edgemesh-controller"); d.at("spec", "replicas") != 3.0 || podOf(t, d).Containers[0].Image != c.Image {
		t.Errorf("the controller: %v replicas of %s", d.at("spec", "replicas"), podOf(t, d).Containers[0].Image)
	}
	own := render(t, variants()["own PodNetwork"]...)
	if has(own, "Deployment", "edgemesh-controller") {
		t.Error("controller.enabled=false makes a controller")
	}
	if has(own, "PodNetwork", "cluster") || has(own, "Deployment", "edgemesh-relay") {
		t.Error("podNetwork.create=false makes a PodNetwork, or the relay comes unasked")
	}
}

// checkRelay wants a relay that runs as this user, owner of its state directory, with these capabilities.
func checkRelay(t *testing.T, o object, user, capabilities string) {
	t.Helper()
	p := podOf(t, o)
	c := p.Containers[0].SecurityContext
	if fmt.Sprint(c["runAsUser"]) != user || fmt.Sprint(c["capabilities"]) != capabilities || (c["runAsNonRoot"] == true) != (user != "0") ||
		c["allowPrivilegeEscalation"] != false || c["readOnlyRootFilesystem"] != true || fmt.Sprint(c["seccompProfile"]) != "map[type:RuntimeDefault]" {
		t.Errorf("security context %v", c)
	}
	if len(p.InitContainers) != 1 || !strings.HasSuffix(strings.Join(p.InitContainers[0].Args, " "), " --user "+user) {
		t.Errorf("the state directory is not given to user %s: %+v", user, p.InitContainers)
	}
}

// The configurations in the ConfigMaps are read by the agent itself.
func TestAgentReadsItsConfiguration(t *testing.T) {
	t.Setenv("NODE_NAME", "edge-1")
	for name, values := range variants() {
		text, _ := find(t, render(t, values...), "ConfigMap", "edgemesh-agent").at("data", "agent.yaml").(string)
		file := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file)
		if err != nil || c.NodeName != "edge-1" {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
		lan, punch, found := config.LAN{
			Native:    true,
			VXLAN:     true,
			VXLANPort: 5210,
		}, config.Punch{Guess: config.GuessAuto}, config.Discovery{MDNS: true, PortMapping: true}
		mode, queues, keepFor := config.CNIOwn, 0, ""
		if name == "single nodes" {
			lan, punch, found = config.LAN{
				Native:    true,
				VXLANPort: 5210,
			}, config.Punch{Guess: config.GuessNever}, config.Discovery{PortMapping: true}
			mode, queues, keepFor = config.CNIKeep, 2, "3h"
			t.Setenv("NODE_NAME", "edge-2")
			if c, err := config.Load(file); err != nil || !c.Relay.Enabled || len(c.Relay.Announce) != 2 ||
				c.Relay.Limits.MaxCircuits != 9 || len(c.Listen) != 2 || c.TUNQueues != 3 {
				t.Errorf("a node that is a relay: %+v, %v", c, err)
			}
			t.Setenv("NODE_NAME", "edge-1")
		}
		uid := 0
		if name == "everything" {
			uid = 990
			lan, punch, found = config.LAN{
				VXLAN:     true,
				VXLANPort: 5215,
			}, config.Punch{Guess: config.GuessAuto, Former: "remove punch.birthday and write punch: {guess: auto}"}, config.Discovery{MDNS: true}
			mode = config.CNIKeep
		}
		if c.LAN != lan || c.Punch != punch || c.Discovery != found || c.CNIMode != mode || c.TUNQueues != queues || c.Membership.Kubernetes.LocalUID != uid {
			t.Errorf("%s: %+v %+v %+v %s %d %+v", name, c.LAN, c.Punch, c.Discovery, c.CNIMode, c.TUNQueues, c.Membership.Kubernetes)
		}
		if o := c.CNI; name == "everything" && (o.KeepFor != "72h" || o.KeepOnly != "statefulset" ||
			len(o.Exclude) != 2 || !o.PromiscMode || !o.AllowSpoofing ||
			fmt.Sprint(o.Chained) != "[map[type:portmap] map[ingressRate:1e+08 type:bandwidth]]") {
			t.Errorf("options of the plugin: %+v", o)
		} else if name != "everything" && !reflect.DeepEqual(o, config.CNI{KeepFor: keepFor}) {
			t.Errorf("%s: options of the plugin: %+v", name, o)
		}
	}
}

// The relay has read the same of its own when all it lacks is a directory.
func TestRelayReadsItsConfiguration(t *testing.T) {
	t.Parallel()
	bin := relayProgram(t)
	for _, name := range []string{"relay", "everything"} {
		text, _ := find(t, render(t, variants()[name]...), "ConfigMap", "edgemesh-relay").at("data", "relay.yaml").(string)
		text = strings.Replace(text, "/var/lib/edgemesh-relay", bin, 1)
		c := exec.Command(bin, "run", "--config", file(t, text))
		c.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "stateDir: mkdir "+bin+": not a directory") ||
			strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v: %s in\n%s", name, err, out, text)
		}
	}
}

// A relay in the cluster has a right at the API only where nothing is signed, or keys of one's own are pinned, which sign no bans of the PodNetwork.
func TestRelayHasNoRights(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"relay.enabled=true": "default false signersFile: /etc/edgemesh-signer/signer",
		"agent.signers={12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2}": "edgemesh-relay true membership: {kubernetes: {}}",
		"controller.sign=false": "edgemesh-relay true membership: {kubernetes: {}}",
	} {
		all := render(t, append(must(), "--set", "relay.enabled=true", "--set", set)...)
		o := find(t, all, "Deployment", "edgemesh-relay")
		config, _ := find(t, all, "ConfigMap", "edgemesh-relay").at("data", "relay.yaml").(string)
		got := fmt.Sprint(podOf(t, o).ServiceAccountName, " ", o.at("spec", "template", "spec", "automountServiceAccountToken"))
		if parts := strings.SplitN(want, " ", 3); got != parts[0]+" "+parts[1] || !strings.Contains(config, "\n"+parts[2]) {
			t.Errorf("%s: %s\n%s", set, got, config)
		}
	}
}

// The static pod is the DaemonSet's pod, except for what static pods cannot have.
func TestStaticPodIsTheDaemonSetsPod(t *testing.T) {
	daemon := podOf(t, find(t, render(t, must()...), "DaemonSet", "edgemesh-agent"))
	static := podOf(t, parse(t, read(t, "manifests/static-pod/edgemesh-agent.yaml"))[0])
	checkPod(t, static)
	if static.ServiceAccountName != "" {
		t.Error("kubelet refuses static pods with a service account")
	}
	for _, v := range static.Volumes {
		if v["hostPath"] == nil {
			t.Errorf("volume %v: kubelet refuses static pods that need the API", v)
		}
	}
	for _, e := range static.Containers[0].Env {
		if e.ValueFrom["fieldRef"] == nil {
			t.Errorf("variable %s needs the API", e.Name)
		}
	}
	static.ServiceAccountName = daemon.ServiceAccountName
	// A static pod may have been given other directories by hand: its agent installs the plugin.
	daemon = podOf(t, find(t, render(t, with(set("agent.pluginInstall=agent"))...), "DaemonSet", "edgemesh-agent"))
	daemon.Affinity = nil // a static pod is where it is
	a, b := &daemon.Containers[0], &static.Containers[0]
	a.Env, b.Env = nil, nil
	only := func(p *pod, names ...string) { // the rest, in order
		p.Volumes = slices.DeleteFunc(p.Volumes,
			func(v map[string]any) bool { return slices.Contains(names, v["name"].(string)) })
		c := &p.Containers[0]
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts,
			func(m mount) bool { return slices.Contains(names, m.Name) })
		slices.SortFunc(p.Volumes,
			func(v, w map[string]any) int { return strings.Compare(v["name"].(string), w["name"].(string)) })
		slices.SortFunc(c.VolumeMounts,
			func(m, n mount) int { return strings.Compare(m.Name, n.Name) })
	}
	only(&daemon, "config", "apiserver")
	only(&static, "config", "kubeconfig", "credentials-1")
	if !reflect.DeepEqual(daemon, static) {
		t.Errorf("DaemonSet's pod:\n%+v\nstatic pod:\n%+v", daemon, static)
	}
}

// An agent whose default port another program has, or whose key is torn, answers no probe from its start on, or another program does:
// kubelet leaves it alone for a day, and the port is the default that the agent may replace, not one that is configured.
func TestDegradedAgents(t *testing.T) {
	configured, probed := 0, 0
	for _, file := range []string{"edgemesh.yaml", "static-pod/edgemesh-agent.yaml"} {
		for _, o := range parse(t, read(t, "manifests/"+file)) {
			if data, _ := o.at("data", "agent.yaml").(string); data != "" {
				configured++
				if strings.Contains(data, "metricsAddress") {
					t.Errorf("%s sets metricsAddress: an agent whose port is taken would not start", o.name())
				}
			}
			for _, path := range [][]string{{"spec"}, {"spec", "template", "spec"}} {
				all, _ := o.at(append(path, "containers")...).([]any)
				for _, c := range all {
					c := c.(map[string]any)
					if p, is := c["startupProbe"].(map[string]any); is && c["name"] == "agent" {
						probed++
						if n, _ := p["failureThreshold"].(float64); n*p["periodSeconds"].(float64) < 24*60*60 {
							t.Errorf("%s: an agent that starts degraded is restarted: %v", file, p)
						}
					}
				}
			}
		}
	}
	if configured < 1 || probed < 2 {
		t.Errorf("%d configurations, %d agents, want those of the DaemonSet and the static pod", configured, probed)
	}
}

// A container that is stopped altogether answers no probe and obeys no SIGTERM: kubelet kills it within 40 s by the manifests'
// liveness probes, and not sooner than systemd does, which waits 30 s and 5 s more.
func TestStoppedContainers(t *testing.T) {
	seen := 0
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(where, x)
			}
		case map[string]any:
			if p, is := v["livenessProbe"].(map[string]any); is {
				seen++
				n := func(key string) float64 { f, _ := p[key].(float64); return f }
				killed := n("failureThreshold")*max(n("periodSeconds"), n("timeoutSeconds")) + n("terminationGracePeriodSeconds")
				if first := n("periodSeconds"); killed < 30 || first+killed > 40 {
					t.Errorf("%s: a container that is stopped is killed between %v and %v s later: %v", where, killed, first+killed, p)
				}
			}
			for _, x := range v {
				walk(where, x)
			}
		}
	}
	for _, file := range []string{"edgemesh.yaml", "edgemesh-relay.yaml", "static-pod/edgemesh-agent.yaml"} {
		for _, o := range parse(t, read(t, "manifests/"+file)) {
			walk(file+": "+o.name(), map[string]any(o))
		}
	}
	if seen < 4 {
		t.Errorf("%d liveness probes, want those of agent, static pod, relay and controller", seen)
	}
}
