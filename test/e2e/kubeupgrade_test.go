package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	kuberest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"edgemesh/test/kubeapi"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// How the API server answered a write that nothing may let pass.
const (
	accepted = "ACCEPTED"
	byPolicy = "refused by a policy"
	silent   = "no answer"
)

// TestKubernetesUpgrade: the control plane of a cluster goes from one version to the next, on the same data, and the chart after it as
// docs/compatibility.md says, while pods of two sites talk. From the first version with policies on what nodes may not write is tried all
// the time, and never accepted. EDGEMESH_K8S_UPGRADE has the versions (make e2e-upgrades).
func TestKubernetesUpgrade(t *testing.T) {
	tier.Long(t)
	versions := strings.Fields(os.Getenv("EDGEMESH_K8S_UPGRADE"))
	if len(versions) == 0 {
		t.Skip("NOT RUN: it builds an API server of each version, for minutes: EDGEMESH_K8S_UPGRADE='v1.28.15 v1.29.14 v1.30.14' (make e2e-upgrades)")
	}
	t.Setenv("EDGEMESH_K8S_VERSION", versions[0])
	u := newUpgraded(t, &chart{}, "")
	c, h, a, b := u.c, u.chart, u.a, u.b

	var p *prober // from 1.30 on
	for i, v := range versions {
		if i > 0 {
			t.Setenv("EDGEMESH_K8S_VERSION", v)
			began := time.Now()
			ok(t, c.Upgrade())
			t.Logf("%s: its API server is ready %.1f s after the end of the one before", v, time.Since(began).Seconds())
			for _, n := range []*lab.Node{a, b} { // kubelets renew tokens within the hour; those of 1.29 name no node
				ok(t, c.AgentToken(n.Name, filepath.Join(n.Dir, "token"), 4*3600))
			}
			if p != nil {
				p.guarded(v+", before the chart", byPolicy)
			}
			h.upgrade()
		}
		if c.Old() {
			continue
		}
		if p == nil {
			ok(t, c.AwaitPolicies())
			p = newProber(t, c, h.kubeconfig)
		}
		p.guarded(v, byPolicy)
		p.own(v, a.PeerID)
	}
	for proto, g := range u.end(t) {
		if g.Sent == 0 || g.FairMs > 2000 || proto == "icmp" && g.Lost*1000 > g.Sent {
			t.Errorf("%s: %d of %d lost, a gap of %.0f ms", proto, g.Lost, g.Sent, g.FairMs)
		}
	}
	if p == nil {
		return
	}
	p.never()

	// Without what guards, the same writes pass: the test would have seen a moment without.
	_, err := c.Kubectl("delete", "validatingadmissionpolicybindings", "--all")
	ok(t, err)
	ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
		if p.last() != accepted {
			return fmt.Errorf("without a guard: %s", p.last())
		}
		return nil
	}))
}

// upgraded is a cluster with the chart and two nodes in the lab, whose pods talk as long as the test runs.
type upgraded struct {
	*chart
	lab        *lab.Lab
	a, b       *lab.Node
	podA, podB *lab.Pod
	flows      map[string]func() (lab.Gaps, error)
}

// newUpgraded installs h's chart with these arguments of helm where there are these objects, and runs h's programs.
func newUpgraded(t *testing.T, h *chart, objects string, more ...string) *upgraded {
	t.Helper()
	u := &upgraded{chart: h, lab: newLab(t), flows: map[string]func() (lab.Gaps, error){}}
	for _, name := range append([]string{"relay"}, h.spare...) {
		relay(t, u.lab, name)
	}
	u.a, u.b = node(t, site(t, u.lab, "site-a", lab.EIM), "edge-a", lab.NodeOptions{}), node(t, site(t, u.lab, "site-b", lab.EIM), "edge-b", lab.NodeOptions{})
	startRelays(t, u.lab)
	c, kubeconfig := kubernetes(t, u.a, u.b)
	_, err := c.Kubectl("create", "namespace", kubeapi.Namespace)
	ok(t, err)
	ok(t, c.CreateNode("cloud"))
	ok(t, c.CreateNode("bare"))
	ok(t, c.Patch("/api/v1/nodes/cloud", map[string]any{"metadata": map[string]any{"labels": map[string]string{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/os": "linux"}}}))
	ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error { // until their kinds are served
		if objects != "" {
			_, err = c.KubectlStdin(objects, "apply", "-f", "-")
		}
		return err
	}))
	h.t, h.c, h.kubeconfig, h.program, h.relays = t, c, kubeconfig, tool(t, "helm"), u.lab.Cluster.Relays
	if h.dir == "" {
		h.upgrade()
	} else if out, err := h.try(more...); err != nil {
		t.Fatalf("helm: %v\n%s", err, out)
	}
	h.deploy()
	for _, n := range []*lab.Node{u.a, u.b} {
		ok(t, c.CreateNode(n.Name, n.PodCIDRs...))
		token := filepath.Join(n.Dir, "token")
		ok(t, c.AgentToken(n.Name, token, 4*3600))
		ok(t, c.TokenKubeconfig(n.Name+".conf", token, c.URL))
		n.Config.Membership = map[string]any{"kubernetes": map[string]string{"kubeconfig": filepath.Join(c.Dir, n.Name+".conf")}}
		n.Programs = h.programs
		ok(t, n.Start())
	}
	joined := within(t, time.Minute)
	for _, n := range []*lab.Node{u.a, u.b} {
		ok(t, n.WaitPods(joined))
		ok(t, n.WaitReserved(joined))
	}
	u.podA, u.podB = pod(t, u.a, "a"), pod(t, u.b, "b")
	curlPods(t, u.podA, u.podB, 20*time.Second)
	path, err := u.a.WaitPath(within(t, 30*time.Second), u.b, "direct", "punched", "relayed")
	ok(t, err)
	t.Log("the pods' path:", path.Path)
	for _, proto := range []string{"icmp", "tcp"} {
		u.flows[proto] = lasting(t, u.podA.NS, proto, u.podB.IP4(), "--interval", "100ms", "--duration", "90m")
	}
	return u
}

// end ends the flows.
func (u *upgraded) end(t *testing.T) map[string]lab.Gaps {
	t.Helper()
	all := map[string]lab.Gaps{}
	for proto, end := range u.flows {
		g, err := end()
		ok(t, err)
		t.Logf("%s between pods, all upgrades long: %d sent, %d lost, longest gap %.0f ms, of which %.0f count", proto, g.Sent, g.Lost, g.GapMs, g.FairMs)
		all[proto] = g
	}
	return all
}

// exchange has today's agent stand by and take over, as the DaemonSet does.
func (u *upgraded) exchange(t *testing.T, n *lab.Node) {
	t.Helper()
	before := n.Agent
	n.Programs = ""
	var err error
	n.Agent, err = n.NS.Start(before.Name+"-new", n.AgentPath(), "run", "--config", n.ConfigFile(), "--wait")
	ok(t, err)
	u.says(t, n, "standing by")
	ok(t, before.Stop())
	ok(t, n.WaitReserved(within(t, time.Minute)))
}

// says waits until today's agent of a node has said that.
func (u *upgraded) says(t *testing.T, n *lab.Node, text string) {
	t.Helper()
	ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
		log, err := os.ReadFile(n.Agent.Log)
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("%s has not said %q", n.Name, text)
		}
		return err
	}))
}

// TestUpgradeTells: an upgrade from the last release, or from an unreleased state, says what went of what was in use, and pods talk meanwhile.
func TestUpgradeTells(t *testing.T) {
	tier.Long(t)
	for _, x := range []struct {
		name, commit, version, objects string
		values                         []string // of the chart before
		refused                        string   // what helm says at first, "": nothing
		then                           []string // what it takes
		before, after                  func(t *testing.T, u *upgraded)
	}{
		{name: "the controller's map", commit: release020, values: []string{"--set", "controller.map=true"}, refused: "controller.map was removed", then: []string{"--set", "controller.map=false"}},
		{name: "ClusterNetworkPolicies", commit: unreleased, objects: denied, before: func(t *testing.T, u *upgraded) {
			ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
				if u.discard() == nil {
					return errors.New("what the ClusterNetworkPolicy denies passes")
				}
				return nil
			}))
		}, after: func(t *testing.T, u *upgraded) {
			ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, u.discard))
			ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
				st, err := u.a.Status(t.Context())
				if err == nil && !slices.ContainsFunc(st.Findings, func(f lab.Problem) bool { return strings.Contains(f.Detail, "ClusterNetworkPolicy objects exist") }) {
					err = fmt.Errorf("not told: %+v", st.Findings)
				}
				return err
			}))
		}},
		{name: "the webhook", commit: unreleased, version: "v1.29.14", refused: "set podNetwork.trustedNodes=true", then: []string{"--set", "podNetwork.trustedNodes=true"},
			before: func(t *testing.T, u *upgraded) { // it is left, as by plain manifests
				_, err := u.c.Kubectl("annotate", "validatingwebhookconfiguration", "edgemesh", "helm.sh/resource-policy=keep")
				ok(t, err)
			}, after: func(t *testing.T, u *upgraded) {
				u.says(t, u.a, "kubectl delete validatingwebhookconfiguration edgemesh")
				_, err := u.c.Kubectl("delete", "validatingwebhookconfiguration", "edgemesh")
				ok(t, err)
				ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
					all, err := u.c.Kubectl("get", "meshnodes", "-o", "jsonpath={.items[*].status.agentVersion}")
					if versions := strings.Fields(all); err == nil && (len(versions) != 2 || slices.Contains(versions, "dev")) {
						err = fmt.Errorf("the nodes' versions in the API: %q", all)
					}
					return err
				}))
			}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.version != "" {
				t.Setenv("EDGEMESH_K8S_VERSION", x.version)
			}
			u := newUpgraded(t, formerChart(t, x.commit), x.objects, x.values...)
			if x.before != nil {
				x.before(t, u)
			}
			u.dir = ""
			if out, err := u.try(); x.refused != "" && (err == nil || !strings.Contains(out, x.refused)) {
				t.Errorf("helm does not refuse: %v: %s", err, out)
			}
			if out, err := u.try(x.then...); err != nil {
				t.Fatalf("helm: %v\n%s", err, out)
			}
			u.today()
			for _, n := range []*lab.Node{u.a, u.b} {
				u.exchange(t, n)
				curlPods(t, u.podA, u.podB, 20*time.Second)
			}
			if x.after != nil {
				x.after(t, u)
			}
			time.Sleep(5 * time.Second) // sleep: a late gap would show
			for proto, g := range u.end(t) {
				if g.Sent == 0 || g.FairMs > 1000 || proto == "tcp" && g.Lost > 0 { // older agents hand no TUN over: TestAgentExchanged has today's
					t.Errorf("%s: %d of %d lost, a gap of %.0f ms", proto, g.Lost, g.Sent, g.FairMs)
				}
			}
		})
	}
}

// denied is a ClusterNetworkPolicy in force: pods do not reach port 9 of others.
const denied = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusternetworkpolicies.policy.networking.k8s.io, annotations: {api-approved.kubernetes.io: "unapproved, a test"}}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {plural: clusternetworkpolicies, kind: ClusterNetworkPolicy}
  versions: [{name: v1alpha2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec: {nodeName: edge-a, automountServiceAccountToken: false, containers: [{name: c, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: default}
spec: {nodeName: edge-b, automountServiceAccountToken: false, containers: [{name: c, image: x}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-discard}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{networks: [` + lab.DefaultRange4 + `]}], protocols: [{tcp: {destinationPort: {number: 9}}}]}]
`

// discard wants pod a to reach port 9 of pod b, where nobody listens.
func (u *upgraded) discard() error {
	err := u.podA.Script(fmt.Sprintf("timeout 1 bash -c '</dev/tcp/%v/9'", u.podB.IP4()))
	if err == nil || !strings.Contains(err.Error(), "Connection refused") {
		return fmt.Errorf("pod a is not refused: %w", err)
	}
	return nil
}

// TestKubernetesDowngrade: a control plane that stepped back from 1.30 to 1.29 has nothing that guards, and helm refuses its upgrade. What
// docs/compatibility.md says has helm take the release over, once every node is trusted; the policies are back with 1.30.
func TestKubernetesDowngrade(t *testing.T) {
	tier.Long(t)
	if os.Getenv("EDGEMESH_K8S_UPGRADE") == "" {
		t.Skip("NOT RUN: it builds API servers of 1.29 and 1.30, for minutes (make e2e-upgrades)")
	}
	const newer, older = "v1.30.14", "v1.29.14"
	t.Setenv("EDGEMESH_K8S_VERSION", newer)
	c, kubeconfig := kubernetes(t)
	_, err := c.Kubectl("create", "namespace", kubeapi.Namespace)
	ok(t, err)
	ok(t, c.CreateNode("cloud"))
	ok(t, c.CreateNode("edge-a"))
	ok(t, c.CreateNode("bare"))
	ok(t, c.Patch("/api/v1/nodes/cloud", map[string]any{"metadata": map[string]any{"labels": map[string]string{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/os": "linux"}}}))
	h := &chart{t: t, c: c, kubeconfig: kubeconfig, program: tool(t, "helm"),
		relays: []string{"/ip4/203.0.113.5/tcp/4470/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"}}
	h.upgrade()
	h.deploy()
	cert, err := c.NodeCertificate("bare", time.Now().Add(-time.Hour))
	ok(t, err)
	ok(t, c.Kubeconfig("bare-kubelet.conf", cert, c.URL))
	kubelet := login(t, filepath.Join(c.Dir, "bare-kubelet.conf"))
	becomes := func(want string) {
		t.Helper()
		ok(t, lab.Until(within(t, time.Minute), 100*time.Millisecond, func() error {
			how := judgement(kubelet, http.MethodPatch, c.URL+"/api/v1/nodes/bare?dryRun=All", `{"spec":{"podCIDR":"10.244.98.0/24","podCIDRs":["10.244.98.0/24"]}}`)
			if how != want {
				return fmt.Errorf("%s: a kubelet's own podCIDRs: %s, want %s", c.Version, how, want)
			}
			return nil
		}))
	}
	becomes(byPolicy)

	t.Setenv("EDGEMESH_K8S_VERSION", older)
	ok(t, c.Upgrade())
	becomes(accepted)
	dir := filepath.Join(c.Root, "manifests/edgemesh")
	if out, err := h.helm("upgrade", "edgemesh", dir, "--reset-then-reuse-values", "--set", "podNetwork.trustedNodes=true"); err == nil || !strings.Contains(out, "ValidatingAdmissionPolicy") {
		t.Errorf("helm knows kinds that this server does not have: %v, %s", err, out)
	}
	values, err := h.helm("get", "values", "edgemesh", "-o", "yaml")
	ok(t, err)
	file := filepath.Join(t.TempDir(), "values.yaml")
	ok(t, os.WriteFile(file, []byte(values), 0o600))
	_, err = c.Kubectl("-n", kubeapi.Namespace, "delete", "secret", "-l", "owner=helm,name=edgemesh")
	ok(t, err)
	take := []string{"upgrade", "--install", "edgemesh", dir, "-f", file, "--take-ownership"}
	if out, err := h.helm(take...); err == nil || !strings.Contains(out, "podNetwork.trustedNodes=true") {
		t.Errorf("nothing guards, and no node is trusted: %v: %s", err, out)
	}
	if out, err := h.helm(append(take, "--set", "podNetwork.trustedNodes=true")...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	becomes(accepted)

	t.Setenv("EDGEMESH_K8S_VERSION", newer)
	ok(t, c.Upgrade())
	h.upgrade()
	becomes(byPolicy)
}

// chart installs the chart with helm, and runs its controller as its Deployment says.
type chart struct {
	t          *testing.T
	c          *kubeapi.Cluster
	kubeconfig string
	program    string // helm
	relays     []string
	spare      []string // names of further ones in the lab
	dir        string   // of the chart, "": today's
	webhook    string   // where the controller of an unreleased version listens

	mu         sync.Mutex // guards what follows
	programs   string     // of the controller and at first of agents, "": today's
	controller *exec.Cmd
	args       string // of the controller that runs
}

// formerChart is that of a commit, with its programs.
func formerChart(t *testing.T, commit string) *chart {
	t.Helper()
	h := &chart{programs: programsOf(t, commit), dir: t.TempDir()}
	root, err := repo.Root()
	ok(t, err)
	out, err := exec.Command("sh", "-c", `git -C "$1" archive "$2" manifests/edgemesh | tar -x -C "$3" --strip-components=2`, "sh", root, commit, h.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	h.webhook = l.Addr().String()
	ok(t, l.Close())
	return h
}

// today has today's controller run.
func (h *chart) today() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end()
	h.programs, h.args = "", ""
}

// upgrade applies CRDs and today's chart, as docs/upgrade.md says.
func (h *chart) upgrade() {
	h.t.Helper()
	if out, err := h.try("--set", fmt.Sprintf("podNetwork.trustedNodes=%v", h.c.Old())); err != nil {
		h.t.Fatalf("helm: %v\n%s", err, out)
	}
}

// try is upgrade with further arguments for helm, which may refuse.
func (h *chart) try(more ...string) (string, error) {
	h.t.Helper()
	dir := cmp.Or(h.dir, filepath.Join(h.c.Root, "manifests/edgemesh"))
	_, err := h.c.Kubectl("apply", "-f", filepath.Join(dir, "crds"))
	ok(h.t, err)
	ok(h.t, lab.Until(within(h.t, time.Minute), 100*time.Millisecond, func() error { // it fails where one has no conditions yet
		_, err := h.c.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", filepath.Join(dir, "crds"))
		return err
	}))
	if h.webhook != "" { // no kube-proxy is here that would lead to its Service
		url := filepath.Join(h.t.TempDir(), "url")
		ok(h.t, os.WriteFile(url, []byte("#!/bin/sh\nexec sed 's#service: {name: edgemesh-webhook, .*}}#url: \"https://"+h.webhook+"/\"}#'\n"), 0o755))
		more = append(slices.Clone(more), "--post-renderer", url)
	}
	return h.helm(append([]string{"upgrade", "--install", "edgemesh", dir, "--reset-then-reuse-values", "--set-json", `podNetwork.podCIDRs=["` + lab.DefaultRange4 + `","` + lab.DefaultRange6 + `"]`,
		"--set-json", `podNetwork.relays=["` + strings.Join(h.relays, `","`) + `"]`}, more...)...)
}

// helm runs helm in the release's namespace.
func (h *chart) helm(args ...string) (string, error) {
	h.t.Helper()
	cmd := exec.Command(h.program, append(args, "-n", kubeapi.Namespace)...)
	cmd.Env = kubeapi.Environ("KUBECONFIG="+h.kubeconfig, "HOME="+h.t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// deploy replaces the controller whenever the Deployment's arguments change, as kubelets and the Deployment's controller would.
func (h *chart) deploy() {
	token := filepath.Join(h.c.Dir, "controller.token")
	ok(h.t, h.c.ServiceAccountToken("edgemesh-controller", token))
	ok(h.t, h.c.TokenKubeconfig("controller.conf", token, h.c.URL))
	ctx, done := h.t.Context(), make(chan struct{})
	h.t.Cleanup(func() { <-done; h.end() })
	go func() {
		defer close(done)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.follow()
			}
		}
	}()
}

func (h *chart) follow() {
	var d struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	err := h.c.Do(http.MethodGet, "/apis/apps/v1/namespaces/"+kubeapi.Namespace+"/deployments/edgemesh-controller", nil, &d)
	if err != nil || len(d.Spec.Template.Spec.Containers) == 0 { // the API server is replaced
		return
	}
	out := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " ")
	h.mu.Lock()
	defer h.mu.Unlock()
	if out == h.args {
		return
	}
	h.end()
	h.args = out
	args := []string{"controller", "--kubeconfig", filepath.Join(h.c.Dir, "controller.conf"), "--namespace", kubeapi.Namespace, "--metrics-address", ""}
	for flag, at := range map[string]string{"--map=": "127.0.0.1:0", "--webhook=": h.webhook} { // of older releases
		if strings.Contains(out, flag) {
			args = append(args, flag+at)
		}
	}
	if strings.Contains(out, "--sign") {
		args = append(args, "--sign")
	}
	log, err := os.OpenFile(h.c.Logs("controller"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Error(err)
		return
	}
	defer log.Close()
	h.controller = exec.Command(filepath.Join(cmp.Or(h.programs, filepath.Join(h.c.Root, "bin")), "edgemesh-agent"), args...)
	h.controller.Stdout, h.controller.Stderr = log, log
	if err := h.controller.Start(); err != nil {
		h.t.Error(err)
		h.controller = nil
	}
}

func (h *chart) end() {
	if h.controller != nil {
		_ = h.controller.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = h.controller.Wait()
	}
}

// prober tries five times a second to write what none may, against each policy that 1.30 has.
type prober struct {
	t        *testing.T
	c        *kubeapi.Cluster
	agent    *http.Client // of edge-a
	attempts int

	mu    sync.Mutex
	seen  map[string]map[string]int // answers by attempt, since the last stage
	total map[string]int
	open  []string // what was accepted, and when
	is    string   // the last judgement of the first attempt
}

func newProber(t *testing.T, c *kubeapi.Cluster, kubeconfig string) *prober {
	t.Helper()
	p := &prober{t: t, c: c, seen: map[string]map[string]int{}, total: map[string]int{}}
	var kubelets [2]*http.Client
	for i, name := range []string{"edge-a", "bare"} {
		cert, err := c.NodeCertificate(name, time.Now().Add(-time.Hour))
		ok(t, err)
		ok(t, c.Kubeconfig(name+"-kubelet.conf", cert, c.URL))
		kubelets[i] = login(t, filepath.Join(c.Dir, name+"-kubelet.conf"))
	}
	p.agent = login(t, filepath.Join(c.Dir, "edge-a.conf"))
	controller := login(t, filepath.Join(c.Dir, "controller.conf"))
	// Both may write everything, as far as roles go.
	const cloudcore = "system:serviceaccount:kubeedge:cloudcore"
	_, err := c.Kubectl("create", "clusterrolebinding", "prober", "--clusterrole=cluster-admin", "--user=operator", "--user="+cloudcore)
	ok(t, err)
	operator, edge := loginAs(t, kubeconfig, "operator"), loginAs(t, kubeconfig, cloudcore)
	var node struct{ Metadata struct{ UID string } }
	ok(t, c.Do(http.MethodGet, "/api/v1/nodes/edge-a", nil, &node))
	object := func(kind, name, owner, spec string) string {
		return `{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"` + kind + `","metadata":{"name":"` + name + `","ownerReferences":[` + owner + `]},"spec":` + spec + `}`
	}
	group := object("PolicyGroup", "other-0", "", `{"group":"0123456789abcdef","chunk":0,"chunks":1,"members":[]}`)
	foreign := `{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"PodBlock","metadata":{"name":"10-244-99-0-24","ownerReferences":[{"apiVersion":"v1","kind":"Node",` +
		`"name":"edge-b","uid":"x"}]},"spec":{"cidr":"10.244.99.0/24","nodeName":"edge-b"}}`
	stolen := `{"spec":{"peerID":"12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"}}`
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	writes := []struct {
		what               string
		who                *http.Client
		method, path, body string
	}{
		{"another's peer ID, as its agent", p.agent, http.MethodPatch, kubeapi.Group + "meshnodes/edge-b", stolen},
		{"another's peer ID, as its kubelet", kubelets[0], http.MethodPatch, kubeapi.Group + "meshnodes/edge-b", stolen},
		{"a foreign PodBlock", p.agent, http.MethodPost, kubeapi.Group + "podblocks", foreign},
		{"its own podCIDRs, as a kubelet", kubelets[1], http.MethodPatch, "/api/v1/nodes/bare", `{"spec":{"podCIDR":"10.244.98.0/24","podCIDRs":["10.244.98.0/24"]}}`},
		{"a PodBlock of another size", p.agent, http.MethodPost, kubeapi.Group + "podblocks", object("PodBlock", "10-244-96-0-20",
			`{"apiVersion":"v1","kind":"Node","name":"edge-a","uid":"`+node.Metadata.UID+`"}`, `{"cidr":"10.244.96.0/20","nodeName":"edge-a"}`)},
		{"another condition of its Node, as its agent", p.agent, http.MethodPatch, "/api/v1/nodes/edge-a/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`},
		{"a peer ID without consent, as an operator", operator, http.MethodPatch, kubeapi.Group + "meshnodes/edge-b", stolen},
		{"a NodeRecord of no Node, as the controller", controller, http.MethodPost, kubeapi.Group + "noderecords", object("NodeRecord", "nobody", "", `{"nodeUID":"x"}`)},
		{"a PolicyGroup of another name, as the controller", controller, http.MethodPost, kubeapi.Group + "policygroups", group},
		{"a PolicyGroup, as an operator", operator, http.MethodPost, kubeapi.Group + "policygroups", group},
		{"another Lease, as the controller", controller, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/" + kubeapi.Namespace + "/leases",
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"other"}}`},
		{"a label of administrators, by an edge", edge, http.MethodPatch, "/api/v1/nodes/bare", `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`},
		{"a CustomResourceDefinition, by an edge", edge, http.MethodPatch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podblocks.network.edgemesh.io",
			`{"metadata":{"labels":{"x":"y"}}}`},
	}
	p.attempts = len(writes)
	for _, x := range writes {
		all.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-t.Context().Done():
					return
				case <-tick.C:
					began := time.Now()
					p.note(x.what, began, judgement(x.who, x.method, c.URL+x.path, x.body))
				}
			}
		})
	}
	return p
}

// login is a client with a kubeconfig's credentials.
func login(t *testing.T, kubeconfig string) *http.Client {
	t.Helper()
	return loginAs(t, kubeconfig, "")
}

// loginAs is login in the name of user, "" for the kubeconfig's own.
func loginAs(t *testing.T, kubeconfig, user string) *http.Client {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	ok(t, err)
	cfg.Impersonate.UserName = user
	h, err := kuberest.HTTPClientFor(cfg)
	ok(t, err)
	h.Timeout = 10 * time.Second
	return h
}

// judgement is what became of a write.
func judgement(h *http.Client, method, url, body string) string {
	req, err := http.NewRequest(method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := h.Do(req)
	if err != nil {
		return silent
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return silent
	case resp.StatusCode/100 == 2:
		return accepted
	case bytes.Contains(text, []byte("ValidatingAdmissionPolicy")):
		return byPolicy
	}
	return fmt.Sprintf("%d: %.200s", resp.StatusCode, text)
}

func (p *prober) note(what string, when time.Time, how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[what] == nil {
		p.seen[what] = map[string]int{}
	}
	p.seen[what][how]++
	p.total[how]++
	if how == accepted {
		p.open = append(p.open, when.Format("15:04:05.000 ")+what)
	}
	if how == accepted || how == byPolicy {
		p.is = how
	}
}

func (p *prober) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.is
}

// guarded waits until every attempt was judged 20 times so, and logs all that became of them since the stage before.
func (p *prober) guarded(stage, how string) {
	p.t.Helper()
	enough := func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.seen) < p.attempts {
			return fmt.Errorf("%s: %d of %d attempts", stage, len(p.seen), p.attempts)
		}
		for what, n := range p.seen {
			if n[how] < 20 {
				return fmt.Errorf("%s: %s: %v, want 20 times %q", stage, what, n, how)
			}
		}
		return nil
	}
	p.mu.Lock()
	for what, n := range p.seen { // those since the last stage are logged below
		delete(n, how)
		p.seen[what] = n
	}
	p.mu.Unlock()
	ok(p.t, lab.Until(within(p.t, 2*time.Minute), 100*time.Millisecond, enough))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(p.seen)) {
		p.t.Logf("%s: %s: %v", stage, what, p.seen[what])
		p.seen[what] = map[string]int{}
	}
}

// own wants a node's own write to pass.
func (p *prober) own(stage, peerID string) {
	p.t.Helper()
	ok(p.t, lab.Until(within(p.t, time.Minute), 100*time.Millisecond, func() error {
		how := judgement(p.agent, http.MethodPatch, p.c.URL+kubeapi.Group+"meshnodes/edge-a", `{"spec":{"peerID":"`+peerID+`"}}`)
		if how != accepted {
			return fmt.Errorf("%s: a node's own write: %s", stage, how)
		}
		return nil
	}))
}

// never wants no attempt to have been accepted.
func (p *prober) never() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Logf("forbidden writes, by what became of them: %v", p.total)
	if len(p.open) > 0 {
		p.t.Errorf("%d forbidden writes were accepted: %q", len(p.open), p.open[:min(len(p.open), 20)])
	}
}
