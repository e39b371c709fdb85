package kubeapi_test

import (
	"net/http"
	"testing"
	"time"

	"edgemesh/test/kubeapi"
)

// An agent behind each cache: it joins, survives being cut off and restarted with
// answers that are empty or old, and in the end believes what is true.
func TestEdgeCaches(t *testing.T) {
	t.Parallel()
	for _, habits := range []kubeapi.Habits{kubeapi.MetaServer, kubeapi.YurtHub} {
		t.Run(string(habits), func(t *testing.T) {
			t.Parallel()
			c := emptyCluster(t)
			network(t, c, nil)
			must(t, c.CreateNode("edge"), c.CreateMember("stays", newPeerID(t), "10.244.8.0/24"),
				c.CreateMember("goes", newPeerID(t), "10.244.9.0/24"))
			cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
			must(t, err)
			cache, err := c.NewEdgeCache(habits, cert)
			must(t, err)
			t.Cleanup(cache.Close)
			edge := newAgent(t, "edge", "")
			edge.cfg.Server = cache.URL
			edge.start()
			must(t, c.CreateMember("late", newPeerID(t), "10.244.6.0/24")) // in no list so far
			all := "edge=10.244.0.0/24 goes=10.244.9.0/24 late=10.244.6.0/24 stays=10.244.8.0/24"
			edge.sees(all)

			// Cut off: the watches go silent; a restart finds a store for an API.
			cache.SetOnline(false)
			edge.stop()
			must(t, c.Delete("/api/v1/nodes/goes"), c.Delete(kubeapi.Group+"meshnodes/goes"),
				c.Delete("/api/v1/nodes/late"))
			edge.start()
			time.Sleep(3 * time.Second) // sleep: lists, and writes that are lies
			if got := edge.members(); got != all || edge.blip("goes") || edge.blip("late") {
				t.Fatalf("offline: %s, want %s", got, all)
			}
			// Back: what was deleted is proved to be, though the cache still replays it.
			cache.SetOnline(true)
			edge.sees("edge=10.244.0.0/24 stays=10.244.8.0/24")
			must(t, c.CreateMember("new", newPeerID(t), "10.244.7.0/24"))
			edge.sees("edge=10.244.0.0/24 new=10.244.7.0/24 stays=10.244.8.0/24")
			must(t, c.Delete("/api/v1/nodes/new"), c.Delete(kubeapi.Group+"meshnodes/new")) // the second is the garbage collector's part
			edge.sees("edge=10.244.0.0/24 stays=10.244.8.0/24")
			cache.Close()
			if n := cache.Watched["/api/v1/nodes"]; n > 0 || cache.Watched[kubeapi.Group+"meshnodes"] == 0 {
				t.Errorf("watches %v: of Nodes they cut edges of KubeEdge off", cache.Watched)
			}
		})
	}
}

// A first start behind a YurtHub that has no uplink: what it acknowledges is not
// believed, and the node joins when the uplink is there.
func TestJoinThroughLies(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("edge"))
	cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
	must(t, err)
	cache, err := c.NewEdgeCache(kubeapi.YurtHub, cert)
	must(t, err)
	t.Cleanup(cache.Close)
	first := newAgent(t, "edge", "")
	first.cfg.Server = cache.URL
	first.waits("it is registered, and the cache has the lists", func() bool { // the allocator has some seconds for the block
		return c.Do(http.MethodGet, kubeapi.Group+"meshnodes/edge", nil, nil) == nil
	})
	must(t, c.Delete(kubeapi.Group+"meshnodes/edge"))
	cache.SetOnline(false)
	edge := newAgent(t, "edge", "")
	edge.cfg.Server = cache.URL
	edge.waits("a write was acknowledged that was not made", func() bool { return cache.Lies() > 0 })
	if got := podBlocks(t, c); len(got) != 0 {
		t.Fatalf("blocks %v", got)
	}
	cache.SetOnline(true)
	edge.start()
	edge.sees("edge=10.244.0.0/24")
}
