package kubeapi_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

func newGate(t *testing.T, c *kubeapi.Cluster) *kubeapi.Gate {
	t.Helper()
	g, err := kubeapi.NewGate(c.URL)
	must(t, err)
	t.Cleanup(g.Close)
	return g
}

// The uplink goes, the agent restarts without it, members come and go meanwhile,
// and the API compacts its history before the uplink returns.
func TestOffline(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	g := newGate(t, c)
	must(t, c.CreateNode("edge", "10.244.1.0/24"), c.CreateMember("stays", newPeerID(t), "10.244.2.0/24"),
		c.CreateMember("goes", newPeerID(t), "10.244.3.0/24"))
	edge := certAgent(t, c, "edge", g.URL)
	edge.start()
	all := "edge=10.244.1.0/24 goes=10.244.3.0/24 stays=10.244.2.0/24"
	edge.sees(all)

	g.Shut()
	fair.Eventually(t, patience, "the outage is reported", fair.True(func() bool { return edge.told("") }))
	edge.stop()
	clock := fair.Start()
	defer clock.Stop()
	edge.start()
	if d := clock.Elapsed(); d > time.Second {
		t.Errorf("an offline start took %v", d)
	}
	if edge.members() != all {
		t.Errorf("offline: %s, want %s", edge.members(), all)
	}

	must(t, c.Delete("/api/v1/nodes/goes"), c.Delete(kubeapi.Group+"meshnodes/goes"),
		c.CreateMember("comes", newPeerID(t), "10.244.4.0/24"))
	g.Open()
	edge.sees("comes=10.244.4.0/24 edge=10.244.1.0/24 stays=10.244.2.0/24")

	if kubeapi.Kine() {
		t.Log("NOT TRIED: 410 Gone; kine's history cannot be compacted by hand")
		return
	}
	// Running through an outage that ends in 410 Gone.
	g.Shut()
	must(t, c.Delete("/api/v1/nodes/stays"), c.CreateMember("later", newPeerID(t), "10.244.5.0/24"))
	c.StopAPI()
	must(t, c.Compact(), c.StartAPI())
	if edge.members() != "comes=10.244.4.0/24 edge=10.244.1.0/24 stays=10.244.2.0/24" {
		t.Errorf("offline: %s", edge.members())
	}
	g.Open()
	edge.sees("comes=10.244.4.0/24 edge=10.244.1.0/24 later=10.244.5.0/24")
}

// A token that expired while nobody renewed it, and the one that follows.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	g := newGate(t, c)
	must(t, c.CreateNode("edge", "10.244.1.0/24"))
	edge := tokenAgent(t, c, "edge", g.URL)
	edge.start()
	token := filepath.Join(c.Dir, "edge.token")
	good, err := os.ReadFile(token)
	must(t, err)
	// As good as expired: the API server answers 401. It accepts no token of less
	// than ten minutes.
	must(t, os.WriteFile(token, append(good[:len(good)-8], "AAAAAAAA"...), 0o600))
	edge.stop()
	edge.start()
	fair.Eventually(t, patience, "401 is reported", fair.True(func() bool { return edge.told("Unauthorized") }))
	edge.sees("edge=10.244.1.0/24")
	must(t, c.AgentToken("edge", token, 3600), c.CreateMember("new", newPeerID(t), "10.244.2.0/24"))
	edge.sees("edge=10.244.1.0/24 new=10.244.2.0/24")
}

// A node whose clock is behind: its certificate is not valid yet, as both sides see
// it. It runs from the snapshot and converges when the clock is right.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("edge", "10.244.1.0/24"))
	edge := certAgent(t, c, "edge", c.URL)
	edge.start()
	edge.stop()
	cert, err := c.NodeCertificate("edge", time.Now().Add(12*time.Second))
	must(t, err, c.Kubeconfig("edge.conf", cert, c.URL), c.CreateMember("new", newPeerID(t), "10.244.2.0/24"))
	edge.start()
	if edge.members() != "edge=10.244.1.0/24" {
		t.Errorf("before the clock was right: %s", edge.members())
	}
	fair.Eventually(t, patience, "401 is reported", fair.True(func() bool { return edge.told("Unauthorized") }))
	edge.sees("edge=10.244.1.0/24 new=10.244.2.0/24")
}

// etcd loses everything under a running API server; then an administrator installs again.
func TestWipedEtcd(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b"),
		c.CreateMember("away", newPeerID(t), "10.244.3.0/24"))
	a, b := certAgent(t, c, "a", c.URL), certAgent(t, c, "b", c.URL)
	a.start()
	b.start()
	all := "a=10.244.1.0/24 away=10.244.3.0/24 b=10.244.0.0/24"
	a.sees(all)
	b.sees(all)
	before := a.seen()

	c.StopEtcd()
	must(t, c.WipeEtcd(), c.StartEtcd())
	time.Sleep(2 * time.Second) // sleep: the API server notices, if it does
	c.StopAPI()
	must(t, c.StartAPI())
	time.Sleep(time.Second) // sleep: agents see it without lists
	b.stop()                // also over a restart
	b.start()
	must(t, c.Install())        // the lists are there again, and empty
	time.Sleep(2 * time.Second) // sleep: agents see empty lists
	if got := a.members(); got != all || a.seen() != before {
		t.Fatalf("a tore its network down: %s after %d states, had %d", got, a.seen(), before)
	}

	// Kubelets register again, and the administrator applies what there was; other
	// blocks are given out.
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b"))
	fair.Eventually(t, patience, "both are registered again", fair.True(func() bool {
		return c.Do(http.MethodGet, kubeapi.Group+"meshnodes/a", nil, nil) == nil &&
			c.Do(http.MethodGet, kubeapi.Group+"meshnodes/b", nil, nil) == nil &&
			c.Do(http.MethodGet, kubeapi.Group+"podblocks/10-244-0-0-24", nil, nil) == nil
	}))
	must(t, c.CreateMember("new", newPeerID(t), "10.244.9.0/24"))
	a.sees(all + " new=10.244.9.0/24")
	b.sees(all + " new=10.244.9.0/24")
	if a.blip("b") || b.blip("a") {
		t.Error("a member left for a moment")
	}
	// In the new history removals are believed; who was never in it, has to be forgotten.
	must(t, c.Delete("/api/v1/nodes/new"))
	a.sees(all)
	a.stop()
	a.start()
	a.sees(all)
	must(t, c.Patch(kubeapi.Group+"podnetworks/cluster",
		map[string]any{"metadata": map[string]any{"annotations": map[string]string{api.ForgetAnnotation: "away"}}}))
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24")
	b.sees("a=10.244.1.0/24 b=10.244.0.0/24")
}

// etcd is restored from a backup that is older than some members.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	a := certAgent(t, c, "a", c.URL)
	a.start()
	c.StopAPI()
	c.StopEtcd()
	must(t, c.BackupEtcd("backup"), c.StartEtcd(), c.StartAPI())
	must(t, c.CreateNode("b", "10.244.2.0/24"))
	b := certAgent(t, c, "b", c.URL)
	b.start()
	both := "a=10.244.1.0/24 b=10.244.2.0/24"
	a.sees(both)
	for i := range 20 { // so that the version goes back for sure
		must(t, c.CreateMeshNode("x"+string(rune('a'+i)), newPeerID(t)))
	}
	c.StopAPI()
	c.StopEtcd()
	must(t, c.RestoreEtcd("backup"), c.StartEtcd(), c.StartAPI())
	must(t, c.CreateNode("c", "10.244.5.0/24"), c.CreateMeshNode("c", newPeerID(t)))
	a.sees(both + " c=10.244.5.0/24")
	if a.blip("b") {
		t.Error("b left, though only the backup does not know it")
	}
	must(t, c.CreateNode("b", "10.244.2.0/24"))
	fair.Eventually(t, patience, "b is registered again", fair.True(
		func() bool { return c.Do(http.MethodGet, kubeapi.Group+"meshnodes/b", nil, nil) == nil }))

	must(t, c.Delete("/api/v1/nodes/c"))
	a.sees(both)
	b.sees(both)
}
