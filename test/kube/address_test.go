package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// talker is a pod on every edge that says a line each 200 ms.
const talker = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: talker}
spec:
  selector: {matchLabels: {app: talker}}
  template:
    metadata: {labels: {app: talker}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: talk, image: "e2e.test/podtool:1", args: [talk, --every, 200ms]}]
`

// natted are two edges behind two NATs, with the same address on their LANs.
var natted = []string{"edge-a1", "edge-b1"}

// talkers starts those pods until the test ends.
func talkers(t *testing.T) []pod {
	t.Helper()
	kubectlIn(t, talker, "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := suite.c.Kubectl(context.WithoutCancel(t.Context()), "delete", "daemonset", "talker", "--timeout=55s"); err != nil {
			t.Error(err)
		}
	})
	return waitPods(t, "app=talker", 4, time.Minute)
}

// The API server reaches kubelets behind two NATs by their mesh addresses, with nothing of the suite between them.
func TestKubectl(t *testing.T) {
	c, _ := installed(t)
	pods := talkers(t)
	if ip, err := internalIP(t.Context(), c, "cloud"); err != nil || ip != cluster.APIServer {
		t.Errorf("the control plane's node reports %q, want its own address %s: nobody asked for another one; %v", ip, cluster.APIServer, err)
	}
	for _, node := range natted {
		ip, err := internalIP(t.Context(), c, node)
		ok(t, err)
		p := on(t, pods, node)
		t.Run(node, func(t *testing.T) {
			if ip != meshIP(t, c, node) {
				t.Errorf("InternalIP is %s, want the mesh address %s", ip, meshIP(t, c, node))
			}
			reaches(t, c.AdminCommand, p, on(t, waitPods(t, "app=web", 4, time.Minute), node))
		})
	}
}

// admin makes a command, not started, that finds kubectl and an API server.
type admin func(ctx context.Context, name string, args ...string) *exec.Cmd

// reaches wants what leads from an API server to a node's kubelet to work, for a talker and a web server there.
func reaches(t *testing.T, a admin, talker, web pod) {
	t.Run("logs", func(t *testing.T) { follows(t, a, talker) })
	t.Run("exec", func(t *testing.T) {
		s := startSession(t, a, talker.name)
		s.says(t, "hello", 5*time.Second)
		s.end(t)
		terminal(t, a, talker.name)
	})
	t.Run("port-forward", func(t *testing.T) { forwards(t, a, web) })
	t.Run("cp", func(t *testing.T) { copies(t, a, talker) })
	t.Run("scrape", func(t *testing.T) { // what metrics-server asks kubelet for, through the API server
		out, err := a(t.Context(), "kubectl", "get", "--raw", "/api/v1/nodes/"+talker.node+"/proxy/metrics/resource").Output()
		ok(t, err)
		for _, want := range []string{"node_cpu_usage_seconds_total ", "node_memory_working_set_bytes ", `pod="` + talker.name + `"`} {
			if !strings.Contains(string(out), want) {
				t.Errorf("no %q in the node's resource metrics", want)
			}
		}
	})
}

// meshIP is a node's mesh address, as its MeshNode says.
func meshIP(t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	var m struct {
		Status struct{ Addresses []string }
	}
	ok(t, c.API().Get(t.Context(), meshAPI+"meshnodes/"+node, &m))
	if len(m.Status.Addresses) == 0 {
		t.Fatalf("MeshNode %s has no addresses", node)
	}
	return m.Status.Addresses[0]
}

// follows wants `kubectl logs -f` to give lines as they are written.
func follows(t *testing.T, a admin, p pod) {
	t.Helper()
	ctx, cancel := product.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := a(ctx, "kubectl", "logs", "-f", "--tail=1", p.name)
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var last, n int
	for n = 0; n < 5 && lines.Scan(); n++ {
		var number int
		if _, err := fmt.Sscanf(lines.Text(), "line %d", &number); err != nil || n > 0 && number != last+1 {
			t.Errorf("line %q after number %d", lines.Text(), last)
		}
		last = number
	}
	cancel()
	_ = cmd.Wait() // cancelled
	if n < 5 {
		t.Errorf("%d lines of logs -f", n)
	}
}

// forwards wants `kubectl port-forward` to lead to the pod.
func forwards(t *testing.T, a admin, p pod) {
	t.Helper()
	ctx, cancel := product.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := a(ctx, "kubectl", "port-forward", "pod/"+p.name, ":9376")
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	ok(t, err)
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	body, err := a(ctx, "curl", "-sSfm5", "http://"+at).Output()
	got, err := decodeAnswer(string(body), err)
	if err != nil || got.Name != p.name {
		t.Errorf("port-forward to %s: %q answered, %v", p.name, got.Name, err)
	}
}

// copies wants `kubectl cp` to bring 8 MB into the pod and back unchanged.
func copies(t *testing.T, a admin, p pod) {
	t.Helper()
	dir := t.TempDir()
	data := bytes.Repeat([]byte("abcdefgh12345678"), 1<<19)
	ok(t, os.WriteFile(filepath.Join(dir, "there"), data, 0o644))
	for _, way := range [][]string{{"there", p.name + ":/copied"}, {p.name + ":/copied", "back"}} {
		cmd := a(t.Context(), "kubectl", "cp", way[0], way[1])
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cp %v: %v: %s", way, err, out)
		}
	}
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	ok(t, err)
	if !bytes.Equal(back, data) {
		t.Errorf("%d bytes came back of %d", len(back), len(data))
	}
}

// session is one `kubectl exec -i`, whose other end gives back each line.
type session struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	log   *bytes.Buffer
	once  sync.Once
}

func startSession(t *testing.T, a admin, pod string) *session {
	t.Helper()
	s := &session{cmd: a(context.WithoutCancel(t.Context()), "kubectl", "exec", "-i", pod, "--", "/podtool", "talk"),
		lines: make(chan string, 16), log: &bytes.Buffer{}}
	var err error
	s.in, err = s.cmd.StdinPipe()
	ok(t, err)
	out, err := s.cmd.StdoutPipe()
	ok(t, err)
	s.cmd.Stderr = s.log
	ok(t, s.cmd.Start())
	t.Cleanup(func() { s.once.Do(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() }) })
	go func() {
		defer close(s.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			s.lines <- in.Text()
		}
	}()
	return s
}

// says wants a line back.
func (s *session) says(t *testing.T, line string, within time.Duration) {
	t.Helper()
	_, err := fmt.Fprintln(s.in, line)
	ok(t, err)
	ctx, cancel := product.WithTimeout(t.Context(), within)
	defer cancel()
	select {
	case got, more := <-s.lines:
		if got != "you said "+line {
			t.Fatalf("session: %q came back, the session lives: %v; %s", got, more, s.log)
		}
	case <-ctx.Done():
		t.Fatalf("session: no answer to %q within %v; %s", line, within, s.log)
	}
}

// end ends it as a user does.
func (s *session) end(t *testing.T) {
	t.Helper()
	s.once.Do(func() {
		ok(t, s.in.Close())
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("session: %v; %s", err, s.log)
		}
	})
}

// terminal wants `kubectl exec -it` to work: `script` gives kubectl a terminal.
func terminal(t *testing.T, a admin, pod string) {
	t.Helper()
	ctx, cancel := product.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := a(ctx, "script", "-qec", "kubectl exec -it "+pod+" -- /podtool talk", "/dev/null")
	in, err := cmd.StdinPipe()
	ok(t, err)
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	_, err = fmt.Fprintln(in, "from a terminal")
	ok(t, err)
	said := false
	for lines := bufio.NewScanner(out); lines.Scan(); { // the terminal's own echo comes first
		if strings.Contains(lines.Text(), "you said from a terminal") {
			said = true
			_, err := fmt.Fprint(in, "\x04") // Ctrl-D, which the terminal in the pod takes as the end
			ok(t, err)
		}
	}
	if err := cmd.Wait(); err != nil || !said {
		t.Errorf("exec -it: it answered: %v; %v", said, err)
	}
}

// A session of kubectl exec stays while the path between the API server's node and the edge moves, and while the agents
// at both ends are killed and come back.
func TestSession(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-b1"
	s := startSession(t, c.AdminCommand, on(t, talkers(t), node).name)
	s.says(t, "before", 5*time.Second)
	// Between the two only the relay is left, then the direct way is open again.
	blocked := func(op string) {
		_, err := c.InRouter(t.Context(), "b", "iptables", op, "FORWARD", "-d", cluster.APIServer, "-p", "udp", "-j", "DROP")
		ok(t, err)
		_, err = c.InRouter(t.Context(), "b", "iptables", op, "FORWARD", "-d", cluster.APIServer, "-p", "tcp", "!", "--dport", cluster.APIPort, "-j", "DROP")
		ok(t, err)
	}
	blocked("-I")
	t.Cleanup(func() {
		_, _ = c.InRouter(context.WithoutCancel(t.Context()), "b", "iptables", "-D", "FORWARD", "-d", cluster.APIServer, "-p", "udp", "-j", "DROP")
		_, _ = c.InRouter(context.WithoutCancel(t.Context()), "b", "iptables", "-D", "FORWARD", "-d", cluster.APIServer, "-p", "tcp", "!", "--dport", cluster.APIPort, "-j", "DROP")
	})
	pathIs := func(kinds ...string) {
		t.Helper()
		took := eventually(t, time.Minute, func(ctx context.Context) error {
			kind, err := pathTo(ctx, c, node, "cloud")
			if err == nil && !slices.Contains(kinds, kind) {
				err = fmt.Errorf("the path is %s, want %v", kind, kinds)
			}
			return err
		})
		t.Logf("%v after %s", kinds, seconds(took))
	}
	pathIs("relayed")
	s.says(t, "relayed", 10*time.Second)
	blocked("-D")
	pathIs("direct")
	s.says(t, "direct", 5*time.Second)
	ok(t, c.Wire(t.Context(), node, "cloud"))
	t.Cleanup(func() { _ = c.Unwire(context.WithoutCancel(t.Context()), node) })
	pathIs("native")
	s.says(t, "native", 5*time.Second)
	for _, n := range []string{node, "cloud"} {
		ok(t, c.KillAgent(t.Context(), n))
		s.says(t, "agent of "+n+" killed", 30*time.Second)
		eventually(t, time.Minute, func(ctx context.Context) error { return agentRuns(ctx, c, n) })
		s.says(t, "agent of "+n+" is back", 10*time.Second)
	}
	ok(t, c.Unwire(t.Context(), node))
	pathIs("direct")
	s.says(t, "the cable is gone", 30*time.Second)
	s.end(t)
	figure(t, "kubectl exec to a NATed edge stays: relayed, direct, native, agents at both ends killed")
}

// pathTo is the kind of path from one node's agent to another node.
func pathTo(ctx context.Context, c *cluster.Cluster, from, to string) (string, error) {
	out, err := c.On(ctx, from, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status")
	if err != nil {
		return "", err
	}
	var st struct{ Peers []struct{ Node, Path string } }
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return "", err
	}
	for _, p := range st.Peers {
		if p.Node == to {
			return p.Path, nil
		}
	}
	return "", fmt.Errorf("%s does not list %s", from, to)
}

// hostWeb is a pod on the host's network of an edge, with a Service; portWeb one of the pod network with a hostPort there.
const hostWeb = `
apiVersion: v1
kind: Pod
metadata: {name: host-web, labels: {app: host-web}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  nodeName: edge-a1
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, host-web]
    readinessProbe: {httpGet: {path: /, port: 9376}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: host-web}
spec:
  type: NodePort
  selector: {app: host-web}
  ports: [{port: 80, targetPort: 9376}]
`

const portWeb = `
---
apiVersion: v1
kind: Pod
metadata: {name: port-web, labels: {app: port-web}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: edge-a1
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, port-web]
    ports: [{containerPort: 9376, hostPort: 8376}]
`

// A Service whose endpoint is a pod on the host's network of one site is reached from the other site and from the cloud, and
// so is a hostPort.
func TestHostNetworkService(t *testing.T) {
	c, _ := installed(t)
	kubectlIn(t, hostWeb+portWeb, "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := c.KubectlIn(context.WithoutCancel(t.Context()), hostWeb+portWeb, "delete", "--timeout=55s", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	host := waitPods(t, "app=host-web", 1, time.Minute)[0]
	if want := meshIP(t, c, "edge-a1"); host.ip != want {
		t.Errorf("status.podIP is %s, want the node's mesh address %s", host.ip, want)
	}
	var svc corev1.Service
	ok(t, c.API().Get(t.Context(), "/api/v1/namespaces/default/services/host-web", &svc))
	eventually(t, 30*time.Second, func(ctx context.Context) error { return endpointsAre(ctx, c, "host-web", []pod{host}) })
	web := waitPods(t, "app=web", 4, time.Minute)
	waitPods(t, "app=port-web", 1, time.Minute)
	want := func(name string, a answer, err error) error {
		if err == nil && a.Name != name {
			err = fmt.Errorf("%q answered, want %s", a.Name, name)
		}
		return err
	}
	targets := map[string]string{
		"http://" + svc.Spec.ClusterIP + "/":                                              "host-web",
		fmt.Sprintf("http://%s:%d/", meshIP(t, c, "edge-b1"), svc.Spec.Ports[0].NodePort): "host-web",
		podURL(host.ip):                "host-web",
		"http://" + host.ip + ":8376/": "port-web",
	}
	from := []string{"edge-b1", "edge-b2", "cloud", "edge-a1"}
	for _, n := range from {
		for target, name := range targets {
			eventually(t, 15*time.Second, func(ctx context.Context) error {
				pod, podErr := curl(ctx, c, on(t, web, n), target)
				node, nodeErr := curlNode(ctx, c, n, target)
				return errors.Join(want(name, pod, podErr), want(name, node, nodeErr))
			})
		}
	}
	figure(t, "ClusterIP, NodePort and hostPort of pods on an edge, one of them with hostNetwork, answer pods and hosts of all %d nodes", len(from))
}
