package e2e

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// liveMap is a running `edgemesh-agent map`, and what a page has heard of it.
type liveMap struct {
	node   *lab.Node
	base   string // the page's address, without the token
	token  string
	stream *lab.Process
}

// mapEdge is a pair on the page.
type mapEdge struct {
	ID, Path string
	Forth    float64
	Back     float64
}

// mapNode is a node on the page.
type mapNode struct{ ID, Name, State, Why, Site string }

// newLiveMap starts a map on a node, and a page that listens to it.
func newLiveMap(t *testing.T, n *lab.Node) *liveMap {
	t.Helper()
	p, err := n.NS.Start("map-"+n.Name, n.AgentPath(), "map", "--listen", "127.0.0.1:9475", "--runtime-dir", n.Config.RuntimeDir)
	ok(t, err)
	m := &liveMap{node: n}
	await(t, 10*time.Second, "the map's address", func() bool {
		text, _ := os.ReadFile(p.Log)
		address := strings.TrimSpace(string(text))
		var found bool
		m.base, m.token, found = strings.Cut(address, "?token=")
		return found
	})
	m.stream, err = n.NS.Start("page-"+n.Name, "curl", "-sN", "-H", "Authorization: Bearer "+m.token, m.base+"events")
	ok(t, err)
	return m
}

// await waits for a condition, for so much fair time.
func await(t *testing.T, d time.Duration, what string, is func() bool) {
	t.Helper()
	product(t).Eventually(t, d, what, fair.True(is))
}

// now is what the page shows.
func (m *liveMap) now(t *testing.T) (nodes map[string]mapNode, edges map[string]mapEdge) {
	t.Helper()
	nodes, edges, _ = m.all(t)
	return nodes, edges
}

// all is the same, with the relays by their names.
func (m *liveMap) all(t *testing.T) (nodes map[string]mapNode, edges map[string]mapEdge, relays map[string]mapNode) {
	t.Helper()
	text, err := os.ReadFile(m.stream.Log)
	ok(t, err)
	nodes, edges, relays = map[string]mapNode{}, map[string]mapEdge{}, map[string]mapNode{}
	events := strings.SplitAfter(string(text), "\n\n")
	for _, e := range events {
		e, whole := strings.CutSuffix(e, "\n\n")
		data, found := strings.CutPrefix(e, "data: ")
		if !whole || !found {
			continue
		}
		var news struct {
			Nodes  []mapNode
			Edges  []mapEdge
			Relays []mapNode
			Gone   struct{ Nodes, Edges []string }
		}
		ok(t, json.Unmarshal([]byte(data), &news))
		for _, n := range news.Nodes {
			nodes[n.ID] = n
		}
		for _, x := range news.Edges {
			edges[x.ID] = x
		}
		for _, r := range news.Relays {
			relays[r.Name] = r
		}
		for _, id := range news.Gone.Nodes {
			delete(nodes, id)
		}
		for _, id := range news.Gone.Edges {
			delete(edges, id)
		}
	}
	return nodes, edges, relays
}

// TestLiveMapRelayDead holds that the map shows the only relay as broken within 10 s after an agent can know it, and as well again
// when it is.
func TestLiveMapRelayDead(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	node(t, site(t, l, "site-a", lab.EIM), "edge-1", lab.NodeOptions{})
	cloud1 := cloud(t, l, "cloud-1", lab.NodeOptions{})
	l.Cluster.Observers = []string{"cloud-1"}
	startAll(t, l)
	m := newLiveMap(t, cloud1)
	state := func(want string) func() bool {
		return func() bool {
			_, _, relays := m.all(t)
			for _, r := range relays {
				return len(relays) == 1 && r.State == want
			}
			return false
		}
	}
	await(t, 20*time.Second, "the relay is well", state("well"))
	r.Process.Kill()
	lag := stopwatch(t)
	await(t, 20*time.Second, "the relay is broken", state("broken"))
	t.Logf("a dead relay is shown after %v", lag())
	ok(t, r.Start())
	await(t, 60*time.Second, "the relay is well again", state("well"))
}

// TestLiveMapNodeOff holds that a node that is off is where the map draws it, as soon as another one has found so, and that who
// found it is only affected.
func TestLiveMapNodeOff(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	edge1 := node(t, site(t, l, "site-a", lab.EIM), "edge-1", lab.NodeOptions{})
	edge2 := node(t, site(t, l, "site-b", lab.EIM), "edge-2", lab.NodeOptions{})
	l.Cluster.Observers = []string{"edge-1"}
	startAll(t, l)
	one, two := pod(t, edge1, "one"), pod(t, edge2, "two")
	m := newLiveMap(t, edge1)
	await(t, 20*time.Second, "all is well", func() bool {
		nodes, _ := m.now(t)
		return nodes["edge-1"].State == "well" && nodes["edge-2"].State == "well"
	})
	edge2.Agent.Kill()
	lag := stopwatch(t)
	await(t, 60*time.Second, "edge-2 has a warning, edge-1 is affected", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = one.Run(ctx, "ping", "-c1", "-W1", two.IP4().String())
		nodes, _ := m.now(t)
		return nodes["edge-2"].State == "warning" && nodes["edge-1"].State == "affected"
	})
	t.Logf("a node that is off is shown after %v", lag())
}

// TestLiveMap holds that an observer's map has every pair, and a changed path within 2 s; that another node's has its own pairs
// only; and that nobody sees it without the token.
func TestLiveMap(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	a, b := site(t, l, "site-a", lab.EIM), site(t, l, "site-b", lab.EIM)
	edge1, edge2 := node(t, a, "edge-1", lab.NodeOptions{}), node(t, b, "edge-2", lab.NodeOptions{})
	cloud1 := cloud(t, l, "cloud-1", lab.NodeOptions{})
	l.Cluster.Observers = []string{"cloud-1"}
	startAll(t, l)
	pod1, pod2 := pod(t, edge1, "one"), pod(t, edge2, "two")
	all := newLiveMap(t, cloud1)
	code, err := cloud1.Run(t.Context(), "curl", "-s", "-w", "%{http_code}", all.base+"events")
	ok(t, err)
	contains(t, code, "requires a token", "401")
	await(t, 20*time.Second, "all nodes are heard", func() bool {
		nodes, edges := all.now(t)
		return len(nodes) == 3 && nodes["edge-1"].State == "well" && nodes["edge-2"].State == "well" && len(edges) == 0
	})

	curlPods(t, pod1, pod2, 5*time.Second)
	shown := func(path string) func() bool {
		return func() bool { _, edges := all.now(t); return edges["edge-1|edge-2"].Path == path }
	}
	_, err = edge1.WaitPath(within(t, 15*time.Second), edge2, "punched")
	ok(t, err)
	lag := stopwatch(t)
	await(t, 2*time.Second, "the punched path", shown("punched"))
	t.Logf("punched: shown %v after status said so", lag())
	own := newLiveMap(t, edge1)
	await(t, 10*time.Second, "edge-1's own pair, from both ends", func() bool {
		nodes, edges := own.now(t)
		return len(edges) == 1 && edges["edge-1|edge-2"].Path == "punched" && nodes["edge-2"].State == "well"
	})
	detail, err := edge1.Run(t.Context(), "curl", "-s", "-H", "Authorization: Bearer "+own.token, own.base+"pair?a=edge-1&b=edge-2")
	ok(t, err)
	contains(t, detail, `"node":"edge-1"`, `"node":"edge-2"`, `"history":[{"at"`, `"reason":"both addresses are translated by NAT`)

	// Without direct packets between the routers the pair falls back to the relay.
	for i, s := range l.Sites {
		ok(t, s.Router.Script("iptables -w -I FORWARD -d "+l.Sites[1-i].WAN.String()+" -j DROP"))
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // packets, or nobody notices
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, _ = pod1.Run(ctx, "ping", "-c1", "-W1", pod2.IP4().String())
				cancel()
			}
		}
	}()
	_, err = edge1.WaitPath(within(t, 20*time.Second), edge2, "relayed")
	lag = stopwatch(t)
	if err == nil {
		await(t, 2*time.Second, "the relayed path", shown("relayed"))
		t.Logf("relayed: shown %v after status said so", lag())
	}
	close(stop)
	<-done
	ok(t, err)

	l.Cluster.Observers = nil
	ok(t, l.WriteMembership())
	await(t, 15*time.Second, "no longer an observer", func() bool {
		_, edges := all.now(t) // it may still hear of its own pairs, which carry nothing
		return len(edges) == 0
	})
	_ = r
}
