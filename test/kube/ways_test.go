package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
	"edgemesh/test/ways"
)

// The ways of installing that the pages describe and no other test runs, each on a cluster of its own: from its first command until all nodes
// are Ready and all pods reach each other. edge-a1 has the DaemonSet's pod, edge-b1 a static pod, edge-b2 a unit.
func TestWays(t *testing.T) {
	if suite.c != nil || os.Getenv("EDGEMESH_KUBE_ATTACH") != "" {
		t.Skip("on clusters of its own: make e2e-ways")
	}
	for _, r := range ways.Runs {
		if r.Test != "TestWays" {
			continue
		}
		t.Run(strings.Trim(strings.Join(r.Way[:], ", "), ", "), func(t *testing.T) {
			if suite.c != nil {
				t.Skip("KEEP has the cluster of another way running")
			}
			if r.Way[ways.Platform] != ways.Plain {
				t.Setenv("EDGEMESH_KUBE", r.Way[ways.Platform])
			}
			t.Cleanup(func() { // after all others
				if suite.c != nil && os.Getenv("KEEP") == "" {
					if code := finish(suite.c); code != 0 {
						t.Error("the cluster could not be removed")
					}
					suite.c = nil
				}
				suite.err, suite.installed = nil, nil
			})
			w := way{Way: r.Way, c: bare(t), nodes: cluster.FirstNodes()}
			suite.installed = &installation{}
			w.run(t)
		})
	}
}

// The nodes of each form.
const daemonSetNode, staticNode, unitNode = "edge-a1", "edge-b1", "edge-b2"

// way is one on its cluster.
type way struct {
	ways.Way
	c           *cluster.Cluster
	nodes       []string
	relays      []string // addresses
	relayNode   string   // "": outside of the cluster
	controllers string   // their node, "": none
}

func (w *way) inCluster() bool { return w.relayNode != "" }

// run installs the network and looks at what is there.
func (w *way) run(t *testing.T) {
	w.prepare(t)
	start := time.Now()
	switch w.Way[ways.By] {
	case ways.Manifest:
		w.byManifest(t)
	case ways.Chart:
		w.byChart(t)
	case ways.Script:
		w.byScript(t)
	}
	installUnit(t, w.c, unitNode)
	installStaticPod(t, w.c, staticNode)
	if !w.inCluster() {
		w.relayOutside(t)
	}
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		var errs []error
		for _, n := range w.nodes {
			errs = append(errs, nodeReady(ctx, w.c, n))
		}
		return errors.Join(errs...)
	})
	ready := time.Since(start)
	all := append(waitPods(t, "app=web", len(w.nodes), 2*time.Minute), waitPods(t, "app=shop", 2, time.Minute)...)
	eventually(t, time.Minute, func(ctx context.Context) error { return allPairs(ctx, w.c, all) })
	reached := time.Since(start)
	eventually(t, time.Minute, func(ctx context.Context) error { return w.asPlanned(ctx) })
	figure(t, "%s: all nodes Ready after %s, all %d ordered pairs of pods after %s", t.Name(), seconds(ready), len(all)*(len(all)-1), seconds(reached))
}

// prepare starts what machines the way takes beside those of each cluster, labels nodes, and has pods wait.
func (w *way) prepare(t *testing.T) {
	t.Helper()
	const canRelay = "node-restriction.kubernetes.io/edgemesh-relay="
	if w.Way[ways.Controller] != ways.None {
		w.controllers = "cloud"
	}
	second := w.Way[ways.Relay] != ways.Unit
	switch w.Way[ways.Relay] {
	case ways.ControlPlane:
		w.relayNode = "cloud"
		second = w.Way[ways.Controller] == ways.Another
		if second {
			w.controllers = cluster.SecondCloud
		}
	case ways.Node:
		w.relayNode = cluster.SecondCloud
		if w.Way[ways.Controller] == ways.Same {
			w.controllers = cluster.SecondCloud
		}
	}
	if second {
		ok(t, w.c.Start(t.Context(), cluster.SecondCloud))
		eventually(t, time.Minute, func(ctx context.Context) error {
			return w.c.API().Get(ctx, "/api/v1/nodes/"+cluster.SecondCloud, nil)
		})
		if w.Way[ways.Relay] == ways.Container { // a host with a runtime, and no part of the cluster
			ok(t, w.c.Service(t.Context(), "stop", cluster.SecondCloud, "kubelet"))
			kubectl(t, "delete", "node", cluster.SecondCloud)
		} else {
			w.nodes = append(w.nodes, cluster.SecondCloud)
		}
	}
	if w.controllers == cluster.SecondCloud {
		kubectl(t, "label", "node", cluster.SecondCloud, "node-restriction.kubernetes.io/edgemesh-controller=")
		if w.Way[ways.Relay] == ways.Node { // as where a service runs the control plane
			kubectl(t, "label", "node", "cloud", "node-role.kubernetes.io/control-plane-")
		}
	}
	if w.inCluster() {
		ok(t, w.c.Import(t.Context(), w.relayNode, "edgemesh-relay"))
		if w.Way[ways.By] != ways.Script { // which does it
			kubectl(t, "label", "node", w.relayNode, "network.edgemesh.io/relay=true", canRelay)
		}
	}
	kubectl(t, "label", "node", unitNode, "network.edgemesh.io/agent=systemd")
	kubectl(t, "label", "node", staticNode, "network.edgemesh.io/agent=static-pod")
	kubectl(t, "apply", "-f", "manifests/workload.yaml")
}

// admin runs a command of the pages.
func (w *way) admin(t *testing.T, within time.Duration, name string, args ...string) string {
	t.Helper()
	ctx, cancel := product.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := w.c.AdminCommand(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
	}
	return string(out)
}

func (w *way) byManifest(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", "kube-system", "create", "configmap", "edgemesh-apiserver", "--from-literal=host="+cluster.APIServer, "--from-literal=port="+cluster.APIPort)
	kubectl(t, "apply", "-f", filepath.Join(root, "manifests/edgemesh.yaml"))
	kubectl(t, "wait", "--for=condition=Established", "--timeout=50s", "crd/podnetworks.network.edgemesh.io")
	network := func() {
		text, err := os.ReadFile(filepath.Join(root, "manifests/podnetwork.yaml"))
		ok(t, err)
		kubectlIn(t, strings.Replace(string(text), "relays: []", "relays: ["+strings.Join(w.relays, ", ")+"]", 1), "apply", "-f", "-")
	}
	network()
	if w.inCluster() {
		kubectl(t, "apply", "-f", filepath.Join(root, "manifests/edgemesh-relay.yaml"))
		w.relaysLog(t)
		network()
	}
}

func (w *way) byChart(t *testing.T) {
	t.Helper()
	args := []string{"install", "edgemesh", filepath.Join(root, "manifests/edgemesh"), "-n", "kube-system",
		"--set", "podNetwork.podCIDRs={10.244.0.0/16}", "--set", "apiServer.host=" + cluster.APIServer, "--set", "apiServer.port=" + cluster.APIPort}
	if w.Way[ways.Platform] == ways.KubeEdge {
		args = append(args, "--set", "kubeedge.enabled=true")
	}
	if w.inCluster() {
		args = append(args, "--set", "relay.enabled=true")
		if w.controllers != "" && w.controllers != w.relayNode { // else the control plane has its pods, too
			args = append(args, "--set", `controller.nodeSelector.kubernetes\.io/hostname=`+w.controllers)
		}
	}
	if w.controllers == "" {
		args = append(args, "--set", "controller.enabled=false")
	}
	helm := filepath.Join(w.c.Dir, "admin", "helm")
	w.admin(t, time.Minute, helm, args...)
	if w.inCluster() {
		w.relaysLog(t)
		w.admin(t, time.Minute, helm, "upgrade", "edgemesh", filepath.Join(root, "manifests/edgemesh"), "-n", "kube-system", "--reset-then-reuse-values",
			"--set-json", `podNetwork.relays=["`+strings.Join(w.relays, `","`)+`"]`)
	}
}

func (w *way) byScript(t *testing.T) {
	t.Helper()
	args := []string{"--pod-cidr", "10.244.0.0/16", "--api-server", cluster.APIServer + ":" + cluster.APIPort}
	if p := w.Way[ways.Platform]; p != ways.Plain {
		args = append(args, "--platform", p)
	}
	if w.inCluster() {
		args = append(args, "--relay-node", w.relayNode)
	}
	if w.controllers == "" {
		args = append(args, "--set", "controller.enabled=false")
	}
	w.admin(t, 5*time.Minute, filepath.Join(root, "manifests/first-steps.sh"), args...)
	w.relays = relayAddresses(t, w.c)
}

// relayAddress is one as a relay prints it.
var relayAddress = regexp.MustCompile(`(?m)/ip4/5\.5\.5\.[0-9./a-z-]+/p2p/12D3KooW\w+`)

// relaysLog has the addresses that the relay's pod in the cluster prints, as the pages and the chart's notes say.
func (w *way) relaysLog(t *testing.T) {
	t.Helper()
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		name, err := w.c.Kubectl(ctx, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/component=relay",
			"-o", `jsonpath={.items[?(@.metadata.ownerReferences[0].kind=="ReplicaSet")].metadata.name}`)
		if err == nil {
			var log string
			log, err = w.c.Kubectl(ctx, "-n", "kube-system", "logs", name)
			w.relays = relayAddress.FindAllString(log, -1)
		}
		if len(w.relays) == 0 {
			err = errors.Join(err, errors.New("the relay's pod has printed no address"))
		}
		return err
	})
}

// relayOutside installs a relay that is no part of the cluster, which pins the controllers' key, or without a controller reads the API, and
// gives the cluster its addresses.
func (w *way) relayOutside(t *testing.T) {
	t.Helper()
	plugin := kubectlPlugin(t)
	var signer string
	kubeconfig := filepath.Join(w.c.Dir, "relay.kubeconfig")
	if w.controllers != "" {
		eventually(t, 2*time.Minute, func(ctx context.Context) error {
			out, err := w.c.AdminCommand(ctx, plugin, "relay", "add").CombinedOutput()
			if signer = strings.TrimPrefix(regexp.MustCompile(`--signer \w+`).FindString(string(out)), "--signer "); signer == "" {
				err = fmt.Errorf("kubectl edgemesh relay add: %w: %s", err, out)
			}
			return err
		})
	} else {
		text, err := w.c.AdminCommand(t.Context(), filepath.Join(root, "manifests/relay-kubeconfig.sh"), "https://"+cluster.APIServer+":"+cluster.APIPort).Output()
		ok(t, err)
		ok(t, os.WriteFile(kubeconfig, text, 0o600))
	}
	if w.Way[ways.Relay] == ways.Unit {
		args := []string{"install", "--signer", signer}
		if signer == "" {
			args = []string{"install", "--kubeconfig", kubeconfig}
		}
		w.relays = relayAddress.FindAllString(relayByInstall(t, w.c, args...), -1)
	} else {
		config := "signers: [" + signer + "]"
		if signer == "" {
			config = "membership: {kubernetes: {kubeconfig: /etc/edgemesh/relay.kubeconfig}}"
		}
		w.relays = w.relayContainer(t, config, kubeconfig)
	}
	slices.Sort(w.relays)
	w.relays = slices.Compact(w.relays)
	// The relay is there, an agent that proves it perhaps not yet.
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		text, err := w.c.AdminCommand(ctx, plugin, append([]string{"relay", "add"}, w.relays...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kubectl edgemesh relay add: %w: %s", err, text)
		}
		if line := regexp.MustCompile(`helm upgrade .*`).FindString(string(text)); line != "" { // helm has the PodNetwork
			line = strings.Replace(line, " CHART ", " "+filepath.Join(root, "manifests/edgemesh")+" ", 1)
			if text, err := w.c.AdminCommand(ctx, "sh", "-c", line).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, text)
			}
		}
		return nil
	})
}

// relayContainer runs the pages' container on a host outside of the cluster, and returns the relay's addresses.
func (w *way) relayContainer(t *testing.T, config, kubeconfig string) []string {
	t.Helper()
	const host = cluster.SecondCloud
	ok(t, w.c.Import(t.Context(), host, "edgemesh-relay"))
	guide, err := os.ReadFile(filepath.Join(root, "docs/relay.md"))
	ok(t, err)
	command, prepare := regexp.MustCompile(`(?m)^ctr -n k8s.io run -d (.*\\\n)+.*$`).FindString(string(guide)), "install -d -m 700 -o 65532 -g 65532 /var/lib/edgemesh-relay\n"
	if command == "" || !strings.Contains(string(guide), prepare) {
		t.Fatal("the guide has no command for ctr, or does not say whose the state directory has to be")
	}
	relay, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-relay"))
	ok(t, err)
	id, err := w.c.On(t.Context(), host, "sh", "-ec", `mkdir -p /etc/edgemesh; echo "$1" >/etc/edgemesh/relay.yaml
		[ ! -e "$2" ] || install -m 600 -o 65532 "$2" /etc/edgemesh/relay.kubeconfig
		`+prepare+relay+` id --state-dir /var/lib/edgemesh-relay; chown -R 65532:65532 /var/lib/edgemesh-relay
		{ `+command+"\n} >&2", "sh", config, kubeconfig)
	ok(t, err)
	at := "/ip4/" + cluster.SecondCloudIP
	return []string{at + "/tcp/4470/p2p/" + strings.TrimSpace(id), at + "/udp/4470/quic-v1/p2p/" + strings.TrimSpace(id)}
}

// asPlanned wants each part where the way has it: every member's reservation at the relay, the controllers, the agents' forms.
func (w *way) asPlanned(ctx context.Context) error {
	if len(w.relays) == 0 {
		return errors.New("the PodNetwork has no relay")
	}
	var errs []error
	for _, n := range w.nodes {
		at, err := relays(ctx, w.c, n)
		if err == nil && (!at[idOf(w.relays[0])] || len(at) != 1) {
			err = fmt.Errorf("%s has reservations at %v, want one at %s", n, at, w.relays[0])
		}
		errs = append(errs, err)
	}
	found, err := pods(ctx, w.c, "kube-system", "app.kubernetes.io/component=controller")
	errs = append(errs, err)
	if (len(found) == 0) != (w.controllers == "") || slices.ContainsFunc(found, func(p pod) bool { return p.node != w.controllers }) {
		errs = append(errs, fmt.Errorf("ready pods of the controller: %v, want them on %q", found, w.controllers))
	}
	if w.inCluster() {
		found, err := pods(ctx, w.c, "kube-system", "app.kubernetes.io/component=relay")
		if err == nil && (len(found) != 1 || found[0].node != w.relayNode) {
			err = fmt.Errorf("the relay's pods: %v, want one on %s", found, w.relayNode)
		}
		errs = append(errs, err)
	}
	component := "agent"
	if w.Way[ways.Platform] == ways.KubeEdge {
		component = "edge-agent"
	}
	errs = append(errs, podRuns(ctx, w.c, daemonSetNode, component), podRuns(ctx, w.c, staticNode, "static-agent"),
		unitSays(ctx, w.c, unitNode, "agent is running"))
	for _, n := range []string{staticNode, unitNode} {
		if podRuns(ctx, w.c, n, component) == nil {
			errs = append(errs, fmt.Errorf("%s has the DaemonSet's pod, too", n))
		}
	}
	return errors.Join(errs...)
}
