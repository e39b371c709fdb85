package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

const metricsServer = "manifests/later/metrics-server.yaml"

// withMetricsServer runs metrics-server in the cloud until the test ends.
func withMetricsServer(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ok(t, c.Import(t.Context(), "cloud", "metrics-server"))
	kubectl(t, "apply", "-f", metricsServer)
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "delete", "--timeout=55s", "-f", metricsServer); err != nil {
			t.Error(err)
		}
	})
}

// top wants `kubectl top node` to show figures of every node.
func top(ctx context.Context, a admin) error {
	out, err := a(ctx, "kubectl", "top", "node", "--no-headers").CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl top node: %w: %s", err, out)
	}
	for _, n := range cluster.FirstNodes() {
		shown := false
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line) // name, cores, per cent, memory, per cent
			shown = shown || len(f) == 5 && f[0] == n && strings.HasSuffix(f[1], "m") && strings.HasSuffix(f[3], "Mi")
		}
		if !shown {
			return fmt.Errorf("kubectl top node shows no figures of %s:\n%s", n, out)
		}
	}
	return nil
}

// metrics-server is a pod in the cloud: it asks the kubelets behind NATs by their mesh addresses.
func TestTop(t *testing.T) {
	c, _ := installed(t)
	withMetricsServer(t, c)
	took := eventually(t, 2*time.Minute, func(ctx context.Context) error { return top(ctx, c.AdminCommand) })
	figure(t, "kubectl top node shows all four nodes %s after metrics-server was applied", seconds(took))
	out := kubectl(t, "top", "node")
	t.Logf("kubectl top node:\n%s", out)
	eventually(t, time.Minute, func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "top", "pod", "-l", "app=web", "--no-headers")
		if err == nil && strings.Count(out, "\n") != 4 {
			err = fmt.Errorf("kubectl top pod:\n%s", out)
		}
		return err
	})
}

// remoteAPI is a machine with an API server of this cluster and without an agent, as a managed control plane's: it is where
// the relay is.
type remoteAPI struct {
	c   *cluster.Cluster
	dir string
}

// startRemoteAPI starts one with more options, until the test ends.
func startRemoteAPI(t *testing.T, c *cluster.Cluster, more ...string) *remoteAPI {
	t.Helper()
	r := &remoteAPI{c: c, dir: t.TempDir()}
	pki := func(name string) string { return filepath.Join(c.Dir, "pki", name) }
	r.start(t, c.Program("kube-apiserver"), append([]string{
		"--etcd-servers=http://" + cluster.APIServer + ":2379", "--secure-port=" + cluster.APIPort, "--cert-dir=" + r.dir,
		"--advertise-address=" + cluster.RelayIP, "--endpoint-reconciler-type=none", // the Service kubernetes is the cloud node's
		"--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=Node,RBAC", "--allow-privileged=true",
		"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP", "--profiling=false", "--enable-aggregator-routing=true",
		"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
	}, more...)...)
	eventually(t, time.Minute, func(ctx context.Context) error {
		out, err := r.admin(ctx, "kubectl", "get", "--raw", "/readyz").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	return r
}

// start starts a program on that machine until the test ends; its log is the test's if it fails.
func (r *remoteAPI) start(t *testing.T, program string, args ...string) {
	t.Helper()
	background(t, r.c.InRelay(context.WithoutCancel(t.Context()), append([]string{program}, args...)...))
}

// background runs cmd until the test ends; the end of its log is the test's if it fails.
func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(file)
	ok(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	ok(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if text, err := os.ReadFile(file); t.Failed() {
			t.Logf("%s, %v:\n%s", cmd.Args, err, text[max(0, len(text)-6000):])
		}
	})
}

// admin is a command on that machine.
func (r *remoteAPI) admin(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := r.c.InRelay(ctx, append([]string{"env", "HOME=" + r.dir, "KUBECONFIG=" + filepath.Join(r.dir, "kubeconfig"),
		"PATH=" + filepath.Dir(r.c.Program("kubectl")) + ":" + os.Getenv("PATH"), name}, args...)...)
	text, err := os.ReadFile(filepath.Join(r.c.Dir, "pki", "admin.conf"))
	if err == nil {
		text = bytes.Replace(text, []byte(cluster.APIServer), []byte("127.0.0.1"), 1)
		err = os.WriteFile(filepath.Join(r.dir, "kubeconfig"), text, 0o600)
	}
	if err != nil {
		cmd.Err = err
	}
	return cmd
}

// all wants everything to work from there. It returns the talkers.
func (r *remoteAPI) all(t *testing.T) []pod {
	t.Helper()
	pods := talkers(t)
	web := waitPods(t, "app=web", 4, time.Minute)
	for _, node := range natted {
		t.Run(node, func(t *testing.T) { reaches(t, r.admin, on(t, pods, node), on(t, web, node)) })
	}
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return top(ctx, r.admin) })
	return pods
}

// An API server on a machine without an agent reaches the kubelets behind NATs through the cloud node, which forwards for
// its address and no other, given a route there.
func TestForwardedAPIServer(t *testing.T) {
	c, _ := installed(t)
	withMetricsServer(t, c)
	r := startRemoteAPI(t, c)
	const stranger = "5.5.5.21"
	for _, args := range [][]string{{"ip", "route", "add", "10.244.0.0/16", "via", cluster.APIServer}, {"ip", "addr", "add", stranger + "/24", "dev", "eth0"}} {
		ok(t, c.InRelay(t.Context(), args...).Run())
	}
	t.Cleanup(func() {
		for _, args := range [][]string{{"ip", "route", "del", "10.244.0.0/16"}, {"ip", "addr", "del", stranger + "/24", "dev", "eth0"}} {
			_ = c.InRelay(context.WithoutCancel(t.Context()), args...).Run()
		}
	})
	asks := func(ctx context.Context, from, url string) error { // kubelet answers whom it does not know, with 401
		out, err := c.InRelay(ctx, "curl", "-skm3", "--interface", from, url).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	kubelet := "https://" + meshIP(t, c, "edge-a1") + ":10250/healthz"
	if asks(t.Context(), cluster.RelayIP, kubelet) == nil {
		t.Fatal("kubelet answers before any node forwards")
	}
	agentConfig(t, c, "    membership: {kubernetes: {}}\n",
		"    membership: {kubernetes: {}}\n    nodes: {cloud: {forward: {from: ["+cluster.RelayIP+"/32]}}}\n")
	eventually(t, time.Minute, func(ctx context.Context) error { return asks(ctx, cluster.RelayIP, kubelet) })
	web := on(t, waitPods(t, "app=web", 4, time.Minute), "edge-a1")
	for from, url := range map[string]string{stranger: kubelet, cluster.RelayIP: podURL(web.ip)} {
		if asks(t.Context(), from, url) == nil {
			t.Errorf("%s reaches %s", from, url)
		}
	}
	pods := r.all(t)
	s := startSession(t, r.admin, on(t, pods, "edge-b1").name)
	s.says(t, "before", 5*time.Second)
	ok(t, c.KillAgent(t.Context(), "cloud"))
	s.says(t, "the forwarding node's agent killed", 30*time.Second)
	s.end(t)
	figure(t, "an API server without an agent: logs, exec, port-forward, cp and top of both edges through the cloud node; a session outlives its agent")
}

// agentConfig changes the text of the agents' ConfigMap until the test ends, and rolls them.
func agentConfig(t *testing.T, c *cluster.Cluster, from, to string) {
	t.Helper()
	change := func(ctx context.Context, from, to string) error {
		// Agents that have just been killed are available first. Otherwise Kubernetes 1.35 may look at a new pod a second too
		// soon, and never again until something else happens: what is to come sooner, for an old pod, takes its place in the queue.
		if _, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "daemonset/edgemesh-agent", "--timeout=100s"); err != nil {
			return err
		}
		text, err := c.Kubectl(ctx, "-n", "kube-system", "get", "configmap", "edgemesh-agent", "-o", "yaml")
		if err == nil && !strings.Contains(text, from) {
			err = fmt.Errorf("no %s in:\n%s", from, text)
		}
		if err == nil {
			_, err = c.KubectlIn(ctx, strings.Replace(text, from, to, 1), "replace", "-f", "-")
		}
		if err == nil {
			_, err = c.Kubectl(ctx, "-n", "kube-system", "rollout", "restart", "daemonset/edgemesh-agent")
		}
		if err == nil {
			_, err = c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "daemonset/edgemesh-agent", "--timeout=100s")
		}
		return err
	}
	t.Cleanup(func() {
		if err := change(context.WithoutCancel(t.Context()), to, from); err != nil {
			t.Error(err)
		}
	})
	ok(t, change(t.Context(), from, to))
}

// egress has the API server send what is for the cluster to a konnectivity server beside it.
const egress = `
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}
`

// The same with konnectivity, where no route leads to the pod network: its server beside the API server, its agent on the
// cloud node, which is in the mesh.
func TestKonnectivity(t *testing.T) {
	c, _ := installed(t)
	withMetricsServer(t, c)
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "konnectivity.socket"), filepath.Join(dir, "egress.yaml")
	ok(t, os.WriteFile(config, fmt.Appendf(nil, egress, socket), 0o644))
	pki := func(name string) string { return filepath.Join(c.Dir, "pki", name) }
	ports := []string{"--agent-port=8132", "--admin-port=8133", "--health-port=8134"}
	background(t, c.InRelay(context.WithoutCancel(t.Context()), append([]string{filepath.Join(c.Dir, "build", "proxy-server"),
		"--mode=grpc", "--uds-name=" + socket, "--server-port=0", "--delete-existing-uds-file=true",
		"--cluster-cert=" + pki("apiserver.crt"), "--cluster-key=" + pki("apiserver.key"), "--cluster-ca-cert=" + pki("ca.crt")}, ports...)...))
	agent, err := c.Command(context.WithoutCancel(t.Context()), "cloud", filepath.Join(c.Dir, "build", "proxy-agent"), "--proxy-server-host="+cluster.RelayIP, "--proxy-server-port=8132",
		"--ca-cert="+pki("ca.crt"), "--agent-cert="+pki("apiserver-kubelet-client.crt"), "--agent-key="+pki("apiserver-kubelet-client.key"),
		"--admin-server-port=8133", "--health-server-port=8134")
	ok(t, err)
	background(t, agent)
	r := startRemoteAPI(t, c, "--egress-selector-config-file="+config)
	r.all(t)
	figure(t, "an API server without an agent or a route: the same through konnectivity v0.34.0, whose agent is on the cloud node")
}
