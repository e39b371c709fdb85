package kubeapi_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

const recordsPath = kubeapi.Group + "noderecords"

// changeTime is enough for an agent to notice that a controller has begun or ceased to keep the NodeRecords, which takes
// three or four looks.
const changeTime = 100 * time.Second

// journal is an agent's log.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// listens has the agent's log written to a journal.
func (a *agent) listens() *journal {
	j := &journal{}
	a.cfg.Log = slog.New(slog.NewTextHandler(j, nil))
	a.t.Cleanup(func() {
		if a.t.Failed() {
			a.t.Logf("log of %s:\n%s", a.cfg.NodeName, j)
		}
	})
	return j
}

// from waits until the membership's Nodes come from that kind.
func (j *journal) from(t *testing.T, kind string) {
	t.Helper()
	fair.Eventually(t, changeTime, "Nodes come from "+kind, fair.True(func() bool {
		text := j.String()
		i := strings.LastIndex(text, "come from another kind now")
		return i >= 0 && strings.Contains(text[i:], "kind="+kind)
	}))
}

// cut deletes a Node, and wants the agent to know within 2 s.
func cut(t *testing.T, c *kubeapi.Cluster, a *agent, node string) {
	t.Helper()
	must(t, c.Delete(nodesPath+"/"+node))
	began := time.Now()
	fair.Eventually(t, 2*time.Second, node+" is cut off", fair.True(func() bool { return !strings.Contains(a.members(), node+"=") }))
	t.Logf("%s: cut off after %v", node, time.Since(began).Round(time.Millisecond))
}

// records are the NodeRecords' names, sorted.
func records(t *testing.T, c *kubeapi.Cluster) string {
	t.Helper()
	var list struct {
		Items []*api.NodeRecord `json:"items"`
	}
	must(t, c.Do(http.MethodGet, recordsPath, nil, &list))
	var names []string
	for _, r := range list.Items {
		names = append(names, r.Meta.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Agents and a relay follow the NodeRecords while controllers keep them, and Nodes otherwise; no change-over loses a member,
// and a removed Node is cut off within 2 s: with the controllers alone, and with the garbage collector alone while no agent
// knows yet that the controllers are gone.
func TestNodeRecords(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	for i, name := range []string{"b", "d", "e", "f"} {
		must(t, c.CreateMember(name, newPeerID(t), fmt.Sprintf("10.244.%d.0/24", i+2)))
	}
	a, relay := tokenAgent(t, c, "a", c.URL), newAgent(t, "", filepath.Join(c.Dir, "relay.conf"))
	token := filepath.Join(c.Dir, "relay.token")
	must(t, c.RelayToken(token), c.TokenKubeconfig("relay.conf", token, c.URL))
	relay.cfg.ReadOnly, relay.cfg.PeerID = true, ""
	log, relayLog := a.listens(), relay.listens()
	a.start()
	relay.start()
	all := "a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.3.0/24 e=10.244.4.0/24 f=10.244.5.0/24"
	a.sees(all)
	relay.sees(all)

	s := startControllers(t, c, "one", "two")
	log.from(t, "noderecords")
	relayLog.from(t, "noderecords")
	states := a.seen()
	if states != 1 {
		t.Errorf("the change-over made %d States of one", states)
	}
	cut(t, c, a, "b")
	if got := records(t, c); got != "a d e f" {
		t.Errorf("NodeRecords of %s", got)
	}
	must(t, c.CreateMember("g", newPeerID(t), "10.244.6.0/24"))
	all = "a=10.244.1.0/24 d=10.244.3.0/24 e=10.244.4.0/24 f=10.244.5.0/24 g=10.244.6.0/24"
	a.sees(all)

	// A node's claim never displaces what the cluster assigned, whichever was first.
	must(t, c.CreateNode("thief"), c.CreateMeshNode("thief", newPeerID(t)), c.AgentToken("thief", token, 3600), c.TokenKubeconfig("thief.conf", token, c.URL))
	thief := login(t, c, "thief", "thief.conf")
	thief.wants(t,
		post("another's block", podBlocksPath, podBlockJSON("10-244-3-0-24", "10.244.3.0/24", "thief")),
		post("a free one", podBlocksPath, podBlockJSON("10-244-7-0-24", "10.244.7.0/24", "thief")))
	a.sees(all + " thief=10.244.7.0/24")
	must(t, c.CreateMember("h", newPeerID(t), "10.244.7.0/24"))
	all += " h=10.244.7.0/24"
	a.sees(all)
	relay.sees(all)

	// What the controllers publish, no node writes: neither by its token nor by its certificate.
	cert, err := c.NodeCertificate("d", time.Now().Add(-time.Hour))
	must(t, err, c.Kubeconfig("d-records.conf", cert, c.URL))
	for _, who := range []as{thief, login(t, c, "d", "d-records.conf")} {
		own := recordsPath + "/" + who.name
		who.wants(t,
			post("a record", recordsPath, `{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"NodeRecord","metadata":{"name":"x"},"spec":{"nodeUID":"x"}}`).refused(forbidden, ""),
			patch("its record", own, `{"spec":{"podCIDRs":["10.244.3.0/24"]}}`).refused(forbidden, ""),
			remove("another's record", recordsPath+"/e").refused(forbidden, ""),
			patch("where the records are kept", kubeapi.Group+"podnetworks/cluster/status", `{"status":{"recordsLease":"default/x"}}`).refused(forbidden, ""),
			patch("the Lease", leasePath, `{"spec":{"holderIdentity":"x"}}`).refused(forbidden, ""))
	}

	// An administrator deletes a record: the controller makes it again.
	must(t, c.Delete(recordsPath+"/e"))
	fair.Eventually(t, patience, "the record is there again", fair.True(func() bool { return strings.Contains(records(t, c), "e") }))
	a.sees(all)

	// Both controllers are killed. Before any agent knows, a Node is removed.
	must(t, c.StartControllers("garbage-collector-controller"))
	defer c.StopControllers()
	must(t, c.Delete(nodesPath+"/thief"))
	fair.Eventually(t, changeTime, "the collector is at work", fair.True(func() bool { return len(blocks(t, c)["thief"]) == 0 }))
	s.kill("one")
	s.kill("two")
	cut(t, c, a, "f")
	log.from(t, "nodes")
	relayLog.from(t, "nodes")
	must(t, c.CreateMember("i", newPeerID(t), "10.244.8.0/24"))
	a.sees(strings.Replace(all, " f=10.244.5.0/24", "", 1) + " i=10.244.8.0/24")
	cut(t, c, a, "g")
	// No controller makes or deletes one; the collector deletes those of Nodes that are gone, in its own time.
	fair.Eventually(t, patience, "the records of the Nodes that had one", fair.True(func() bool { return records(t, c) == "a d e h" }))

	// They come back.
	s.start("three")
	log.from(t, "noderecords")
	relayLog.from(t, "noderecords")
	all = "a=10.244.1.0/24 d=10.244.3.0/24 e=10.244.4.0/24 h=10.244.7.0/24 i=10.244.8.0/24"
	a.sees(all)
	relay.sees(all)
	cut(t, c, a, "i")
	for _, name := range []string{"a", "d", "h"} {
		if a.blip(name) || relay.blip(name) {
			t.Errorf("member %s was gone for a moment", name)
		}
	}
}

// A leader that is cut off from the API, or that stands still, keeps no right to write: when it is back another one leads,
// and what it has not heard of stays as it is. Agents notice nothing.
func TestPartitionedController(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	g := newGate(t, c)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"), c.CreateMember("d", newPeerID(t), "10.244.3.0/24"))
	a := tokenAgent(t, c, "a", c.URL)
	log := a.listens()
	a.start()
	s := startControllers(t, c)
	s.urls = map[string]string{"cut": g.URL}
	s.start("cut")
	if first := s.leader(""); first != "cut" {
		t.Fatalf("%s leads", first)
	}
	s.start("other")
	log.from(t, "noderecords")

	g.Shut()
	if second := s.leader("cut"); second != "other" {
		t.Fatalf("%s leads", second)
	}
	fair.Eventually(t, patience, "the one that is cut off knows", fair.True(func() bool { return s.logged("cut", "no longer leading") }))
	cut(t, c, a, "b")
	must(t, c.CreateMember("e", newPeerID(t), "10.244.4.0/24"))
	a.sees("a=10.244.1.0/24 d=10.244.3.0/24 e=10.244.4.0/24")
	g.Open()
	fair.Eventually(t, patience, "the one that was cut off waits", fair.True(func() bool { return s.logged("cut", "leader=other") }))

	// The leader stands still, and continues in the belief that it leads.
	must(t, s.all["other"].Process.Signal(syscall.SIGSTOP))
	if third := s.leader("other"); third != "cut" {
		t.Fatalf("%s leads", third)
	}
	cut(t, c, a, "d")
	must(t, s.all["other"].Process.Signal(syscall.SIGCONT))
	fair.Eventually(t, patience, "the one that stood still knows", fair.True(func() bool { return s.logged("other", "no longer leading") }))
	fair.Eventually(t, patience, "it waits", fair.True(func() bool { return s.logged("other", "leader=cut") }))
	if got := s.leader(""); got != "cut" {
		t.Errorf("%s leads", got)
	}
	if got := records(t, c); got != "a e" {
		t.Errorf("NodeRecords of %s", got)
	}
	a.sees("a=10.244.1.0/24 e=10.244.4.0/24")
	for _, name := range []string{"a", "e"} {
		if a.blip(name) {
			t.Errorf("member %s was gone for a moment", name)
		}
	}
	log.from(t, "noderecords")
}

// logged reports whether a controller's log has text.
func (s *controllers) logged(name, text string) bool {
	s.t.Helper()
	log, err := os.ReadFile(s.log(name))
	must(s.t, err)
	return bytes.Contains(log, []byte(text))
}

// Through edge-local caches agents follow NodeRecords, too, where Nodes would have to be listed again and again; what was
// removed while the uplink was gone is known after it is back.
func TestNodeRecordsThroughCache(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, habits := range []kubeapi.Habits{kubeapi.MetaServer, kubeapi.YurtHub} {
		t.Run(string(habits), func(t *testing.T) {
			t.Parallel()
			c := emptyCluster(t)
			network(t, c, nil)
			must(t, c.CreateNode("edge", "10.244.1.0/24"))
			for i, name := range []string{"b", "d", "e"} {
				must(t, c.CreateMember(name, newPeerID(t), fmt.Sprintf("10.244.%d.0/24", i+2)))
			}
			cert, err := c.NodeCertificate("edge", time.Now().Add(-time.Hour))
			must(t, err)
			cache, err := c.NewEdgeCache(habits, cert)
			must(t, err)
			t.Cleanup(cache.Close)
			a := newAgent(t, "edge", "")
			a.cfg.Server = cache.URL
			log := a.listens()
			a.start()
			a.sees("b=10.244.2.0/24 d=10.244.3.0/24 e=10.244.4.0/24 edge=10.244.1.0/24")
			startControllers(t, c, "one")
			log.from(t, "noderecords")
			cut(t, c, a, "b")
			cache.SetOnline(false)
			must(t, c.Delete(nodesPath+"/d"))
			time.Sleep(40 * time.Second) // sleep: a proof fails meanwhile
			if got := a.members(); got != "d=10.244.3.0/24 e=10.244.4.0/24 edge=10.244.1.0/24" {
				t.Errorf("offline: %s", got)
			}
			cache.SetOnline(true)
			a.sees("e=10.244.4.0/24 edge=10.244.1.0/24")
			log.from(t, "noderecords")
			if a.blip("e") || a.blip("edge") {
				t.Error("a member was gone for a moment")
			}
			cache.Close()
			if n := cache.Watched[nodesPath]; n > 0 || cache.Watched[recordsPath] == 0 {
				t.Errorf("watches %v: of Nodes they cut edges of KubeEdge off", cache.Watched)
			}
		})
	}
}

// With agent.kubeletCredentials: records a kubelet's certificate lists no Nodes, and its agent joins, follows who comes and goes,
// and starts again without a controller all the same.
func TestKubeletsListNoNodes(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	if c.Before("1.32.0") {
		t.Skip("AuthorizeNodeWithSelectors came with Kubernetes 1.32: before, every kubelet may list Nodes")
	}
	network(t, c, nil)
	must(t, c.KeepsRecords(), c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"))
	s := startControllers(t, c, "one")
	a := certAgent(t, c, "a", c.URL)
	kubelet := login(t, c, "a", "a.conf")
	if code, _ := kubelet.do(t, http.MethodGet, nodesPath, ""); code != http.StatusOK {
		t.Errorf("an agent of 0.2 lists Nodes: %d", code)
	}
	rights := func(op string) error { // as agent.kubeletCredentials: records renders it, and back
		_, err := c.Kubectl("patch", "clusterrolebinding", "edgemesh:agent-nodes", "--type=json", "-p", `[{"path":"/subjects/1",`+op+`}]`)
		return err
	}
	t.Cleanup(func() {
		must(t, rights(`"op":"add","value":{"kind":"Group","name":"system:nodes","apiGroup":"rbac.authorization.k8s.io"}`))
	})
	must(t, rights(`"op":"remove"`))
	fair.Eventually(t, patience, "a kubelet lists no Nodes", fair.True(func() bool {
		code, _ := kubelet.do(t, http.MethodGet, nodesPath, "")
		return code == http.StatusForbidden
	}))
	if code, _ := kubelet.do(t, http.MethodGet, nodesPath+"/a", ""); code != http.StatusOK {
		t.Errorf("its own Node: %d", code)
	}
	fair.Eventually(t, changeTime, "the records are kept", fair.True(func() bool { return records(t, c) == "a b" }))
	a.listens()
	a.start()
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24")
	must(t, c.CreateMember("d", newPeerID(t), "10.244.3.0/24"))
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24 d=10.244.3.0/24")
	cut(t, c, a, "b")
	s.kill("one")
	a.stop()
	a.start()
	a.sees("a=10.244.1.0/24 d=10.244.3.0/24")
	s.start("two")
	must(t, c.CreateMember("e", newPeerID(t), "10.244.4.0/24"))
	a.sees("a=10.244.1.0/24 d=10.244.3.0/24 e=10.244.4.0/24")
	if a.told("list nodes") {
		t.Error("the refusal is reported")
	}
}
