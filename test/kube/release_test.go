package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

const (
	// former is the commit of version 0.1.0.
	former = "9ffdad197926fcefc51264a34a9849b46eecbf42"
	// registry is where nodes look for images, without TLS: cluster/node-init.sh.
	registry = cluster.RelayIP + ":5000"
	edge     = registry + "/edge"
	// maxUpgradeGap is how long a node's flows may stand still while its agent is exchanged.
	maxUpgradeGap = time.Second
)

// shelf is a release as a user has it: a directory of files, and a registry.
type shelf struct {
	c               *cluster.Cluster
	dir             string // of the release
	manifests       string // its manifests' archive, unpacked
	old             string // the tree of 0.1.0
	version         string // 0.2.0
	helm, crane     string
	before, objects map[string][]string // what nodes, and the cluster, were like
}

// TestRelease takes a release off the shelf. Nothing of the tree is used to install it, and the nodes pull the images.
func TestRelease(t *testing.T) {
	if os.Getenv("EDGEMESH_RELEASE") == "" {
		t.Skip("on a cluster of its own: make e2e-release")
	}
	s := newShelf(t)
	s.plain(t)
	s.archive(t)
	s.upgrade(t)
}

// newShelf builds the release unless EDGEMESH_RELEASE is the directory of one, and fills the registry.
func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{c: bare(t), old: t.TempDir(), manifests: t.TempDir(), before: map[string][]string{}}
	chart, err := os.ReadFile(filepath.Join(root, "manifests/edgemesh/Chart.yaml"))
	ok(t, err)
	s.version = regexp.MustCompile(`(?m)^version: (\S+)$`).FindStringSubmatch(string(chart))[1]
	if s.dir = os.Getenv("EDGEMESH_RELEASE"); s.dir == "build" {
		s.dir = t.TempDir()
		run(t, root, "env", "DRAFT=1", "VERSION=v"+s.version, "ARCHES=amd64", "OUT="+s.dir, "build/release/release.sh")
	}
	run(t, s.dir, "sha256sum", "-c", "--quiet", "SHA256SUMS")
	run(t, s.dir, "tar", "-xzf", "edgemesh-manifests-"+s.version+".tar.gz", "-C", s.manifests, "--strip-components=1")
	run(t, root, "sh", "-c", `git archive "$1" | tar -x -C "$2"`, "sh", former, s.old)
	run(t, s.old, "go", "run", "./build/images", "--out", "dist", "--tag", "0.1.0", "--version", "v0.1.0", "--arch", "amd64")
	tool := func(name string) string {
		out, err := exec.Command(filepath.Join(root, "build/tool.sh"), name).Output()
		ok(t, err)
		return strings.TrimSpace(string(out))
	}
	s.helm, s.crane = tool("helm"), tool("crane")
	s.serve(t, tool("registry"))
	s.push(t, filepath.Join(s.dir, "edgemesh-agent-linux-amd64.tar"), edge+"/edgemesh-agent:"+s.version)
	if out, err := s.c.InRelay(t.Context(), s.helm, "push", filepath.Join(s.dir, "edgemesh-chart-"+s.version+".tgz"), "oci://"+registry+"/charts", "--plain-http").CombinedOutput(); err != nil {
		t.Fatalf("helm push: %v\n%s", err, out)
	}
	s.push(t, filepath.Join(s.old, "dist/edgemesh-agent-linux-amd64.tar"), edge+"/edgemesh-agent:0.1.0")

	for _, n := range cluster.FirstNodes() {
		s.before[n] = dump(t, s.c, n)
	}
	s.objects = s.all(t)
	return s
}

// run runs a command, which must succeed.
func run(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// serve starts the registry, on the relay's machine.
func (s *shelf) serve(t *testing.T, program string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "registry.yaml")
	ok(t, os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nlog: {level: warn}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, registry), 0o644))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := s.c.InRelay(ctx, program, "serve", config)
	log, err := os.Create(filepath.Join(s.c.Dir, "registry.log"))
	ok(t, err)
	p.Stdout, p.Stderr = log, log
	ok(t, p.Start())
	t.Cleanup(func() {
		stop()
		_ = p.Wait()
		_ = log.Close()
	})
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		_, err := s.c.InRelay(ctx, "curl", "-sSfm2", "http://"+registry+"/v2/").Output()
		return err
	})
}

// push puts an OCI archive into the registry.
func (s *shelf) push(t *testing.T, archive, ref string) {
	t.Helper()
	layout := t.TempDir()
	run(t, layout, "tar", "-xf", archive)
	if out, err := s.c.InRelay(t.Context(), s.crane, "push", "--insecure", layout, ref).CombinedOutput(); err != nil {
		t.Fatalf("crane push %s: %v\n%s", ref, err, out)
	}
}

// all lists the cluster's objects by kind, those that come and go by themselves aside.
func (s *shelf) all(t *testing.T) map[string][]string {
	t.Helper()
	const kinds = "namespaces,daemonsets,deployments,leases,configmaps,secrets,services,serviceaccounts,clusterroles,clusterrolebindings,roles," +
		"rolebindings,customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses," +
		"validatingwebhookconfigurations,mutatingwebhookconfigurations"
	out := map[string][]string{}
	for line := range strings.Lines(kubectl(t, "get", kinds, "-A", "--no-headers", "-o",
		"custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")) {
		f := strings.Fields(line)
		out[f[0]] = append(out[f[0]], strings.Join(f[1:], "/"))
	}
	// Labels and annotations of ours on Nodes would be left there.
	out["Node"] = slices.Collect(strings.Lines(kubectl(t, "get", "nodes", "-o", "go-template={{range .items}}{{.metadata.name}} {{.metadata.labels}}\n{{end}}")))
	return out
}

// workload starts the pods and wants all of them to reach each other.
func (s *shelf) workload(t *testing.T) {
	t.Helper()
	kubectl(t, "apply", "-f", "manifests/")
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return nodesReady(ctx, s.c) })
	all := append(waitPods(t, "app=web", 4, 2*time.Minute), waitPods(t, "app=hostname", 2, time.Minute)...)
	ok(t, allPairs(t.Context(), s.c, all))
}

// wantVersion wants the agents of all nodes to be of a version, from the registry.
func (s *shelf) wantVersion(t *testing.T, version string) {
	t.Helper()
	if image := agentImage(t); image != edge+"/edgemesh-agent:"+version {
		t.Errorf("the DaemonSet's image is %s", image)
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		return versions(ctx, s.c, func(v string) bool { return v == "v"+version })
	})
}

// plain installs by the plain manifests, with the script that is beside them, and uninstalls.
func (s *shelf) plain(t *testing.T) {
	relays := relayIdentity(t, s.c)
	args := []string{"--no-wait", "--pod-cidr", "10.244.0.0/16", "--api-server", cluster.APIServer + ":" + cluster.APIPort, "--registry", edge}
	for _, r := range relays {
		args = append(args, "--relay", r)
	}
	begun := time.Now()
	s.script(t, "first-steps.sh", args...)
	startRelayBy(t, s.c, s.manifests)
	s.workload(t)
	figure(t, "release %s from its directory and a registry, by the plain manifests: all pods reach each other after %s", s.version, seconds(time.Since(begun)))
	s.wantVersion(t, s.version)
	(&installation{warned: warnings(t, s.c)}).calm(t)
	s.leave(t, func() {
		kubectl(t, "delete", "-f", filepath.Join(s.manifests, "edgemesh.yaml"), "--timeout=55s")
		kubectl(t, "-n", "kube-system", "delete", "configmap", "edgemesh-apiserver")
	})
}

// upgrade installs 0.1.0 with helm, upgrades it to the registry's chart under flows, and uninstalls.
func (s *shelf) upgrade(t *testing.T) {
	s.helmInstall(t, filepath.Join(s.old, "manifests/edgemesh"), filepath.Join(s.old, "manifests"), "0.1.0")

	f := startFlows(t, s.c)
	begun := time.Now()
	kubectl(t, "apply", "-f", filepath.Join(s.manifests, "edgemesh/crds"))
	upgrade := s.c.InRelay(t.Context(), s.helm, "upgrade", "edgemesh", "oci://"+registry+"/charts/edgemesh", "--version", s.version, "--plain-http",
		"-n", "kube-system", "--kube-apiserver", "https://"+cluster.APIServer+":"+cluster.APIPort, "--reset-then-reuse-values")
	upgrade.Env = append(os.Environ(), "HOME="+s.c.Dir, "KUBECONFIG="+s.c.Kubeconfig)
	if out, err := upgrade.CombinedOutput(); err != nil {
		t.Fatalf("helm upgrade: %v\n%s", err, out)
	}
	rollout(t, 4*time.Minute)
	took := time.Since(begun)
	s.wantVersion(t, s.version)
	time.Sleep(afterChange) // sleep: a late gap would show
	gap, whose := f.stop(t)
	figure(t, "helm upgrade from 0.1.0 to the registry's chart of %s in %s: TCP flows survive, longest gap that counts %d ms (%s; promised: %d ms)",
		s.version, seconds(took), gap.Milliseconds(), whose, maxUpgradeGap.Milliseconds())
	if gap > maxUpgradeGap {
		t.Errorf("gap of %v", gap)
	}
	s.workload(t)
	s.helmUninstall(t)
}

// archive installs the chart's archive of the release on the empty cluster, and uninstalls.
func (s *shelf) archive(t *testing.T) {
	begun := time.Now()
	s.helmInstall(t, filepath.Join(s.dir, "edgemesh-chart-"+s.version+".tgz"), s.manifests, s.version)
	figure(t, "helm install of the chart's archive of %s: all pods reach each other after %s", s.version, seconds(time.Since(begun)))
	s.helmUninstall(t)
}

// helmInstall installs a chart, and starts the relay of the same manifests; in the end all pods reach each other.
func (s *shelf) helmInstall(t *testing.T, chart, manifests, version string) {
	t.Helper()
	relays := relayIdentity(t, s.c)
	out, err := s.c.AdminCommand(t.Context(), s.helm, "install", "edgemesh", chart, "-n", "kube-system",
		"--set", "image.registry="+edge, "--set", "podNetwork.podCIDRs={10.244.0.0/16}", "--set", "apiServer.host="+cluster.APIServer,
		"--set", "apiServer.port="+cluster.APIPort, "--set", "podNetwork.relays={"+strings.Join(relays, ",")+"}").CombinedOutput()
	if err != nil {
		t.Fatalf("helm install: %v\n%s", err, out)
	}
	startRelayBy(t, s.c, manifests)
	s.workload(t)
	rollout(t, time.Minute)
	s.wantVersion(t, version)
}

func (s *shelf) helmUninstall(t *testing.T) {
	t.Helper()
	s.leave(t, func() {
		if out, err := s.c.AdminCommand(t.Context(), s.helm, "uninstall", "edgemesh", "-n", "kube-system", "--wait").CombinedOutput(); err != nil {
			t.Fatalf("helm uninstall: %v\n%s", err, out)
		}
		kubectl(t, "delete", "-f", filepath.Join(s.manifests, "edgemesh/crds"), "--timeout=55s")
	})
}

// leave uninstalls as the guide says: nodes and cluster are as they were.
func (s *shelf) leave(t *testing.T, objects func()) {
	t.Helper()
	kubectl(t, "delete", "-f", "manifests/", "--timeout=55s")
	eventually(t, 90*time.Second, func(ctx context.Context) error { return gone(ctx, s.c) })
	s.script(t, "cleanup-nodes.sh", "--yes", "--purge")
	objects()
	kubectl(t, "-n", "kube-system", "delete", "lease", "edgemesh-controller", "--ignore-not-found")
	kubectl(t, "-n", "kube-system", "delete", "secret", "edgemesh-relay-token", "edgemesh-controller", "edgemesh-join", "--ignore-not-found")
	stopRelay(t, s.c)
	lines := 0
	for _, n := range cluster.FirstNodes() {
		lines += len(s.before[n])
		eventually(t, time.Minute, func(context.Context) error {
			after := dump(t, s.c, n)
			// cleanup keeps the records of the pods' addresses; `uninstall` on the node removes them.
			if d := differs(s.before[n], after, "file: /var/lib/cni/networks/edgemesh/"); len(d) > 0 {
				return fmt.Errorf("%s is not as it was:\n%s", n, strings.Join(d, "\n"))
			}
			return nil
		})
	}
	eventually(t, time.Minute, func(context.Context) error {
		now := s.all(t)
		for kind := range merged(s.objects, now) {
			if d := differs(s.objects[kind], now[kind]); len(d) > 0 {
				return fmt.Errorf("%s: %s", kind, strings.Join(d, ", "))
			}
		}
		return nil
	})
	for _, path := range []string{meshAPI + "podnetworks", meshAPI + "meshnodes"} {
		if err := s.c.API().Do(t.Context(), http.MethodGet, path, nil, nil); err == nil {
			t.Errorf("%s is still served", path)
		}
	}
	figure(t, "uninstalled: %d lines of node dumps and %d kinds of objects as before", lines, len(s.objects))
}

// merged has the keys of both.
func merged(a, b map[string][]string) map[string]bool {
	out := map[string]bool{}
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

// script runs one of the release's scripts.
func (s *shelf) script(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := s.c.AdminCommand(t.Context(), filepath.Join(s.manifests, name), args...).CombinedOutput()
	t.Logf("%s:\n%s", name, out)
	ok(t, err)
}
