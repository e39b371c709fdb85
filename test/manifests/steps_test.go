package manifests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/test/kubeapi"
)

// firstSteps runs the script as an administrator of this cluster, with helm.
func (c cluster) firstSteps(dir string, args ...string) (string, error) {
	c.t.Helper()
	s := exec.Command(filepath.Join(root, "manifests/first-steps.sh"), append([]string{"--pod-cidr", "10.244.0.0/16", "--no-wait"}, args...)...)
	s.Env = kubeapi.Environ("PATH="+c.Bin+":"+filepath.Dir(tool(c.t, "helm"))+":"+os.Getenv("PATH"),
		"KUBECONFIG="+filepath.Join(dir, "admin.conf"), "HOME="+dir)
	out, err := s.CombinedOutput()
	return string(out), err
}

// helm runs helm as an administrator of this cluster; it must work.
func (c cluster) helm(dir string, args ...string) {
	c.t.Helper()
	if _, err := command(c.t, tool(c.t, "helm"), append(args, "--kubeconfig", filepath.Join(dir, "admin.conf"), "-n", "kube-system")...); err != nil {
		c.t.Fatal(err)
	}
}

// afterHelm: the script adds to what `helm install` made, and what the operator set there stays.
func (c cluster) afterHelm(dir string) {
	c.t.Helper()
	c.helm(dir, append([]string{"install", "edgemesh", chart, "--set", "apiServer.host=203.0.113.10", "--set", "podNetwork.banned={edge-9}",
		"--set", "podNetwork.encryption=always", "--set", "podNetwork.relays={" + relayAddr + "}"}, must()...)...)
	c.kubectl("patch", "podnetwork", "cluster", "--type", "merge", "-p", `{"spec": {"podDenyCIDRs": ["10.0.0.0/8"]}}`)
	quic := strings.Replace(relayAddr, "tcp/4470", "udp/4470/quic-v1", 1)
	for _, x := range []struct {
		args []string
		api  string
	}{
		{[]string{"--relay", quic}, "203.0.113.10 6443"}, // as before
		{[]string{"--api-server", "[2001:db8::1]:443"}, "2001:db8::1 443"},
		{[]string{"--api-server", ""}, " "},
	} {
		out, err := c.firstSteps(dir, x.args...)
		if err != nil {
			c.t.Fatalf("first-steps.sh %v after helm install: %v\n%s", x.args, err, out)
		}
		const env = ".spec.template.spec.containers[0].env"
		if got := c.kubectl("-n", "kube-system", "get", "daemonset", "edgemesh-agent", "-o", fmt.Sprintf(
			`jsonpath={%s[?(@.name=="KUBERNETES_SERVICE_HOST")].value} {%[1]s[?(@.name=="KUBERNETES_SERVICE_PORT")].value}`, env)); got != x.api {
			c.t.Errorf("first-steps.sh %v: the API server is %q, want %q", x.args, got, x.api)
		}
		if said := "at " + strings.ReplaceAll(x.api, " ", ":") + ", as before"; strings.Contains(out, said) != (x.args[0] == "--relay") {
			c.t.Errorf("first-steps.sh %v:\n%s", x.args, out)
		}
	}
	if n := c.network(); !slices.Equal(n.Relays, []string{relayAddr, quic}) || !slices.Equal(n.Banned, []string{"edge-9"}) ||
		!slices.Equal(n.PodDenyCIDRs, []string{"10.0.0.0/8"}) || n.Encryption != "always" {
		c.t.Errorf("the pod network after helm install and first-steps.sh: %+v", n)
	}
	// Nor does helm delete the network when a value of the chart keeps it, or the chart goes.
	c.helm(dir, "upgrade", "edgemesh", chart, "--reset-then-reuse-values", "--set", "podNetwork.create=false")
	c.helm(dir, "uninstall", "edgemesh")
	if n := c.network(); len(n.Relays) != 2 {
		c.t.Errorf("the pod network after helm uninstall: %+v", n)
	}
	c.remove(filepath.Join(root, "manifests/edgemesh/crds"))
}

// afterPlain: what the plain manifests made is not helm's. The script says so before it changes anything, and how helm
// takes it over.
func (c cluster) afterPlain(dir string) {
	c.t.Helper()
	if out, err := c.firstSteps(dir, "--relay", relayAddr); err != nil {
		c.t.Fatalf("first-steps.sh: %v\n%s", err, out)
	}
	before := c.versions()
	out, err := c.firstSteps(dir, "--set", "agent.verbose=true")
	if err == nil || !strings.Contains(out, "--take-ownership") || strings.Contains(out, "== ") {
		c.t.Errorf("first-steps.sh --set after the plain manifests: %v\n%s", err, out)
	}
	if out, err := c.firstSteps(dir, "--namespace", "mesh"); err == nil || !strings.Contains(out, "add --namespace kube-system") {
		c.t.Errorf("first-steps.sh for a second namespace: %v\n%s", err, out)
	}
	if after := c.versions(); after != before {
		c.t.Errorf("what is refused changed objects:\n%s\nwere\n%s", after, before)
	}
	c.helm(dir, "upgrade", "--install", "edgemesh", chart, "--take-ownership", "--set", "podNetwork.create=false")
	if out, err := c.firstSteps(dir, "--set", "podNetwork.encryption=always"); err == nil || !strings.Contains(out, "kubectl edit podnetwork cluster") {
		c.t.Errorf("first-steps.sh with a value of a pod network that is not helm's: %v\n%s", err, out)
	}
	if out, err := c.firstSteps(dir, "--set", "agent.verbose=true"); err != nil {
		c.t.Errorf("first-steps.sh --set after helm took over: %v\n%s", err, out)
	}
	if n := c.network(); !slices.Equal(n.Relays, []string{relayAddr}) {
		c.t.Errorf("pod network: %+v", n)
	}
	c.helm(dir, "uninstall", "edgemesh")
	c.remove(filepath.Join(root, "manifests/edgemesh/crds"))
}

// versions are our objects with their resource versions.
func (c cluster) versions() string {
	c.t.Helper()
	return c.kubectl("get", "podnetworks,daemonsets,deployments,configmaps,customresourcedefinitions,namespaces", "-A", "-o",
		"custom-columns=:.kind,:.metadata.name,:.metadata.resourceVersion")
}
