package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// With metricsAddress mesh:9469 a pod in the cloud scrapes all agents, and nobody on a LAN does.
func TestScrapeAgents(t *testing.T) {
	c, _ := installed(t)
	agentConfig(t, c, "membership: {kubernetes: {}}\n", "membership: {kubernetes: {}}\n    metricsAddress: mesh:9469\n")
	from := on(t, waitPods(t, "app=web", 4, time.Minute), "cloud")
	for _, n := range cluster.FirstNodes() {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			out, err := c.Exec(ctx, from.node, from.name, get("http://"+meshIP(t, c, n)+":9469/metrics")...)
			if err == nil && !strings.Contains(out, "edgemesh_tunnel_bytes_total") {
				err = fmt.Errorf("%s: no metrics of an agent: %.200s", n, out)
			}
			return err
		})
	}
	out, err := c.On(t.Context(), "edge-a1", "ss", "-Hltn", "sport = :9469")
	ok(t, err)
	if strings.Count(out, "\n") != 2 || !strings.Contains(out, "127.0.0.1:9469") || !strings.Contains(out, meshIP(t, c, "edge-a1")+":9469") {
		t.Errorf("edge-a1 listens on:\n%s", out)
	}
}

// exporter is what node-exporter is: a pod on the host's network of every node.
const exporter = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: export
        image: e2e.test/podtool:1
        args: [serve, --name, $(NODE), --port, "9100"]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {path: /, port: 9100}, periodSeconds: 1}
`

// A DaemonSet on the hosts' networks is scraped at its pods' addresses, as Prometheus finds them, from a pod in the cloud and
// from one behind a NAT.
func TestScrapeDaemonSet(t *testing.T) {
	c, _ := installed(t)
	kubectlIn(t, exporter, "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "delete", "daemonset", "exporter", "--timeout=55s"); err != nil {
			t.Error(err)
		}
	})
	all := waitPods(t, "app=exporter", 4, time.Minute)
	web := waitPods(t, "app=web", 4, time.Minute)
	for _, n := range natted {
		if p := on(t, all, n); p.ip != meshIP(t, c, n) {
			t.Errorf("%s has %s, want %s's mesh address %s", p.name, p.ip, n, meshIP(t, c, n))
		}
	}
	for _, from := range []string{"cloud", "edge-b1"} {
		for _, p := range all {
			if from != "cloud" && p.node == "cloud" {
				continue // it keeps its own address, where it is reached directly
			}
			eventually(t, 15*time.Second, func(ctx context.Context) error {
				a, err := curl(ctx, c, on(t, web, from), "http://"+p.ip+":9100/metrics")
				if err == nil && a.Name != p.node {
					err = fmt.Errorf("%s: %q answered, want %s", p.ip, a.Name, p.node)
				}
				return err
			})
		}
	}
	figure(t, "a DaemonSet on the hosts' networks is scraped at its pods' addresses from the cloud and from behind a NAT")
}

// ssh from the cloud to an edge by its mesh address, which sees the cloud's mesh address.
func TestSSH(t *testing.T) {
	c, _ := installed(t)
	for _, program := range []string{"dropbear", "dropbearkey", "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("NOT RUN: ", err, " (apt-get install dropbear-bin openssh-client)")
		}
	}
	const node = "edge-a1"
	dir := t.TempDir()
	home, key := filepath.Join(dir, "root"), filepath.Join(dir, "key")
	ok(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	for _, args := range [][]string{{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key}, {"dropbearkey", "-t", "ed25519", "-f", filepath.Join(dir, "host")}} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	public, err := os.ReadFile(key + ".pub")
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(home, ".ssh", "authorized_keys"), public, 0o600))
	// In a mount namespace of its own: root's home is this machine's.
	ok(t, start(c, t, node, "unshare", "-m", "sh", "-ec", "mount --bind "+home+" /root && exec dropbear -F -E -s -p 22 -r "+dir+"/host -P "+dir+"/pid"))
	t.Cleanup(func() {
		if _, err := c.On(context.WithoutCancel(t.Context()), node, "sh", "-c", "kill $(cat "+dir+"/pid)"); err != nil {
			t.Error(err)
		}
	})
	want := "edge-a1 " + meshIP(t, c, "cloud")
	eventually(t, 15*time.Second, func(ctx context.Context) error {
		out, err := c.On(ctx, "cloud", "ssh", "-F", "/dev/null", "-i", key, "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=no",
			"-o", "UserKnownHostsFile=/dev/null", "root@"+meshIP(t, c, node), "echo $(hostname) ${SSH_CONNECTION%% *}")
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("ssh said %q, want %q", out, want)
		}
		return err
	})
	figure(t, "ssh from the cloud to %s by its mesh address, seen from the cloud's mesh address", node)
}

// start starts a program on a node that runs until something ends it there.
func start(c *cluster.Cluster, t *testing.T, node string, args ...string) error {
	cmd, err := c.Command(context.WithoutCancel(t.Context()), node, args...)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // ended by the test
	return nil
}

// A host's firewall that lets in what it is told to, and nothing else, as ufw does, also keeps other nodes from the mesh
// address: doctor says so, and its remedy opens it.
func TestHostFirewall(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-b1"
	script := func(ctx context.Context, text string) error {
		_, err := c.On(ctx, node, "sh", "-ec", text)
		return err
	}
	// Whatever answers is reached: kubelet without a certificate says 401.
	kubelet := func(ctx context.Context) error {
		out, err := c.On(ctx, "cloud", "curl", "-skm3", "-o", "/dev/null", "-w", "%{http_code}", "https://"+meshIP(t, c, node)+":10250/pods")
		if err == nil && out != "401" {
			err = fmt.Errorf("kubelet says %s", out)
		}
		return err
	}
	doctor := func() string {
		out, err := c.On(t.Context(), node, agentBinary(t), "doctor")
		return out + fmt.Sprint(err)
	}
	eventually(t, 15*time.Second, kubelet)
	if out := doctor(); strings.Contains(out, "drops what its rules do not accept") {
		t.Errorf("doctor, without a firewall:\n%s", out)
	}
	const remedy = "iptables -I INPUT -s 10.244.0.0/16 -j ACCEPT"
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(script(ctx, "iptables -w -P INPUT ACCEPT; iptables -w -D INPUT -i lo -j ACCEPT; iptables -w -D INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
			script(ctx, strings.Replace(remedy, "-I", "-w -D", 1))); err != nil {
			t.Error(err)
		}
	})
	ok(t, script(t.Context(), "iptables -w -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -w -A INPUT -i lo -j ACCEPT; iptables -w -P INPUT DROP"))
	if err := kubelet(t.Context()); err == nil {
		t.Error("kubelet answers through a firewall that drops")
	}
	if out := doctor(); !strings.Contains(out, "INPUT) drops what its rules do not accept") || !strings.Contains(out, remedy) {
		t.Errorf("doctor does not say why:\n%s", out)
	}
	ok(t, script(t.Context(), remedy))
	eventually(t, 15*time.Second, kubelet)
	if out := doctor(); strings.Contains(out, "drops what its rules do not accept") {
		t.Errorf("doctor, after its remedy:\n%s", out)
	}
	figure(t, "a host's firewall that drops by default keeps other nodes from the mesh address; doctor says so, and its remedy opens it")
}
