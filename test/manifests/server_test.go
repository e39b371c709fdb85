package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// cluster is a real API server without nodes.
type cluster struct {
	*kubeapi.Cluster
	t *testing.T
}

// kubectl runs kubectl in the directory of the plain manifests' texts; it must work.
func (c cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.Kubectl(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// left lists our objects that are in the cluster.
func (c cluster) left() []string {
	c.t.Helper()
	kinds := "daemonsets,deployments,configmaps,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings," +
		"customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings"
	var out []string
	for name := range strings.Lines(c.kubectl("get", kinds, "-A", "-o", "name")) {
		if strings.Contains(name, "edgemesh") {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// remove deletes what these files made, the CRDs among it, and waits until that is gone.
//
// Where nobody ever listed a kind, the API server does not know whether objects of it are left ("storage is
// (re)initializing") and tries again 5 ms later. If its own note of that failure has not reached its cache by then, it
// takes the conflict for another program's change, which would wake it, and waits for its next resync: up to 5 minutes
// (k8s.io/apiextensions-apiserver v0.35.4, crd_finalizer.go, sync and updateCustomResourceDefinition). In a cluster with
// agents all kinds are listed; here it is done first.
func (c cluster) remove(files ...string) {
	c.t.Helper()
	c.kubectl("get", "podnetworks,meshnodes,podblocks,noderecords,policygroups")
	args := []string{"delete", "--timeout=60s"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	c.kubectl(args...)
}

// network is what PodNetwork/cluster says.
func (c cluster) network() (spec struct {
	PodCIDRs, Relays, Banned, PodDenyCIDRs []string
	Encryption                             string
}) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.kubectl("get", "podnetwork", "cluster", "-o", "jsonpath={.spec}")),
		&spec); err != nil {
		c.t.Fatal(err)
	}
	return spec
}

// A user's installs, upgrades and removals, each on a real API server: it
// validates every field, compiles the policies' expressions, and warns.
func TestOnAServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	api, err := kubeapi.New(dir)
	t.Cleanup(api.Stop)
	if err != nil {
		t.Fatal(err)
	}

	manifest := func(name string) string { return filepath.Join(root, "manifests", name) }

	t.Run("kubectl", func(t *testing.T) {
		c := cluster{api, t}
		c.kubectl("apply", "--validate=strict", "-f", manifest("edgemesh.yaml"))
		if err := api.AwaitCRDs(); err != nil {
			t.Fatal(err)
		}
		c.kubectl("apply", "--validate=strict", "-f", manifest("podnetwork.yaml"))
		c.kubectl("apply", "--validate=strict", "-f", manifest("edgemesh-relay.yaml"))
		for line := range strings.Lines(c.kubectl("apply", "-f", manifest("edgemesh.yaml"))) {
			if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") {
				t.Errorf("applied again: %s", line)
			}
		}
		// kubelet makes a mirror of the static pod.
		c.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", manifest("static-pod/edgemesh-agent.yaml"))
		c.remove(manifest("edgemesh-relay.yaml"), manifest("edgemesh.yaml"))
		if left := c.left(); len(left) > 0 {
			t.Errorf("left after delete: %v", left)
		}
	})

	t.Run("first steps", func(t *testing.T) {
		c := cluster{api, t}
		output := func(name string, args ...string) ([]byte, error) {
			cmd := exec.Command(manifest(name), args...)
			cmd.Env = kubeapi.Environ("PATH="+c.Bin+":"+os.Getenv("PATH"),
				"KUBECONFIG="+filepath.Join(dir, "admin.conf"), "HOME="+dir)
			return cmd.Output()
		}
		script := func(name string, args ...string) string {
			t.Helper()
			out, err := output(name, args...)
			if e := (*exec.ExitError)(nil); errors.As(err, &e) {
				t.Fatalf("%s: %v: %s%s", name, err, out, e.Stderr)
			}
			return string(out)
		}
		run := func(args ...string) { t.Helper(); script("first-steps.sh", args...) }
		run("--pod-cidr", "10.244.0.0/16", "--pod-cidr", "fd00:10:244::/48", "--relay", relayAddr, "--api-server",
			"[2001:db8::1]:6443", "--no-wait")
		if n := c.network(); !slices.Equal(n.PodCIDRs, []string{"10.244.0.0/16", "fd00:10:244::/48"}) ||
			!slices.Equal(n.Relays, []string{relayAddr}) {
			t.Errorf("pod network: %+v", n)
		}
		if got := c.kubectl("-n", "kube-system", "get", "configmap", "edgemesh-apiserver", "-o",
			"jsonpath={.data.host} {.data.port}"); got != "2001:db8::1 6443" {
			t.Errorf("API server: %s", got)
		}
		// The address that only this machine knows the API server by is of no use to a relay elsewhere.
		var refused *exec.ExitError
		if out, err := output("relay-kubeconfig.sh"); !errors.As(err, &refused) ||
			!strings.Contains(string(refused.Stderr), "give the API server's public address") {
			t.Errorf("a kubeconfig for a loopback address: %s, %v", out, err)
		}
		// A relay outside the cluster may read who the members are, until that is revoked.
		for _, plain := range []string{"http://203.0.113.10:6443", "http://127.0.0.1:8080"} {
			if out, err := output("relay-kubeconfig.sh", plain); !errors.As(err, &refused) || !strings.Contains(string(refused.Stderr), "https") {
				t.Errorf("a kubeconfig without TLS: %s, %v", out, err)
			}
		}
		// This API server has no signer of certificates, so it is a token.
		text := script("relay-kubeconfig.sh", c.URL)
		if until, err := time.Parse("# Good until 2006-01-02T15:04:05Z.", strings.Split(text, "\n")[0]); err != nil ||
			time.Until(until) < 29*24*time.Hour || time.Until(until) > 31*24*time.Hour {
			t.Errorf("the relay's kubeconfig is good until %v, %v", until, err)
		}
		reader := file(t, text)
		for _, kind := range []string{"podnetworks", "meshnodes", "podblocks", "nodes"} {
			c.kubectl("--kubeconfig", reader, "get", kind)
		}
		for _, args := range [][]string{{"get", "secrets", "-n", "kube-system"}, {"annotate", "podnetwork", "cluster", "a=b"}, {"get", "pods", "-A"}} {
			if _, err := c.Kubectl(append([]string{"--kubeconfig", reader}, args...)...); err == nil ||
				!strings.Contains(err.Error(), "orbidden") {
				t.Errorf("the relay's kubeconfig allows %v: %v", args, err)
			}
		}
		if left := c.kubectl("get", "csr", "-o", "name"); left != "" {
			t.Errorf("left behind: %s", left)
		}
		c.kubectl("-n", "kube-system", "delete", "secret", "edgemesh-relay-token")
		// The server remembers good tokens for some seconds.
		fair.Eventually(t, time.Minute, "a revoked token is refused", fair.True(func() bool {
			_, err := c.Kubectl("--kubeconfig", reader, "get", "meshnodes")
			return err != nil
		}))
		// A cluster that signs certificates gives the relay one, and no token.
		if err := api.StartControllers("certificatesigningrequest-signing-controller"); err != nil {
			t.Fatal(err)
		}
		fair.Eventually(t, 30*time.Second, "a certificate, once the signer runs", func() error {
			text = script("relay-kubeconfig.sh", c.URL)
			if strings.Contains(text, "token:") || !strings.Contains(text, "client-key-data:") {
				log, _ := os.ReadFile(api.Logs("kube-controller-manager"))
				return fmt.Errorf("a token; the signer:\n%s", log)
			}
			return nil
		})
		api.StopControllers()
		// It ends with the CA's own certificate at the latest, which a test's CA does soon.
		if until, err := time.Parse("# Good until 2006-01-02T15:04:05Z.", strings.Split(text, "\n")[0]); err != nil ||
			time.Until(until) < time.Hour || time.Until(until) > 31*24*time.Hour {
			t.Errorf("the relay's certificate is good until %v, %v", until, err)
		}
		reader = file(t, text)
		for _, kind := range []string{"podnetworks", "meshnodes", "podblocks", "nodes"} {
			c.kubectl("--kubeconfig", reader, "get", kind)
		}
		for _, args := range [][]string{{"get", "secrets", "-n", "kube-system"}, {"annotate", "podnetwork", "cluster", "a=b"}} {
			if _, err := c.Kubectl(append([]string{"--kubeconfig", reader}, args...)...); err == nil || !strings.Contains(err.Error(), "orbidden") {
				t.Errorf("the relay's certificate allows %v: %v", args, err)
			}
		}
		// A second run, with another relay, on a node. What the operator set meanwhile stays.
		c.kubectl("apply", "-f", file(t, `{apiVersion: network.edgemesh.io/v1alpha1, kind: PodNetwork, metadata: {name: cluster},
			spec: {podCIDRs: ["10.244.0.0/16", "fd00:10:244::/48"], relays: ["`+relayAddr+`"], encryption: always}}`))
		c.kubectl("create", "-f", file(t, "{apiVersion: v1, kind: Node, metadata: {name: cloud, labels: {kubernetes.io/os: linux}}}"))
		// No node may run the controller: nothing is changed, and the line to add is named.
		const trusted = "node-restriction.kubernetes.io/edgemesh-controller"
		if _, err := output("first-steps.sh", "--pod-cidr", "10.245.0.0/16", "--no-wait"); !errors.As(err, &refused) ||
			!strings.Contains(string(refused.Stderr), "kubectl label node NODE "+trusted+"=") || slices.Contains(c.network().PodCIDRs, "10.245.0.0/16") {
			t.Errorf("without a node for the controller: %v, pod network %v", err, c.network().PodCIDRs)
		}
		c.kubectl("label", "node", "cloud", trusted+"=")
		quic := strings.Replace(relayAddr, "tcp/4470", "udp/4470/quic-v1", 1)
		run("--pod-cidr", "10.244.0.0/16", "--pod-cidr", "fd00:10:244::/48", "--relay", quic, "--relay-node",
			"cloud", "--announce", "203.0.113.5", "--no-wait")
		if n := c.network(); !slices.Equal(n.Relays, []string{relayAddr, quic}) || n.Encryption != "always" {
			t.Errorf("after the second run: %+v", n)
		}
		if got := c.kubectl("-n", "kube-system", "get", "configmap", "edgemesh-relay", "-o",
			"jsonpath={.data.relay\\.yaml}"); !strings.Contains(got, "\nannounce: [\"/ip4/203.0.113.5\"]\n") {
			t.Errorf("relay.yaml:\n%s", got)
		}
		if got := c.kubectl("get", "node", "cloud", "-o",
			"jsonpath={.metadata.labels}"); !strings.Contains(got, `"network.edgemesh.io/relay":"true"`) {
			t.Errorf("labels of the relay's node: %s", got)
		}
		// Another address of the API server: what runs already must learn it.
		for i, x := range []struct {
			address string
			hint    bool
		}{{"203.0.113.10:6443", true}, {"203.0.113.10:6443", false}, {"", true}} {
			out := script("first-steps.sh", "--pod-cidr", "10.244.0.0/16", "--pod-cidr", "fd00:10:244::/48",
				"--api-server", x.address, "--no-wait")
			for _, w := range []string{"daemonset/edgemesh-agent", "deployment/edgemesh-relay"} {
				if strings.Contains(out, "rollout restart "+w) != x.hint {
					t.Errorf("run %d with --api-server %q, a hint to restart %s: %v\n%s", i, x.address, w, !x.hint, out)
				}
			}
		}
		if got := c.kubectl("-n", "kube-system", "get", "configmap", "edgemesh-apiserver", "--ignore-not-found",
			"-o", "name"); got != "" {
			t.Errorf("--api-server \"\" left %s", got)
		}
		script("cleanup-nodes.sh", "--yes", "--purge", "--no-wait")
		ds := c.kubectl("-n", "kube-system", "get", "daemonset", "edgemesh-agent", "-o",
			"jsonpath={.spec.template.spec.containers[0].args} {.spec.updateStrategy.rollingUpdate}")
		if ds != `["cleanup","--purge"] {"maxSurge":0,"maxUnavailable":"100%"}` {
			t.Errorf("the DaemonSet that cleans up: %s", ds)
		}
		c.remove(manifest("edgemesh-relay.yaml"), manifest("edgemesh.yaml"))
	})

	// The same script with options that the plain manifests have no place for.
	t.Run("first-steps.sh with helm", func(t *testing.T) {
		c := cluster{api, t}
		run := func(args ...string) {
			t.Helper()
			if out, err := c.firstSteps(dir, append([]string{"--relay", relayAddr}, args...)...); err != nil {
				t.Fatalf("first-steps.sh: %v: %s", err, out)
			}
		}
		run("--namespace", "mesh", "--registry", "registry.test/edge", "--platform", "kubeedge", "--cni-bin", "/usr/lib/cni",
			"--set", "agent.verbose=true", "--relay-node", "cloud", "--announce", "203.0.113.5")
		run("--namespace", "mesh") // the former values stay
		for _, w := range []string{"daemonset/edgemesh-agent", "daemonset/edgemesh-agent-edge", "deployment/edgemesh-relay"} {
			if image := c.kubectl("-n", "mesh", "get", w, "-o", "jsonpath={.spec.template.spec.containers[0].image}"); !strings.HasPrefix(image, "registry.test/edge/edgemesh-") {
				t.Errorf("%s: image %s", w, image)
			}
		}
		if paths := c.kubectl("-n", "mesh", "get", "daemonset/edgemesh-agent", "-o", "jsonpath={.spec.template.spec.volumes[*].hostPath.path}"); !strings.Contains(paths, "/usr/lib/cni") {
			t.Errorf("the node's directories: %s", paths)
		}
		if relay := c.kubectl("-n", "mesh", "get", "configmap/edgemesh-relay", "-o", "jsonpath={.data.relay\\.yaml}"); !strings.Contains(relay, "/ip4/203.0.113.5") {
			t.Errorf("relay.yaml: %s", relay)
		}
		if n := c.network(); !slices.Equal(n.Relays, []string{relayAddr}) {
			t.Errorf("pod network: %+v", n)
		}
		if out, err := command(t, tool(t, "helm"), "uninstall", "edgemesh", "-n", "mesh", "--wait", "--kubeconfig", filepath.Join(dir, "admin.conf")); err != nil {
			t.Fatalf("helm uninstall: %v: %s", err, out)
		}
		c.remove(manifest("edgemesh/crds"))
		c.kubectl("delete", "namespace", "mesh", "--wait=false") // nothing here empties it
	})

	t.Run("first-steps.sh after helm install", func(t *testing.T) { cluster{api, t}.afterHelm(dir) })
	t.Run("first-steps.sh after the plain manifests", func(t *testing.T) { cluster{api, t}.afterPlain(dir) })

	t.Run("helm", func(t *testing.T) {
		c := cluster{api, t}
		helm := func(args ...string) string {
			t.Helper()
			out, err := command(t, tool(t, "helm"), append(args, "--kubeconfig", filepath.Join(dir, "admin.conf"), "-n", "kube-system")...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		// The only node is no control plane, and no administrator's choice: nothing is installed.
		const trusted = "node-restriction.kubernetes.io/edgemesh-"
		c.kubectl("label", "node", "cloud", trusted+"controller-", trusted+"relay-", "network.edgemesh.io/relay-")
		refuses := func(part string, args ...string) {
			t.Helper()
			_, err := command(t, tool(t, "helm"), append(append(args, must()...), "--kubeconfig", filepath.Join(dir, "admin.conf"), "-n", "kube-system")...)
			if err == nil || !strings.Contains(err.Error(), "no Node may run the "+part) || !strings.Contains(err.Error(), "kubectl label node NODE "+trusted+part+"=") ||
				!strings.Contains(err.Error(), part+".label") {
				t.Errorf("%v with no node for the %s: %v", args, part, err)
			}
		}
		refuses("controller", "install", "edgemesh", chart)
		c.kubectl("label", "node", "cloud", "node-role.kubernetes.io/control-plane=")
		refuses("relay", "install", "edgemesh", chart, "--set", "relay.enabled=true") // where it shall run, no node says
		c.kubectl("label", "node", "cloud", "network.edgemesh.io/relay=true")
		notes := helm(append([]string{"install", "edgemesh", chart}, must()...)...)
		for _, want := range []string{
			"WARNING: podNetwork.relays is empty", "kubectl get meshnodes -o wide", "apiServer.host is empty",
		} {
			if !strings.Contains(notes, want) {
				t.Errorf("the notes lack %q:\n%s", want, notes)
			}
		}
		if notes = helm("upgrade", "edgemesh", chart, "--reset-then-reuse-values", "--set",
			"podNetwork.memberRelays=true"); strings.Contains(notes, "WARNING") {
			t.Errorf("nodes may be relays, and the notes warn that there are none:\n%s", notes)
		}
		notes = helm("upgrade", "edgemesh", chart, "--reuse-values", "--set", "relay.enabled=true", "--set",
			"apiServer.host=203.0.113.10")
		if !strings.Contains(notes, `ownerReferences[0].kind=="ReplicaSet"`) ||
			strings.Contains(notes, "apiServer.host is empty") {
			t.Errorf("notes with a relay:\n%s", notes)
		}
		helm("upgrade", "edgemesh", chart, "--reuse-values", "--set", "podNetwork.relays={"+relayAddr+"}")
		if n := c.network(); !slices.Equal(n.Relays, []string{relayAddr}) {
			t.Errorf("relays after the upgrade: %v", n.Relays)
		}
		// Ranges in use do not change by accident.
		if _, err := command(t, tool(t, "helm"), "upgrade", "edgemesh", chart, "--reuse-values", "--set",
			"podNetwork.blockSize=26", "--kubeconfig", filepath.Join(dir, "admin.conf"), "-n",
			"kube-system"); err == nil {
			t.Error("blockSize can be changed")
		}
		helm("uninstall", "edgemesh")
		for _, o := range c.left() {
			if !strings.HasPrefix(o, "customresourcedefinition") { // helm leaves them, docs/install.md says so
				t.Errorf("left after uninstall: %s", o)
			}
		}
		c.remove(manifest("edgemesh/crds"))
		if left := c.left(); len(left) > 0 {
			t.Errorf("left after the CRDs are deleted: %v", left)
		}
	})
}

// Agents have no right to pods where policies are off.
func TestRightToPods(t *testing.T) {
	for value, want := range map[string]bool{"auto": true, "off": false} {
		list := render(t, with(literal("podNetwork.networkPolicy", value))...)
		if got := has(list, "ClusterRole", "edgemesh:pods") || has(list, "ClusterRoleBinding", "edgemesh:pods"); got != want {
			t.Errorf("networkPolicy: %s: a right to pods: %v", value, got)
		}
		controller := slices.IndexFunc(list, func(o object) bool { return o.kind() == "ClusterRole" && o.name() == "edgemesh:controller" })
		if got := strings.Contains(fmt.Sprint(list[controller]["rules"]), "[pods"); got != want {
			t.Errorf("networkPolicy: %s: the controller's right to pods: %v", value, got)
		}
	}
}
