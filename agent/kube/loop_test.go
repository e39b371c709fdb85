package kube

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
)

// world is an API and what a loop makes of it.
type world struct {
	t      *testing.T
	loop   *loop
	dir    string
	lists  map[string][]api.Object
	rv     uint64
	uid    string // of the cluster
	states []string
	errs   []string
}

// newWorld has nodes a (this one), b and c.
func newWorld(t *testing.T) *world {
	t.Helper()
	id := ids(t, 3)
	w := &world{t: t, dir: t.TempDir(), rv: 100, uid: "cluster-1"}
	w.lists = map[string][]api.Object{
		"podnetworks": {podNetwork("10.244.0.0/16")},
		"nodes":       {node("a", 1, "10.244.1.0/24"), node("b", 2, "10.244.2.0/24"), node("c", 3, "10.244.3.0/24")},
		"meshnodes":   {member("a", id[0]), member("b", id[1]), member("c", id[2])},
		"podblocks":   {},
	}
	w.restart(nil)
	return w
}

// restart begins a life of the agent, from a snapshot or not.
func (w *world) restart(snap *mesh.State) {
	w.t.Helper()
	s, err := newSource(Config{Server: "https://127.0.0.1:1", NodeName: "a", StateDir: w.dir, Log: slog.New(slog.DiscardHandler),
		PeerID: mesh.PeerID(w.lists["meshnodes"][0].(*api.MeshNode).Spec.PeerID)}, environment{os.Getenv, "/nonexistent"})
	if err != nil {
		w.t.Fatal(err)
	}
	if snap != nil {
		s.begin(*snap, loadMemory(w.dir))
	}
	w.loop = &loop{Source: s, relist: map[string]chan struct{}{}, want: make(chan want, 1), began: time.Now(),
		onState: func(s mesh.State) { w.states = append(w.states, text(s)) },
		onErr:   func(err error) { w.errs = append(w.errs, err.Error()) }}
	for _, k := range kinds() {
		w.loop.relist[k.name] = make(chan struct{}, 1)
	}
}

// list answers every list, proved or not.
func (w *world) list(proved bool, lists map[string][]api.Object) {
	for _, k := range kinds() {
		m := listed{kind: k, items: lists[k.name], rv: w.rv}
		if proved {
			m.proof = &proof{cluster: w.uid, version: w.rv, ownUID: "m-a"}
		}
		w.loop.take(m)
	}
	w.loop.update()
}

func (w *world) watch(k kind, what string, o api.Object) {
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
	if got := text(w.loop.last); got != want {
		w.t.Errorf("members %q, want %q", got, want)
	}
}

const (
	allThree = "a=10.244.1.0/24 b=10.244.2.0/24 c=10.244.3.0/24"
	withoutC = "a=10.244.1.0/24 b=10.244.2.0/24"
)

func TestLoopWaitsForProofAtFirst(t *testing.T) {
	w := newWorld(t)
	w.list(false, w.lists)
	if w.loop.have {
		t.Fatal("a membership was handed out that may be stale")
	}
	w.list(true, w.lists)
	w.is(allThree)
	// A cache that cannot rehearse must not keep a node out for ever.
	w.restart(nil)
	w.loop.began = time.Now().Add(-time.Hour)
	w.list(false, w.lists)
	w.is(allThree)
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
	for _, k := range []kind{kindNodes(), kindMeshNodes()} {
		w := newWorld(t)
		w.list(true, w.lists)
		w.watch(k, deleted, w.lists[k.name][2])
		w.is(withoutC)
		w.watch(k, added, w.lists[k.name][2]) // a cache replays it
		w.is(withoutC)
	}
}

// After a restart from the snapshot, hearsay adds what is new and changes nothing else.
func TestLoopFromSnapshot(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.last
	id := ids(t, 2)
	stale := map[string][]api.Object{}
	maps.Copy(stale, w.lists)
	oldKey, news, zombie := member("b", id[0]), member("d", id[1]), member("z", id[0])
	newsNode, zombieNode := node("d", 4, "10.244.4.0/24"), node("z", 4, "10.244.5.0/24")
	news.Meta.ResourceVersion, newsNode.Meta.ResourceVersion = "150", "150"
	stale["meshnodes"] = []api.Object{oldKey, news, zombie}
	stale["nodes"] = []api.Object{newsNode, zombieNode}
	w.restart(&snap)
	w.rv = 160
	w.list(false, stale)
	w.is(allThree + " d=10.244.4.0/24")
	for _, n := range w.loop.last.Nodes {
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
	snap := w.loop.last
	w.restart(&snap)
	w.list(false, nil)
	w.is(allThree)
	w.watch(kindMeshNodes(), deleted, w.lists["meshnodes"][2])
	w.is(withoutC)
}

// The deletion of an object that had a member's name before is no news of the member,
// also after a restart.
func TestLoopDeletionOfAnotherObject(t *testing.T) {
	for _, k := range []kind{kindNodes(), kindMeshNodes()} {
		w := newWorld(t)
		w.list(true, w.lists)
		snap := w.loop.last
		w.restart(&snap)
		w.list(false, nil) // a cache that has lost everything
		var earlier api.Object = &api.Node{Meta: api.Meta{Name: "c", UID: "earlier", ResourceVersion: "150"}}
		if k.name == kindMeshNodes().name {
			earlier = &api.MeshNode{Meta: api.Meta{Name: "c", UID: "earlier", ResourceVersion: "150"}}
		}
		w.watch(k, deleted, earlier)
		w.is(allThree)
		w.watch(k, deleted, w.lists[k.name][2])
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
			snap := w.loop.last
			w.restart(&snap) // and over a restart
			w.list(true, onlyA)
			w.is(allThree)
			w.rv++
			w.list(true, w.without("c"))
			w.is(allThree)
			snap = w.loop.last
			w.restart(&snap) // b is an ordinary member again, also after a restart
			w.rv++
			w.list(true, onlyA) // b was in this history: its absence is proved
			w.is("a=10.244.1.0/24 c=10.244.3.0/24")
			net := podNetwork("10.244.0.0/16")
			net.Meta.ResourceVersion = "2000"
			net.Meta.Annotations = map[string]string{api.ForgetAnnotation: "x, c"}
			w.watch(kindPodNetworks(), modified, net)
			w.is("a=10.244.1.0/24")
		})
	}
}

// A snapshot without memory beside it is of an unknown history.
func TestLoopWithoutMemory(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.last
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
	w.watch(kindPodNetworks(), deleted, w.lists["podnetworks"][0])
	w.is(allThree)
}

// The own Node is deleted: the State stays, the reason is told; an unproved list
// without it changes nothing.
func TestLoopOwnNodeDeleted(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	w.watch(kindNodes(), deleted, w.lists["nodes"][0])
	w.is(allThree)
	if len(w.errs) == 0 || !strings.Contains(w.errs[len(w.errs)-1], "the API has no Node a") {
		t.Errorf("told %q", w.errs)
	}
}

// A problem is told once, and its end by the State once more.
func TestLoopReports(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	told, states := len(w.errs), len(w.states)
	for range 3 {
		w.loop.take(trouble{kindNodes(), os.ErrDeadlineExceeded})
		w.loop.update()
	}
	if len(w.errs) != told+1 {
		t.Errorf("told %d times", len(w.errs)-told)
	}
	w.loop.take(trouble{kindNodes(), nil})
	w.loop.update()
	if len(w.states) != states+1 {
		t.Errorf("the end was told %d times", len(w.states)-states)
	}
}
