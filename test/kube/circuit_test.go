package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// relays are the peer IDs of an agent's relays; the value says that it holds a reservation.
func relays(ctx context.Context, c *cluster.Cluster, node string) (map[string]bool, error) {
	out, err := c.On(ctx, node, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status")
	var status struct {
		Relays []struct {
			PeerID              string
			Connected, Reserved bool
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &status)
	}
	found := map[string]bool{}
	for _, r := range status.Relays {
		found[r.PeerID] = r.Connected && r.Reserved
	}
	return found, err
}

// reservedAt wants every agent to hold reservations at exactly these relays.
func reservedAt(ctx context.Context, c *cluster.Cluster, ids ...string) error {
	for _, n := range cluster.FirstNodes() {
		at, err := relays(ctx, c, n)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if !at[id] || len(at) != len(ids) {
				return fmt.Errorf("%s has reservations at %v, want them at %v", n, at, ids)
			}
		}
	}
	return nil
}

// relayAddresses are those in the PodNetwork.
func relayAddresses(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	var network struct{ Spec struct{ Relays []string } }
	ok(t, c.API().Get(t.Context(), meshAPI+"podnetworks/cluster", &network))
	return network.Spec.Relays
}

// idOf is the peer ID at the end of a relay's address.
func idOf(address string) string { return address[strings.LastIndex(address, "/")+1:] }

// A relay as Deployment on the public node, set up by the guide's script: all agents
// hold reservations at it, and it does the work when the one outside of the cluster is
// lost; a pod that replaces it is the same relay.
func TestRelayInCluster(t *testing.T) {
	c, _ := installed(t)
	rollout(t, time.Minute)
	web := waitPods(t, "app=web", 4, time.Minute)
	outside := relayAddresses(t, c)
	ok(t, c.Import(t.Context(), "cloud", "edgemesh-relay"))
	lost := false
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := c.Kubectl(ctx, "delete", "-f", filepath.Join(root, "manifests/edgemesh-relay.yaml"))
		_, labelErr := c.Kubectl(ctx, "label", "node", "cloud", "network.edgemesh.io/relay-", "node-restriction.kubernetes.io/edgemesh-relay-")
		networkErr := c.API().Do(ctx, http.MethodPatch, meshAPI+"podnetworks/cluster",
			map[string]any{"spec": map[string]any{"relays": outside}}, nil)
		if err := errors.Join(err, labelErr, networkErr); err != nil {
			t.Error(err)
		}
	})

	start := time.Now()
	out, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/first-steps.sh"),
		"--pod-cidr", "10.244.0.0/16", "--api-server", cluster.APIServer+":"+cluster.APIPort, "--relay-node", "cloud").CombinedOutput()
	if err != nil {
		t.Fatalf("first-steps.sh: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "rollout restart") {
		t.Errorf("first-steps.sh wants a restart, though the API server's address is as before:\n%s", out)
	}
	all := relayAddresses(t, c)
	added := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return slices.Contains(outside, a) })
	if len(added) < 2 || !strings.HasPrefix(added[0], "/ip4/"+cluster.APIServer+"/") ||
		len(all) != len(outside)+len(added) {
		t.Fatalf("relays %v, were %v: want TCP and QUIC of the cloud node as well", all, outside)
	}
	first, second := idOf(outside[0]), idOf(added[0])
	eventually(t, time.Minute, func(ctx context.Context) error { return reservedAt(ctx, c, first, second) })
	reserved := time.Since(start)

	// The other one is lost, and an agent starts that knows no way to anybody.
	stopRelay(t, c)
	lost = true
	t.Cleanup(func() {
		if lost {
			startRelay(t, c)
		}
	})
	ok(t, c.KillAgent(t.Context(), "edge-b1"))
	eventually(t, time.Minute, func(ctx context.Context) error { return agentRuns(ctx, c, "edge-b1") })
	start = time.Now()
	eventually(t, time.Minute, func(ctx context.Context) error { return allPairs(ctx, c, web) })
	carried := time.Since(start)
	metrics, err := c.On(t.Context(), "cloud", "curl", "-sSfm5", "http://127.0.0.1:9470/metrics")
	ok(t, err)
	if !strings.Contains(metrics, "\nedgemesh_relay_members 4\n") ||
		!strings.Contains(metrics, "\nedgemesh_relay_reservations 4\n") {
		t.Errorf("the relay's metrics have not 4 members and 4 reservations:\n%s", metrics)
	}

	// Its key is on the node.
	kubectl(t, "-n", "kube-system", "rollout", "restart", "deployment/edgemesh-relay")
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/edgemesh-relay", "--timeout=55s")
	logs := kubectl(t, "-n", "kube-system", "logs", "deployment/edgemesh-relay")
	if !strings.Contains(logs, added[0]) {
		t.Errorf("the relay's new pod prints other addresses than %s:\n%s", added[0], logs)
	}
	startRelay(t, c)
	lost = false
	eventually(t, time.Minute, func(ctx context.Context) error { return reservedAt(ctx, c, first, second) })
	ok(t, allPairs(t.Context(), c, web))
	figure(t,
		"relay as Deployment, by first-steps.sh --relay-node: all agents hold reservations %s after its start; with it alone an agent killed and started again reaches all pods after %s",
		seconds(reserved), seconds(carried))
}

// The relay's image as a container of nobody's but the operator's: the guide's command,
// with a kubeconfig that can only read.
func TestRelayAsContainer(t *testing.T) {
	c, _ := installed(t)
	ok(t, c.Import(t.Context(), "cloud", "edgemesh-relay"))
	guide, err := os.ReadFile(filepath.Join(root, "docs/relay.md"))
	ok(t, err)
	command := regexp.MustCompile(`(?m)^ctr -n k8s.io run -d (.*\\\n)+.*$`).FindString(string(guide))
	if command == "" {
		t.Fatal("the guide has no command for ctr")
	}
	kubeconfig, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/relay-kubeconfig.sh"),
		"https://"+cluster.APIServer+":"+cluster.APIPort).Output()
	ok(t, err)
	metrics := func(ctx context.Context) (string, error) {
		return c.On(ctx, "cloud", "curl", "-sSfm5", "http://127.0.0.1:9470/metrics")
	}
	// The Deployment's pod of an earlier test ends in its own time, and has the same ports.
	eventually(t, time.Minute, func(ctx context.Context) error {
		if _, err := metrics(ctx); err == nil {
			return errors.New("another relay runs on the cloud node")
		}
		return nil
	})
	t.Cleanup(func() {
		_, err := c.On(context.WithoutCancel(t.Context()), "cloud", "sh", "-c", `ctr -n k8s.io task kill -s SIGTERM edgemesh-relay
			until ctr -n k8s.io task rm edgemesh-relay; do sleep 0.2; done; ctr -n k8s.io container rm edgemesh-relay; rm -r /var/lib/edgemesh-relay /etc/edgemesh`)
		if err != nil {
			t.Error(err)
		}
	})
	prepare := regexp.MustCompile(`(?m)^install -d .*\nchown .*$`).FindString(string(guide))
	if prepare == "" {
		t.Fatal("the guide does not say whose the state directory has to be")
	}
	_, err = c.On(t.Context(), "cloud", "sh", "-ec", `mkdir -p /etc/edgemesh; (umask 077; echo "$1" > /etc/edgemesh/relay.kubeconfig)
		`+prepare+`
		echo 'membership: {kubernetes: {kubeconfig: /etc/edgemesh/relay.kubeconfig}}' > /etc/edgemesh/relay.yaml
		`+command, "sh", string(kubeconfig))
	ok(t, err)
	took := eventually(t, time.Minute, func(ctx context.Context) error {
		text, err := metrics(ctx)
		if err == nil && !strings.Contains(text, "\nedgemesh_relay_members 4\n") {
			err = errors.New("the relay does not know 4 members")
		}
		return err
	})
	tasks, err := c.On(t.Context(), "cloud", "ctr", "-n", "k8s.io", "tasks", "ls")
	ok(t, err)
	if !regexp.MustCompile(`(?m)^edgemesh-relay\s+\d+\s+RUNNING`).MatchString(tasks) {
		t.Errorf("the container does not run:\n%s", tasks)
	}
	figure(t, "relay as a container, by the guide's command: knows the members after %s", seconds(took))
}
