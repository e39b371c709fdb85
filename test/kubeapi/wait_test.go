package kubeapi_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// counted notes when a deputy is asked.
type counted struct {
	kube.Deputy

	mu sync.Mutex
	at []time.Time
}

// Write implements kube.Deputy.
func (d *counted) Write(ctx context.Context, relays []mesh.Relay, controllers []mesh.PeerID, method, path string, body []byte) (int, []byte, error) {
	d.mu.Lock()
	d.at = append(d.at, time.Now())
	d.mu.Unlock()
	return d.Deputy.Write(ctx, relays, controllers, method, path, body)
}

// pauses are those between two requests.
func (d *counted) pauses() (out []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.at[min(1, len(d.at)):] {
		out = append(out, d.at[i+1].Sub(d.at[i]))
	}
	return out
}

// Edges come while no controller runs: they wait, and say for what; they ask again and again, at growing intervals; and
// they are in within seconds of a controller's return. Nobody has to do anything on them.
func TestEdgesWaitForController(t *testing.T) {
	t.Parallel() // it mostly waits
	var s *controllers
	c, relay, controller := enrolling(t, func(c *kubeapi.Cluster) {
		s = startControllers(t, c)
		s.more = []string{"--enroll"}
		s.start("one")
	})
	s.kill("one")
	must(t, c.ServiceAccountCertificate("kubeedge", "cloudcore"))
	cache, err := c.NewEdgeCache(kubeapi.MetaServer, "cloudcore")
	must(t, err)
	t.Cleanup(cache.Close)

	const edges = 3
	type edge struct {
		*agent
		asked *counted
		log   *journal
		in    chan error // the outcome of its start
		ended chan struct{}
	}
	var all []edge
	for i := range edges {
		name := fmt.Sprintf("edge-%d", i)
		must(t, c.CreateNode(name, fmt.Sprintf("10.244.%d.0/24", i)))
		key, self := keytest.New(t)
		e := edge{newAgent(t, name, ""), &counted{Deputy: deputyOf(t, c, name, key)}, nil, make(chan error, 1), make(chan struct{})}
		e.cfg.Server, e.cfg.PeerID, e.cfg.Deputy, e.log = cache.URL, mesh.PeerID(self.String()), e.asked, e.listens()
		all = append(all, e)
	}
	for _, e := range all {
		go func() {
			defer close(e.ended)
			e.in <- e.tryStart(4 * time.Minute)
		}()
		t.Cleanup(func() { <-e.ended; e.stop() })
	}
	for _, e := range all {
		fair.Eventually(t, patience, e.cfg.NodeName+" asks again and again, at growing intervals", func() error {
			if p := e.asked.pauses(); len(p) < 5 || slices.Max(p) < 2*time.Second {
				return fmt.Errorf("intervals of %v", p)
			}
			return nil
		})
		if text := e.log.String(); !strings.Contains(text, "no controller could be reached") || !strings.Contains(text, "controller "+string(controller)+" by relay "+string(relay.PeerID)) {
			t.Errorf("%s does not say for what it waits:\n%s", e.cfg.NodeName, text)
		}
		if err := c.Do(http.MethodGet, meshNodesPath+"/"+e.cfg.NodeName, nil, nil); err == nil {
			t.Errorf("%s is registered: who did that?", e.cfg.NodeName)
		}
	}

	s.start("two")
	s.leader("one")
	began := time.Now()
	soon, cancel := fair.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, e := range all {
		select {
		case err := <-e.in:
			must(t, err)
		case <-soon.Done():
			t.Fatalf("%s waits though a controller has been there for %v: it asked at intervals of %v", e.cfg.NodeName, time.Since(began), e.asked.pauses())
		}
	}
	t.Logf("%d edges are in %v after a controller leads again", edges, time.Since(began).Round(time.Second/10))
	all[0].sees("edge-0=10.244.0.0/24 edge-1=10.244.1.0/24 edge-2=10.244.2.0/24")
}
