package kube

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
	"edgemesh/test/kube/conformance"
)

// suiteImages are the names by which the suites of Kubernetes v1.28 to v1.37 know their images (test/utils/image/manifest.go, and
// test/e2e/testing-manifests), by the kinds that conformance/build.sh makes.
var suiteImages = map[string][]string{
	"agnhost": {"agnhost:2.66.1", "agnhost:2.59", "agnhost:2.56", "agnhost:2.55", "agnhost:2.53", "agnhost:2.52", "agnhost:2.47", "agnhost:2.39",
		"agnhost:2.32", "nonroot:1.5", "nonroot:1.4"},
	"shell": {"busybox:1.37.0-2", "busybox:1.37.0-1", "busybox:1.36.1-1", "busybox:1.29-4", "glibc-dns-testing:2.1.1", "jessie-dnsutils:1.7",
		"../build-image/distroless-iptables:v0.9.9", "../build-image/distroless-iptables:v0.8.9"},
	"web":        {"nginx:1.28.0-2", "nginx:1.27.0-2", "nginx:1.15-4", "nginx:1.14-4", "httpd:2.4.39-4", "httpd:2.4.38-4"},
	"pause":      {"../pause:3.10.2", "../pause:3.10.1", "../pause:3.10", "../pause:3.9"},
	"regression": {"regression-issue-74839:1.5", "regression-issue-74839:1.4", "regression-issue-74839:1.2"},
}

// TestConformance runs Kubernetes' own tests of the pod network, those that every conformant cluster passes; with
// EDGEMESH_CONFORMANCE=full all that need no cloud and no other kernel, with =policies those of NetworkPolicies. `make conformance` runs it.
func TestConformance(t *testing.T) {
	which := os.Getenv("EDGEMESH_CONFORMANCE")
	if which == "" {
		t.Skip("run by make conformance")
	}
	c := ofFlavour(t)
	build := exec.CommandContext(t.Context(), filepath.Join(root, "test/kube/conformance/build.sh"), filepath.Join(c.Dir, "later"))
	build.Stderr = os.Stderr
	out, err := build.Output()
	ok(t, err)
	bin := strings.TrimSpace(string(out))
	for _, n := range cluster.FirstNodes() {
		prepareSuite(t, c, n)
		if c.DualStack() { // these hosts have no IPv6 route, so that they need one for Services, see docs/ipv6.md
			_, err := c.On(t.Context(), n, "ip", "-6", "route", "replace", cluster.ServiceCIDR6, "dev", "edgemesh-br")
			ok(t, err)
		}
	}
	if flavour() == "kubeedge" { // the suite talks to NodePorts of the address that a Node reports, and that of its LAN leads nowhere
		for _, n := range cluster.FirstNodes()[1:] {
			edgecoreReports(t, c, n, "on", meshIP(t, c, n))
		}
	}
	if flavour() == "" {
		proxyMode(t, c, "iptables")
	} else {
		edgeServices(t, c)
	}

	focus, skip, must := `\[sig-network\].*\[Conformance\]`, `\[Serial\]|\[Disruptive\]`, []string{filepath.Join(bin, "conformance.yaml")}
	if c.DualStack() {
		focus, skip = focus+`|\[sig-network\].*\[Feature:IPv6DualStack\]`, skip+`|\[Slow\]|\[Feature:SCTPConnectivity\]`
		must = append(must, "dualstack.txt")
	}
	switch which {
	case "1":
	case "full": // of features, NetworkPolicies and two families alone
		focus, skip = `\[sig-network\]`, skip+`|\[Slow\]|\[Feature:([^IN]|I[^P]|N[^e]|Networking)|LoadBalancer`
		if !c.DualStack() {
			skip += `|\[Feature:IP`
		}
		must = append(must, "policies.txt")
	case "policies":
		focus, skip = `\[sig-network\] Netpol`, skip+`|\[Feature:SCTPConnectivity\]`
		must = []string{"policies.txt"}
	default:
		t.Fatalf("EDGEMESH_CONFORMANCE=%s: want 1, full or policies", which)
	}
	dir := filepath.Join(root, "dist/conformance")
	if v := os.Getenv("EDGEMESH_K8S_VERSION"); v != "" {
		dir += "-" + v
	}
	if c.DualStack() {
		dir += "-" + strings.Join(c.OfFamilies("ipv4", "ipv6"), "-")
	}
	if flavour() != "" {
		dir += "-" + flavour()
	}
	ok(t, os.MkdirAll(dir, 0o755))
	dir, err = filepath.Abs(dir)
	ok(t, err)
	log, err := os.Create(filepath.Join(dir, "log"))
	ok(t, err)
	defer log.Close()
	_ = os.Remove(filepath.Join(dir, "report.json")) // an earlier run's
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	start := time.Now()
	suite := c.AdminCommand(ctx, filepath.Join(bin, "ginkgo"), "--procs=4", "--timeout=55m", "--no-color", "-v", "--grace-period=15s", "--flake-attempts=2",
		"--focus="+focus, "--skip="+skip, "--json-report=report.json", "--output-dir="+dir, filepath.Join(bin, "e2e.test"), "--",
		"--kubeconfig="+c.Kubeconfig, "--provider=skeleton", "--kubectl-path="+c.Program("kubectl"), "--node-os-distro=custom",
		"--master-os-distro=custom", "--report-dir="+dir, "--disable-log-dump", "--allowed-not-ready-nodes=0", "--num-nodes=4")
	suite.Stdout, suite.Stderr, suite.Dir = log, log, dir
	suiteErr := suite.Run() // it fails also where a spec fails as expected: the report decides
	judge(t, dir, must, time.Since(start), suiteErr)
}

// ofFlavour returns the cluster, with our network installed as the flavour's guide says.
func ofFlavour(t *testing.T) *cluster.Cluster {
	t.Helper()
	switch flavour() {
	case "kubeedge":
		c := kubeEdge(t)
		// The one on an edge reaches no API server, and the suite waits for every pod of kube-system; edges have a CoreDNS of their own.
		kubectl(t, "-n", "kube-system", "scale", "deployment", "coredns", "--replicas=1")
		return c
	case "openyurt":
		c := openYurt(t)
		for _, n := range edges() { // the suite reads pods' logs from the API server's side of the NATs
			kubeletReports(t, c, n, "on")
		}
		return c
	}
	c, _ := installed(t)
	return c
}

// prepareSuite gives a node the suite's images, and what its kube-proxy's test wants.
func prepareSuite(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	for kind, names := range suiteImages {
		ok(t, c.Import(t.Context(), node, "suite-"+kind))
		tag := []string{"ctr", "-n", "k8s.io", "images", "tag", "--force", "e2e.test/suite-" + kind + ":1"}
		for _, name := range names {
			tag = append(tag, filepath.Join("registry.k8s.io/e2e-test-images", name))
		}
		_, err := c.On(t.Context(), node, tag...)
		ok(t, err)
	}
	_, err := c.On(t.Context(), node, "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_close_wait=3600")
	ok(t, err)
}

// judge compares the report with what is listed beside the suite's judge; the specs in the lists of must have to run.
func judge(t *testing.T, dir string, must []string, took time.Duration, suiteErr error) {
	t.Helper()
	list := func(name string) string {
		if !filepath.IsAbs(name) {
			name = filepath.Join("conformance", name)
		}
		b, err := os.ReadFile(name)
		ok(t, err)
		return string(b)
	}
	report, err := os.Open(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatalf("the suite ended with %v and left no report; see %s/log", suiteErr, dir)
	}
	defer report.Close()
	ran, err := conformance.Read(report)
	ok(t, err)
	expected, err := conformance.Expected(list("expected.txt"))
	ok(t, err)
	var specs []string
	for _, name := range must {
		if filepath.IsAbs(name) { // the suite's own
			names, err := conformance.OfNetwork(list(name))
			ok(t, err)
			specs = append(specs, names...)
			continue
		}
		specs = append(specs, conformance.Lines(list(name))...)
	}
	for _, wrong := range conformance.Judge(ran, specs, expected) {
		t.Error(wrong)
	}
	count := map[string]int{}
	for _, s := range ran {
		count[s.State]++
		if s.Attempts > 1 && s.State == "passed" {
			figure(t, "FLAKY: failed, and passed the second time: %s", s.Name)
		}
	}
	figure(t, "Kubernetes' own tests: %d passed, %d failed, %d skipped themselves, in %s; %s/report.json",
		count["passed"], count["failed"], count["skipped"], seconds(took), dir)
}
