package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// world is an API and what a loop makes of it.
type world struct {
	t        *testing.T
	source   *Source
	loop     *loop
	dir      string
	lists    map[string][]api.Object
	rv       uint64
	uid      string // of the cluster
	states   []string
	errs     []string
	followed []string // kinds of other plugins
}

// newWorld has nodes a (this one), b and c.
func newWorld(t *testing.T) *world {
	t.Helper()
	id := kubetest.PeerIDs(t, 3)
	w := &world{t: t, dir: t.TempDir(), rv: 100, uid: "cluster-1"}
	w.lists = map[string][]api.Object{
		"podnetworks": {kubetest.PodNetwork("10.244.0.0/16")},
		"nodes":       {kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("b", 2, "10.244.2.0/24"), kubetest.Node("c", 3, "10.244.3.0/24")},
		"meshnodes":   {kubetest.MeshNode("a", id[0]), kubetest.MeshNode("b", id[1]), kubetest.MeshNode("c", id[2])},
		"podblocks":   {},
	}
	w.restart(nil)
	return w
}

// restart begins a life of the agent, from a snapshot or not.
func (w *world) restart(snap *mesh.State) {
	w.t.Helper()
	s, err := New(Config{Access: client.Access{Server: "https://127.0.0.1:1"}, NodeName: "a", StateDir: w.dir, Log: slog.New(slog.DiscardHandler),
		PeerID: mesh.PeerID(w.lists["meshnodes"][0].(*api.MeshNode).Spec.PeerID)})
	if err != nil {
		w.t.Fatal(err)
	}
	if snap != nil {
		s.known.begin(*snap, loadMemory(w.dir))
	}
	w.source, w.followed = s, nil
	w.loop = &loop{
		known: s.known, tune: defaultTuning(), want: make(chan want, 1), annotations: &s.annotations, began: time.Now(), named: s.confirm.end, reports: &s.reports,
		onState: func(s mesh.State) { w.states = append(w.states, text(s)) },
		onErr:   func(err error) { w.errs = append(w.errs, err.Error()) },
		source: steering{stops: map[string]func(){}, lease: make(chan string, 1), follow: func(k api.Kind) func() {
			w.followed = append(w.followed, k.Name)
			return func() { w.followed = slices.DeleteFunc(w.followed, func(x string) bool { return x == k.Name }) }
		}},
	}
}

// list answers every list, proved or not.
func (w *world) list(proved bool, lists map[string][]api.Object) {
	for _, k := range api.Kinds() {
		m := listed{kind: k, items: lists[k.Name], rv: w.rv}
		if proved {
			m.proof = &proof{cluster: w.uid, version: w.rv, ownUID: "m-a"}
		}
		w.loop.take(m)
	}
	w.loop.update()
}

func (w *world) watch(k api.Kind, what string, o api.Object) {
	w.loop.take(event{k, what, o})
	w.loop.update()
}

// without is the API's lists less the first-named node's objects.
func (w *world) without(name string) map[string][]api.Object {
	out := map[string][]api.Object{}
	for k, list := range w.lists {
		for _, o := range list {
			if o.Metadata().Name != name {
				out[k] = append(out[k], o)
			}
		}
	}
	return out
}

func (w *world) is(want string) {
	w.t.Helper()
	if got := text(w.loop.known.last); got != want {
		w.t.Errorf("members %q, want %q", got, want)
	}
}

const (
	allThree = "a=10.244.1.0/24 b=10.244.2.0/24 c=10.244.3.0/24"
	withoutC = "a=10.244.1.0/24 b=10.244.2.0/24"
)

func TestLoopWaitsForProofAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.list(false, w.lists)
		if w.loop.known.have {
			t.Fatal("a membership was handed out that may be stale")
		}
		w.list(true, w.lists)
		w.is(allThree)
		// A cache that cannot rehearse must not keep a node out forever.
		w.restart(nil)
		w.list(false, w.lists)
		if w.loop.known.have {
			t.Fatal("after a restart: a membership was handed out that may be stale")
		}
		time.Sleep(w.loop.tune.patience)
		w.list(false, w.lists)
		w.is(allThree)
	})
}

func TestLoopBelievesOnlyProvedAbsence(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	w.list(false, nil)
	w.list(false, w.without("c"))
	w.is(allThree)
	w.rv++
	w.list(true, w.without("c"))
	w.is(withoutC)
}

func TestLoopBelievesTombstones(t *testing.T) {
	for _, k := range []api.Kind{api.Nodes(), api.MeshNodes()} {
		w := newWorld(t)
		w.list(true, w.lists)
		w.watch(k, deleted, w.lists[k.Name][2])
		w.is(withoutC)
		w.watch(k, added, w.lists[k.Name][2]) // a cache replays it
		w.is(withoutC)
	}
}

// After a restart from the snapshot, unproved lists add what is new and change nothing else.
func TestLoopFromSnapshot(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.known.last
	id := kubetest.PeerIDs(t, 2)
	stale := map[string][]api.Object{}
	maps.Copy(stale, w.lists)
	oldKey, news, zombie := kubetest.MeshNode("b", id[0]), kubetest.MeshNode("d", id[1]), kubetest.MeshNode("z", id[0])
	newsNode, zombieNode := kubetest.Node("d", 4, "10.244.4.0/24"), kubetest.Node("z", 4, "10.244.5.0/24")
	news.Meta.ResourceVersion, newsNode.Meta.ResourceVersion = "150", "150"
	stale["meshnodes"] = []api.Object{oldKey, news, zombie}
	stale["nodes"] = []api.Object{newsNode, zombieNode}
	w.restart(&snap)
	w.rv = 160
	w.list(false, stale)
	w.is(allThree + " d=10.244.4.0/24")
	for _, n := range w.loop.known.last.Nodes {
		if n.Name == "b" && n.PeerID == mesh.PeerID(id[0]) {
			t.Error("an old peer ID replaced the one in the snapshot")
		}
	}
	w.list(true, w.without("c"))
	w.is(withoutC)
}

func TestLoopDeletionBeforeProofCounts(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.known.last
	w.restart(&snap)
	w.list(false, nil)
	w.is(allThree)
	w.watch(api.MeshNodes(), deleted, w.lists["meshnodes"][2])
	w.is(withoutC)
}

// The deletion of an object that had a member's name before is no news of the member,
// also after a restart.
func TestLoopDeletionOfAnotherObject(t *testing.T) {
	for _, k := range []api.Kind{api.Nodes(), api.MeshNodes()} {
		w := newWorld(t)
		w.list(true, w.lists)
		snap := w.loop.known.last
		w.restart(&snap)
		w.list(false, nil) // a cache that has lost everything
		var earlier api.Object = &api.Node{Meta: api.Meta{Name: "c", UID: "earlier", ResourceVersion: "150"}}
		if k.Name == api.MeshNodes().Name {
			earlier = &api.MeshNode{Meta: api.Meta{Name: "c", UID: "earlier", ResourceVersion: "150"}}
		}
		w.watch(k, deleted, earlier)
		w.is(allThree)
		w.watch(k, deleted, w.lists[k.Name][2])
		w.is(withoutC)
	}
}

// Another cluster identity, or versions that go back: nobody leaves, and who comes
// back is an ordinary member again.
func TestLoopNewHistory(t *testing.T) {
	for name, change := range map[string]func(*world){
		"wiped":    func(w *world) { w.uid, w.rv = "cluster-2", 50 },
		"restored": func(w *world) { w.rv = 50 },
		"another":  func(w *world) { w.uid, w.rv = "cluster-3", 500 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.list(true, w.lists)
			change(w)
			onlyA := map[string][]api.Object{"podnetworks": w.lists["podnetworks"], "nodes": w.lists["nodes"][:1], "meshnodes": w.lists["meshnodes"][:1]}
			w.list(true, onlyA)
			w.list(true, onlyA) // as all kinds are asked for again
			w.is(allThree)
			snap := w.loop.known.last
			w.restart(&snap) // and over a restart
			w.list(true, onlyA)
			w.is(allThree)
			w.rv++
			w.list(true, w.without("c"))
			w.is(allThree)
			snap = w.loop.known.last
			w.restart(&snap) // b is an ordinary member again, also after a restart
			w.rv++
			w.list(true, onlyA) // b was in this history: its absence is proved
			w.is("a=10.244.1.0/24 c=10.244.3.0/24")
			net := kubetest.PodNetwork("10.244.0.0/16")
			net.Meta.ResourceVersion = "2000"
			net.Meta.Annotations = map[string]string{api.ForgetAnnotation: "x, c"}
			w.watch(api.PodNetworks(), modified, net)
			w.is("a=10.244.1.0/24")
		})
	}
}

// A snapshot without memory beside it is of an unknown history.
func TestLoopWithoutMemory(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.known.last
	if err := os.WriteFile(filepath.Join(w.dir, MemoryFile), []byte(`{"cluster":"clus`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart(&snap)
	w.rv++
	w.list(true, w.without("c"))
	w.is(allThree)
}

func TestLoopKeepsTheNetworkThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	w.watch(api.PodNetworks(), deleted, w.lists["podnetworks"][0])
	w.is(allThree)
}

// The own Node is deleted: the State stays, the reason is told; an unproved list
// without it changes nothing.
func TestLoopOwnNodeDeleted(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	w.watch(api.Nodes(), deleted, w.lists["nodes"][0])
	w.is(allThree)
	if len(w.errs) == 0 || !strings.Contains(w.errs[len(w.errs)-1], "the API has no Node a") {
		t.Errorf("told %q", w.errs)
	}
}

// A list that lacks this node says so as an API's word only if it is proved to be: an edge cache without uplink gives empty lists.
func TestLoopTellsProvedAbsence(t *testing.T) {
	for proved, want := range map[bool]string{true: "the API has no Node a: check", false: "the API has no Node a, or an edge cache without uplink says so"} {
		w := newWorld(t)
		w.list(true, w.lists)
		w.rv++
		w.list(proved, w.without("a"))
		if len(w.errs) == 0 || !strings.Contains(w.errs[len(w.errs)-1], want) {
			t.Errorf("proved %v: told %q", proved, w.errs)
		}
	}
}

// A problem is reported once, and its end by the State once more.
func TestLoopReports(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	told, states := len(w.errs), len(w.states)
	for range 3 {
		w.loop.take(trouble{kind: api.Nodes(), err: os.ErrDeadlineExceeded})
		w.loop.update()
	}
	if len(w.errs) != told+1 {
		t.Errorf("told %d times", len(w.errs)-told)
	}
	w.loop.take(trouble{kind: api.Nodes(), err: nil})
	w.loop.update()
	if len(w.states) != states+1 {
		t.Errorf("the end was told %d times", len(w.states)-states)
	}
}

func TestNewRefusesBadNames(t *testing.T) {
	if _, err := New(Config{Access: client.Access{Server: "http://127.0.0.1:1"}, NodeName: "Not_a_node"}); !errors.Is(err, ErrConfig) {
		t.Errorf("error %v, want ErrConfig", err)
	}
	if _, err := New(Config{Access: client.Access{Server: "http://127.0.0.1:1"}, ReadOnly: true, PeerID: mesh.PeerID("")}); err != nil {
		t.Errorf("a reader needs no name: %v", err)
	}
	if _, err := New(Config{Access: client.Access{Server: "http://203.0.113.10:8080"}, ReadOnly: true}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "https") {
		t.Errorf("a relay that reads the members without TLS: %v", err)
	}
}

// Only nodes with the label are admitted, whatever the snapshot says of those that the API lists; this node waits for it.
func TestAdmitLabel(t *testing.T) {
	const label = mesh.RestrictedPrefix + "mesh"
	admitted := func(s mesh.State) string { return text(s.Admitted()) }
	labelled := func(name string, labels map[string]string) *api.Node {
		n := kubetest.Node(name, 1, map[string]string{"a": "10.244.1.0/24", "b": "10.244.2.0/24", "c": "10.244.3.0/24"}[name])
		n.Meta.Labels = labels
		return n
	}
	yes := map[string]string{label: "yes"}
	w := newWorld(t)
	network := kubetest.PodNetwork("10.244.0.0/16")
	network.Spec.AdmitLabel = label + "=yes"
	w.lists["podnetworks"] = []api.Object{network}
	w.lists["nodes"] = []api.Object{labelled("a", nil), labelled("b", yes), labelled("c", yes)}
	w.list(true, w.lists)
	if w.loop.known.have || len(w.errs) != 1 || !strings.Contains(w.errs[0], "kubectl label node a "+label+"=yes") {
		t.Fatalf("without the label: handed out %v, errors %q", w.states, w.errs)
	}
	newer := func(o api.Object) api.Object {
		w.rv++
		o.Metadata().ResourceVersion = strconv.FormatUint(w.rv, 10)
		return o
	}
	update := func(n *api.Node) {
		w.loop.take(event{api.Nodes(), modified, newer(n)})
		w.loop.update()
	}
	update(labelled("a", yes))
	if got := admitted(w.loop.known.last); got != allThree {
		t.Fatalf("with the label: %q, want %q", got, allThree)
	}
	update(labelled("c", map[string]string{label: "no"}))
	if got := admitted(w.loop.known.last); got != withoutC {
		t.Errorf("without the label on c: %q, want %q", got, withoutC)
	}
	// c loses the label, and what makes it a member, while only a cache answers: it is kept, but not admitted.
	snap := w.loop.known.last
	for i := range snap.Nodes {
		snap.Nodes[i].Labels = yes
	}
	w.restart(&snap)
	if got := admitted(w.loop.known.last); got != allThree {
		t.Fatalf("from the snapshot: %q, want %q", got, allThree)
	}
	w.lists["nodes"] = []api.Object{newer(labelled("a", yes)), newer(labelled("b", yes)), newer(labelled("c", nil))}
	w.lists["meshnodes"] = w.lists["meshnodes"][:2]
	w.list(false, w.lists)
	if got := admitted(w.loop.known.last); got != withoutC || text(w.loop.known.last) != allThree {
		t.Errorf("unproved, without the label on c: %q admitted of %q, want %q", got, text(w.loop.known.last), withoutC)
	}
	// Rubbish, which the CRD refuses, changes nothing.
	rubbish := kubetest.PodNetwork("10.244.0.0/16")
	rubbish.Spec.AdmitLabel = "role=edge"
	w.lists["podnetworks"] = []api.Object{newer(rubbish)}
	w.errs = nil
	w.list(false, w.lists)
	if got := w.loop.known.last.AdmitLabel; got != label+"=yes" || len(w.errs) != 1 || !strings.Contains(w.errs[0], "admitLabel: ") {
		t.Errorf("after rubbish nodes need %q; errors %q", got, w.errs)
	}
}

// A node that claims blocks without end has the two that it claimed first, and is named, once, until a minute after the
// last of the others is gone; nobody else loses anything.
func TestHoarderIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lists["nodes"] = append(w.lists["nodes"], kubetest.Node("d", 4))
		w.lists["meshnodes"] = append(w.lists["meshnodes"], kubetest.MeshNode("d", kubetest.PeerIDs(t, 1)[0]))
		claim := func(i int) *api.PodBlock {
			b := kubetest.PodBlock(fmt.Sprintf("10.244.%d.0/24", i), "d")
			b.Meta.CreationTimestamp = kubetest.At(i)
			w.rv++
			b.Meta.ResourceVersion = strconv.FormatUint(w.rv, 10)
			return b
		}
		w.lists["podblocks"] = []api.Object{claim(10), claim(9)}
		w.list(true, w.lists)
		w.is(allThree + " d=10.244.9.0/24 d=10.244.10.0/24")
		hear := func(what string, b *api.PodBlock) {
			w.loop.take(event{api.PodBlocks(), what, b})
			w.loop.update()
		}
		states := len(w.states)
		for i := range 20 {
			b := claim(20 + i)
			hear(added, b)
			if i%2 == 0 {
				hear(deleted, b)
			}
		}
		w.is(allThree + " d=10.244.9.0/24 d=10.244.10.0/24")
		if len(w.errs) != 1 || !strings.Contains(w.errs[0], "Node d claims more PodBlocks") || len(w.states) != states {
			t.Errorf("told %q, and %d more states", w.errs, len(w.states)-states)
		}
		for i := range 20 {
			if b := kubetest.PodBlock(fmt.Sprintf("10.244.%d.0/24", 20+i), "d"); i%2 == 1 {
				hear(deleted, b)
			}
		}
		if len(w.states) != states {
			t.Error("the problem is over as soon as the controller has deleted the blocks")
		}
		time.Sleep(hoardTold)
		w.loop.update()
		if len(w.states) != states+1 || len(w.loop.hoards) != 0 {
			t.Errorf("a minute later: %d more states, hoarders %v", len(w.states)-states, w.loop.hoards)
		}
	})
}

// Members that report something of themselves are no reason to look whether a controller lives.
func TestDepends(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	stranger := kubetest.MeshNode("d", kubetest.PeerIDs(t, 4)[3])
	for _, c := range []struct {
		what string
		o    api.Object
		want bool
	}{
		{modified, w.lists["meshnodes"][1], false}, {added, w.lists["meshnodes"][1], false},
		{added, stranger, true}, {modified, stranger, true}, {deleted, stranger, true},
	} {
		again := wake.NewOne()
		w.loop.source.depends = again
		w.watch(api.MeshNodes(), c.what, c.o)
		if got := len(again) > 0; got != c.want {
			t.Errorf("%s %s: %v", c.what, c.o.Metadata().Name, got)
		}
	}
}
