package kubeapi_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// 200 members come and go, twice: the agent keeps nothing of them, and says so by
// heap and goroutines; what it hears is measured. Not parallel: those are the whole process's.
func TestCrowd(t *testing.T) {
	const crowd = 200
	c := emptyCluster(t)
	network(t, c, nil)
	g := newGate(t, c)
	must(t, c.CreateNode("edge", "10.244.255.0/24"))
	edge := certAgent(t, c, "edge", g.URL)
	edge.cfg.Log = nil
	edge.start()
	ids := make([]string, crowd)
	for i := range ids {
		ids[i] = newPeerID(t)
	}
	round := func() {
		for i, id := range ids {
			must(t, c.CreateMember(fmt.Sprintf("crowd-%d", i), id, fmt.Sprintf("10.244.%d.0/24", i)))
		}
		fair.Eventually(t, patience, "all have come", fair.True(func() bool { return strings.Count(edge.members(), "crowd-") == crowd }))
		for i := range ids {
			must(t, c.Delete("/api/v1/nodes/"+fmt.Sprintf("crowd-%d", i)),
				c.Delete(kubeapi.Group+"meshnodes/"+fmt.Sprintf("crowd-%d", i)))
		}
		edge.sees("edge=10.244.255.0/24")
	}
	memory := func() (heap uint64, goroutines int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	round() // warms up pools and connections
	heap, goroutines := memory()
	before, states := g.Received(), edge.seen()
	round()
	heapAfter, goroutinesAfter := memory()
	t.Logf("%d members came and went: %d bytes each, %d States; heap %d → %d KiB, goroutines %d → %d",
		crowd, (g.Received()-before)/crowd, edge.seen()-states, heap>>10, heapAfter>>10, goroutines, goroutinesAfter)
	if heapAfter > heap+1<<20 {
		t.Errorf("heap grew from %d to %d KiB", heap>>10, heapAfter>>10)
	}
	if goroutinesAfter > goroutines+2 {
		t.Errorf("goroutines grew from %d to %d", goroutines, goroutinesAfter)
	}
	// In a quiet cluster nothing is said.
	before = g.Received()
	time.Sleep(3 * time.Second)               // sleep: nothing is said meanwhile
	if n := g.Received() - before; n > 8000 { // bookmarks at most
		t.Errorf("%d bytes in 3 s in which nothing happened", n)
	}
}

// A relay reads with its own token, and keeps no goroutine when it ends. Not parallel: it counts the process's.
func TestReadOnly(t *testing.T) {
	c := emptyCluster(t)
	network(t, c, nil)
	token := filepath.Join(c.Dir, "relay.token")
	must(t, c.CreateMember("a", newPeerID(t), "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"),
		c.RelayToken(token), c.TokenKubeconfig("relay.conf", token, c.URL))
	ignore := goleak.IgnoreCurrent() // the administrator's connections among them
	relay := newAgent(t, "", filepath.Join(c.Dir, "relay.conf"))
	relay.cfg.ReadOnly, relay.cfg.PeerID = true, ""
	relay.start()
	relay.sees("a=10.244.1.0/24 b=10.244.2.0/24")
	must(t, c.Delete("/api/v1/nodes/a"))
	relay.sees("b=10.244.2.0/24")
	relay.stop()
	must(t, c.CreateMember("c", newPeerID(t), "10.244.3.0/24"), c.Delete("/api/v1/nodes/b"))
	relay.start() // removals that happened meanwhile are proved
	relay.sees("c=10.244.3.0/24")
	relay.stop()
	goleak.VerifyNone(t, ignore)
	if err := c.Do(http.MethodGet, kubeapi.Group+"meshnodes/relay", nil, nil); err == nil {
		t.Error("a relay made a MeshNode")
	}
}
