package kubeapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/controller"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// sight is shorter than a product's, whose figures agent/controller tests.
var sight = controller.Sight{Every: time.Second / 2, Unseen: 5 * time.Second}

// impatient runs a controller with that sight, and the rights that the chart gives it.
func impatient(t *testing.T, c *kubeapi.Cluster, enroll bool) {
	t.Helper()
	token := filepath.Join(c.Dir, "controller-token")
	must(t, c.ServiceAccountToken("edgemesh-controller", token), c.TokenKubeconfig("controller.conf", token, c.URL))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- controller.Run(ctx, controller.Config{Kubeconfig: filepath.Join(c.Dir, "controller.conf"), Namespace: kubeapi.Namespace,
			Identity: "one", Enroll: enroll, Sight: sight, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}()
	t.Cleanup(func() { cancel(); must(t, <-done) })
}

// ready waits until the MeshNode's condition Ready is that, and returns the MeshNode.
func ready(t *testing.T, c *kubeapi.Cluster, node, want string, within time.Duration) (m api.MeshNode) {
	t.Helper()
	fair.Eventually(t, within, node+" is Ready="+want, func() error {
		m = meshNode(t, c, node)
		cond := api.FindCondition(m.Status.Conditions, "Ready")
		if cond == nil || cond.Status != want {
			return fmt.Errorf("%+v", cond)
		}
		return nil
	})
	return m
}

// online is a host with a node's key that is connected to a relay, as its agent's would be.
func online(t *testing.T, key crypto.PrivKey, relay mesh.Relay) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.DisableMetrics())
	must(t, err)
	t.Cleanup(func() { _ = h.Close() }) // the test may have closed it
	addr, err := ma.NewMultiaddr(relay.Addrs[0])
	must(t, err)
	id, err := peer.Decode(string(relay.PeerID))
	must(t, err, h.Connect(t.Context(), peer.AddrInfo{ID: id, Addrs: []ma.Multiaddr{addr}}))
	return h
}

// A node that no relay sees is Ready=Unknown, which is written once; others stay as they are, and when it is back
// it says so itself.
func TestUnseen(t *testing.T) {
	t.Parallel() // it mostly waits
	c, relay, _ := enrolling(t, func(c *kubeapi.Cluster) { impatient(t, c, true) })
	agents, hosts, keys := map[string]*agent{}, map[string]host.Host{}, map[string]crypto.PrivKey{}
	for i, node := range []string{"gone", "stays"} {
		must(t, c.CreateNode(node, fmt.Sprintf("10.244.%d.0/24", i+1)))
		key, self := keytest.New(t)
		a := certAgent(t, c, node, c.URL)
		a.cfg.PeerID = mesh.PeerID(self.String())
		a.start()
		agents[node], hosts[node], keys[node] = a, online(t, key, relay), key
	}
	before := ready(t, c, "stays", "True", patience)
	ready(t, c, "gone", "True", patience)
	time.Sleep(sight.Unseen + 5*sight.Every) // sleep: both are seen for longer than one may be unseen
	agents["gone"].stop()
	must(t, hosts["gone"].Close())
	began := time.Now()
	unknown := ready(t, c, "gone", "Unknown", patience)
	took := time.Since(began)
	t.Logf("Unknown after %v", took.Round(time.Second/10))
	if took < sight.Unseen {
		t.Errorf("Unknown after %v, want at least %v", took, sight.Unseen)
	}
	if cond := api.FindCondition(unknown.Status.Conditions, "BlockAllocated"); cond == nil || cond.Status != "True" {
		t.Errorf("the other condition: %+v", cond)
	}
	time.Sleep(sight.Unseen + 2*sight.Every) // sleep: nothing more is said
	if now := meshNode(t, c, "gone"); now.Meta.ResourceVersion != unknown.Meta.ResourceVersion {
		t.Errorf("it was written again: %+v", now)
	}
	if now := meshNode(t, c, "stays"); now.Meta.ResourceVersion != before.Meta.ResourceVersion {
		t.Errorf("a node that is seen was written: %+v", now)
	}
	hosts["gone"] = online(t, keys["gone"], relay)
	agents["gone"].start()
	ready(t, c, "gone", "True", patience)
}

// TestKubeletSilent: where no edges are enrolled, a node whose kubelet is silent is Ready=Unknown, until its agent says that it
// is back. Others stay as they are.
func TestKubeletSilent(t *testing.T) {
	t.Parallel() // it mostly waits
	c := emptyCluster(t)
	network(t, c, nil)
	kubelet := func(node, ready string) {
		must(t, c.Patch("/api/v1/nodes/"+node+"/status", map[string]any{"status": map[string]any{"conditions": []map[string]string{{"type": "Ready", "status": ready}}}}))
	}
	agents := map[string]*agent{}
	for i, node := range []string{"gone", "stays", "broken"} { // a kubelet that is not ready is heard
		must(t, c.CreateNode(node, fmt.Sprintf("10.244.%d.0/24", i+1)))
		kubelet(node, map[bool]string{true: "False", false: "True"}[node == "broken"])
		agents[node] = certAgent(t, c, node, c.URL)
		agents[node].start()
	}
	impatient(t, c, false)
	ready(t, c, "gone", "True", patience)
	before := map[string]api.MeshNode{"stays": ready(t, c, "stays", "True", patience), "broken": ready(t, c, "broken", "True", patience)}
	agents["gone"].stop()
	kubelet("gone", "Unknown")
	unknown := ready(t, c, "gone", "Unknown", patience)
	time.Sleep(sight.Unseen + 2*sight.Every) // sleep: nothing more is said
	if now := meshNode(t, c, "gone"); now.Meta.ResourceVersion != unknown.Meta.ResourceVersion {
		t.Errorf("it was written again: %+v", now)
	}
	for node, was := range before {
		if now := meshNode(t, c, node); now.Meta.ResourceVersion != was.Meta.ResourceVersion {
			t.Errorf("%s, whose kubelet is heard, was written: %+v", node, now)
		}
	}
	kubelet("gone", "True")
	agents["gone"].start()
	ready(t, c, "gone", "True", patience)
}
