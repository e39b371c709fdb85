package kubeapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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

// controllers are processes of `edgemesh-agent controller`, with the rights that the chart gives them.
type controllers struct {
	t    *testing.T
	c    *kubeapi.Cluster
	bin  string
	dir  string               // has their logs
	all  map[string]*exec.Cmd // by identity
	more []string             // arguments
	urls map[string]string    // where they reach the API, unless it is the API server's
}

func startControllers(t *testing.T, c *kubeapi.Cluster, names ...string) *controllers {
	t.Helper()
	bin, err := agentProgram()
	must(t, err)
	s := &controllers{t: t, c: c, bin: bin, dir: t.TempDir(), all: map[string]*exec.Cmd{}}
	token := filepath.Join(c.Dir, "controller-token")
	must(t, c.Delete(leasePath), c.ServiceAccountToken("edgemesh-controller", token))
	t.Cleanup(func() {
		for _, p := range s.all {
			_ = p.Process.Kill() // it may just have ended
			_ = p.Wait()
		}
		for name := range s.all {
			if log, err := os.ReadFile(s.log(name)); err == nil && t.Failed() {
				t.Logf("controller %s:\n%s", name, log[max(0, len(log)-8<<10):])
			}
		}
	})
	for _, name := range names {
		s.start(name)
	}
	return s
}

func (s *controllers) start(name string) {
	s.t.Helper()
	must(s.t, s.c.TokenKubeconfig(name+".conf", filepath.Join(s.c.Dir, "controller-token"), cmp.Or(s.urls[name], s.c.URL)))
	p := exec.Command(s.bin, "controller", "--kubeconfig", filepath.Join(s.c.Dir, name+".conf"),
		"--namespace", kubeapi.Namespace, "--identity", name, "--metrics-address", "")
	p.Args = append(p.Args, s.more...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(s.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(s.t, err)
	defer log.Close()
	p.Stdout, p.Stderr = log, log
	must(s.t, p.Start())
	s.all[name] = p
}

func (s *controllers) log(name string) string { return filepath.Join(s.dir, name+".log") }

// kill ends one without warning.
func (s *controllers) kill(name string) {
	s.t.Helper()
	must(s.t, s.all[name].Process.Kill())
	_ = s.all[name].Wait() // killed
	delete(s.all, name)
}

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/" + kubeapi.Namespace + "/leases/edgemesh-controller"

// leader waits for one that is not the former, and returns it.
func (s *controllers) leader(former string) string {
	s.t.Helper()
	var lease struct {
		Spec struct {
			HolderIdentity string `json:"holderIdentity"`
		} `json:"spec"`
	}
	fair.Eventually(s.t, patience, "a controller leads", fair.True(func() bool {
		err := s.c.Do(http.MethodGet, leasePath, nil, &lease)
		return err == nil && lease.Spec.HolderIdentity != "" && lease.Spec.HolderIdentity != former
	}))
	return lease.Spec.HolderIdentity
}

// blocks are all PodBlocks, by node.
func blocks(t *testing.T, c *kubeapi.Cluster) map[string][]*api.PodBlock {
	t.Helper()
	var list struct {
		Items []*api.PodBlock `json:"items"`
	}
	must(t, c.Do(http.MethodGet, podBlocksPath, nil, &list))
	out := map[string][]*api.PodBlock{}
	for _, b := range list.Items {
		out[b.Spec.NodeName] = append(out[b.Spec.NodeName], b)
	}
	return out
}

// hoarder claims blocks with a node's token as fast as the API server lets it, until stop.
type hoarder struct {
	who  as
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	made int
}

func hoard(t *testing.T, who as) *hoarder {
	ctx, stop := context.WithCancel(t.Context())
	h := &hoarder{who: who, stop: stop}
	for worker := range 4 {
		h.done.Go(func() {
			for i := worker; ctx.Err() == nil; i += 4 {
				h.claim(50 + i%200) // of 256: others find room
			}
		})
	}
	t.Cleanup(h.end)
	return h
}

// claim tries to get the block of that number. It counts what it gets; that others fail is how it goes.
func (h *hoarder) claim(n int) {
	body := podBlockJSON(fmt.Sprintf("10-244-%d-0-24", n), fmt.Sprintf("10.244.%d.0/24", n), h.who.name)
	resp, err := h.who.http.Post(h.who.url+podBlocksPath, "application/json", strings.NewReader(strings.ReplaceAll(body, `"uid":"x"`, `"uid":"`+h.who.uid+`"`)))
	if err != nil {
		return
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusCreated {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.made++
	}
}

func (h *hoarder) end() {
	h.stop()
	h.done.Wait()
}

func (h *hoarder) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made
}

// oldest is the age of the oldest of a node's blocks that does not count: from the API server's time of creation on, which
// has seconds, by a fair clock.
func oldest(clock *fair.Clock, list []*api.PodBlock) time.Duration {
	slices.SortFunc(list, func(a, b *api.PodBlock) int {
		return a.Meta.CreationTimestamp.Compare(*b.Meta.CreationTimestamp)
	})
	if len(list) <= 2 {
		return 0
	}
	return clock.Between(*list[2].Meta.CreationTimestamp, time.Now())
}

// A node's token claims blocks without end. Two of them count, for all agents; the leading controller deletes the
// others within 10 s and names the node; a new node finds a block, and others keep theirs. When the leader is killed,
// another one takes over.
func TestHoarder(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b"), c.CreateNode("thief"), c.CreateMeshNode("thief", newPeerID(t)))
	a, b := tokenAgent(t, c, "a", c.URL), certAgent(t, c, "b", c.URL)
	a.start()
	b.start() // claims 10.244.0.0/24
	token := filepath.Join(c.Dir, "thief-token")
	must(t, c.AgentToken("thief", token, 3600), c.TokenKubeconfig("thief.conf", token, c.URL))
	thief := login(t, c, "thief", "thief.conf")
	thief.wants(t, // what it has before
		post("a block", podBlocksPath, podBlockJSON("10-244-44-0-24", "10.244.44.0/24", "thief")),
		post("a second one", podBlocksPath, podBlockJSON("10-244-45-0-24", "10.244.45.0/24", "thief")))
	const all = "a=10.244.1.0/24 b=10.244.0.0/24 thief=10.244.44.0/24 thief=10.244.45.0/24"
	a.sees(all)
	states := a.seen()

	// Without a controller the surplus stays, and counts for nobody.
	time.Sleep(time.Second) // sleep: creation times have seconds
	h := hoard(t, thief)
	fair.Eventually(t, patience, "the thief has all it wants", fair.True(func() bool { return len(blocks(t, c)["thief"]) == 202 }))
	fair.Eventually(t, patience, "agents name it", fair.True(func() bool {
		return a.told("Node thief claims more PodBlocks") && b.told("Node thief claims more PodBlocks")
	}))

	clock := fair.Start()
	defer clock.Stop()
	s := startControllers(t, c, "controller-1", "controller-2")
	first := s.leader("")
	fair.Eventually(t, patience, "the surplus goes", fair.True(func() bool { return oldest(clock, blocks(t, c)["thief"]) < 5*time.Second }))
	watch := func(what string, until time.Time) {
		t.Helper()
		var most time.Duration
		for time.Now().Before(until) {
			if most = max(most, oldest(clock, blocks(t, c)["thief"])); most > 10*time.Second {
				t.Fatalf("%s: a block in surplus is %v old", what, most)
			}
			time.Sleep(100 * time.Millisecond) // sleep: between looks, until the limit
		}
		t.Logf("%s: the oldest block in surplus was %v old, of which up to 1 s is the clock's step", what, most.Round(time.Millisecond))
	}
	made := h.count()
	watch("with a leader", time.Now().Add(10*time.Second))
	if h.count() <= made {
		t.Error("the thief could claim nothing meanwhile: that the surplus went proves nothing")
	}
	must(t, c.CreateNode("new"))
	n := tokenAgent(t, c, "new", c.URL)
	n.start()

	s.kill(first)
	second := s.leader(first)
	watch("after the leader was killed", time.Now().Add(10*time.Second))
	h.end()
	fair.Eventually(t, patience, "only what counts is left", fair.True(func() bool { return len(blocks(t, c)["thief"]) == 2 }))
	for _, name := range []string{first, second} {
		text, err := os.ReadFile(s.log(name))
		must(t, err)
		if !strings.Contains(string(text), "node=thief") {
			t.Errorf("%s does not name the thief:\n%s", name, text)
		}
	}
	own := blocks(t, c)
	if len(own["b"]) != 1 || len(own["new"]) != 1 || own["thief"][0].Spec.CIDR+own["thief"][1].Spec.CIDR != "10.244.44.0/2410.244.45.0/24" {
		text, _ := json.Marshal(own)
		t.Errorf("blocks in the end: %s", text)
	}
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24 new=" + own["new"][0].Spec.CIDR + " thief=10.244.44.0/24 thief=10.244.45.0/24")
	for _, name := range []string{"a", "b", "thief"} {
		if a.blip(name) || b.blip(name) {
			t.Errorf("member %s was gone for a moment", name)
		}
	}
	t.Logf("the thief claimed %d blocks; a saw %d States", h.count(), a.seen()-states)
}

// The controller may do nothing but what it is for.
func TestControllersRights(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	token := filepath.Join(c.Dir, "controller-rights")
	must(t, c.CreateNode("a"), c.CreateMeshNode("a", newPeerID(t)), c.ServiceAccountToken("edgemesh-controller", token),
		c.TokenKubeconfig("rights.conf", token, c.URL))
	who := login(t, c, "controller", "rights.conf")
	who.wants(t,
		post("a block", podBlocksPath, podBlockJSON("10-244-9-0-24", "10.244.9.0/24", "a")).refused(forbidden, ""),
		patch("the PodNetwork", kubeapi.Group+"podnetworks/cluster", `{"spec":{"relays":[]}}`).refused(forbidden, ""),
		patch("a MeshNode", meshNodesPath+"/a", `{"metadata":{"labels":{"x":"y"}}}`).refused(forbidden, ""),
		remove("to delete a MeshNode", meshNodesPath+"/a").refused(forbidden, ""),
		patch("a Node", nodesPath+"/a", `{"metadata":{"labels":{"x":"y"}}}`).refused(forbidden, ""),
		patch("another Lease", strings.Replace(leasePath, "edgemesh-controller", "other", 1), `{"spec":{}}`).refused(forbidden, ""),
		post("a Secret", secretsPath, secretJSON("x", "Opaque")).refused(forbidden, ""))
}

const (
	leasesPath  = "/apis/coordination.k8s.io/v1/namespaces/" + kubeapi.Namespace + "/leases"
	secretsPath = "/api/v1/namespaces/" + kubeapi.Namespace + "/secrets"
)

func secretJSON(name, kind string) string {
	return `{"apiVersion":"v1","kind":"Secret","type":"` + kind + `","metadata":{"name":"` + name + `","annotations":{"kubernetes.io/service-account.name":"edgemesh-agent"}}}`
}

// What RBAC cannot narrow, because an object that is created has no name for it, a policy does: no Secret that is filled with
// another account's token, no other Lease, no NodeRecord that another object's deletion would take along.
func TestControllerMakesItsOwnOnly(t *testing.T) {
	t.Parallel()
	c := guarded(t, kubeEdgeCluster(t))
	network(t, c, nil)
	token := filepath.Join(c.Dir, "controller-own")
	must(t, c.CreateNode("a"), c.CreateNode("b"), c.ServiceAccountToken("edgemesh-controller", token), c.TokenKubeconfig("own.conf", token, c.URL),
		c.Delete(secretsPath+"/edgemesh-controller"))
	who := login(t, c, "a", "own.conf")
	record := func(owner, nodeUID, more string) string {
		return fmt.Sprintf(`{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"NodeRecord","metadata":{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":"x"}]%s},"spec":{"nodeUID":%q}}`, owner, more, nodeUID)
	}
	who.wants(t,
		post("a Secret of another name", secretsPath, secretJSON("x", "Opaque")).refused(forbidden, "only its own Lease, and the Secret"),
		post("a Secret that is filled with an account's token", secretsPath, secretJSON("edgemesh-controller", "kubernetes.io/service-account-token")).refused(forbidden, "no Secret that Kubernetes fills"),
		post("its key", secretsPath, secretJSON("edgemesh-controller", "Opaque")),
		post("another Lease", leasesPath, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"kubelet"}}`).refused(forbidden, "only its own Lease"),
		post("a record owned by another Node", recordsPath, record("b", who.uid, "")).refused(forbidden, "owner of a NodeRecord"),
		post("a record of another UID", recordsPath, record("a", "gone", "")).refused(forbidden, "owner of a NodeRecord"),
		post("a record that stays", recordsPath, record("a", who.uid, `,"finalizers":["x.example/y"]`)).refused(forbidden, "owner of a NodeRecord"),
		post("a record", recordsPath, record("a", who.uid, "")),
		patch("its owner away", recordsPath+"/a", `{"metadata":{"ownerReferences":[]}}`).refused(forbidden, "owner of a NodeRecord"))
	must(t, c.Delete(secretsPath+"/edgemesh-controller"))
}
