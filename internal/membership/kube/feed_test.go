package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// recordsOf are NodeRecords of Nodes, of version rv.
func recordsOf(rv string, nodes []api.Object) (out []api.Object) {
	for _, o := range nodes {
		n := o.(*api.Node)
		out = append(out, &api.NodeRecord{Meta: api.Meta{Name: n.Meta.Name, UID: "r-" + n.Meta.Name, ResourceVersion: rv}, Spec: n.RecordSpec()})
	}
	return out
}

// newRecordsWorld is a world in which the NodeRecords of those Nodes are in force.
func newRecordsWorld(t *testing.T) (w *world, nodes []api.Object) {
	t.Helper()
	w = newWorld(t)
	w.loop.steer()
	w.list(true, w.lists)
	w.hears(kept(true))
	nodes = slices.Clone(w.lists["nodes"])
	w.rv = 200
	w.hears(w.provedList(api.NodeRecords(), recordsOf("150", nodes)))
	if !w.loop.known.feed.records {
		t.Fatal("NodeRecords are not in force")
	}
	return w, nodes
}

// hears gives the loop a message as a reflector or the lessor sends it.
func (w *world) hears(m any) {
	w.loop.take(m)
	w.loop.steer()
	w.loop.update()
}

func (w *world) provedList(k api.Kind, items []api.Object) listed {
	return listed{kind: k, items: items, rv: w.rv, proof: &proof{cluster: w.uid, version: w.rv, ownUID: "m-a"}}
}

// NodeRecords take over when they say what the Nodes say, and then only they count; a removed Node stays removed; Nodes
// take over again without losing anybody.
func TestChangeOver(t *testing.T) {
	w := newWorld(t)
	w.loop.steer()
	w.list(true, w.lists)
	nodes := slices.Clone(w.lists["nodes"])
	states := len(w.states)
	follows := func(want ...string) {
		t.Helper()
		if got := w.followed; !slices.Equal(got, want) {
			t.Errorf("followed %v, want %v", got, want)
		}
	}
	follows("nodes")
	w.hears(kept(true))
	follows("nodes", "noderecords")

	w.rv = 200
	lagging := recordsOf("150", nodes)
	lagging[1].(*api.NodeRecord).Spec.PodCIDRs = []string{"10.244.9.0/24"}
	w.hears(w.provedList(api.NodeRecords(), lagging))
	unproved := w.provedList(api.NodeRecords(), recordsOf("150", nodes))
	unproved.proof = nil
	w.hears(unproved)
	if w.loop.known.feed.records {
		t.Fatal("NodeRecords that say something else, or are unproved, took over")
	}
	w.hears(event{api.NodeRecords(), modified, recordsOf("210", nodes[1:2])[0]})
	if !w.loop.known.feed.records || len(w.states) != states {
		t.Fatalf("in force: %v; States %v", w.loop.known.feed.records, w.states[states:])
	}
	follows("noderecords")

	// What is still under way of Nodes says nothing; the own Node's conditions are known all the same.
	late := *nodes[2].(*api.Node)
	w.hears(event{api.Nodes(), deleted, &late})
	if len(w.states) != states {
		t.Errorf("States %v", w.states[states:])
	}
	own := *nodes[0].(*api.Node)
	own.Meta.ResourceVersion, own.Status.Conditions = "90", []api.Condition{{Type: networkUnavailable, Status: "False"}}
	w.hears(event{api.Nodes(), modified, &own})
	if want := <-w.loop.want; api.FindCondition(want.node.Status.Conditions, networkUnavailable) == nil || want.node.Record == "" {
		t.Errorf("the own Node is %+v", want.node)
	}

	w.hears(event{api.NodeRecords(), deleted, recordsOf("220", nodes[2:3])[0]})
	if got := w.states[len(w.states)-1]; got != "a=10.244.1.0/24 b=10.244.2.0/24" {
		t.Errorf("after a removal: %s", got)
	}
	// A controller that was late makes the record again, and it is deleted: nothing stays.
	again := recordsOf("230", nodes[2:3])[0]
	again.Metadata().UID = "r-late"
	w.hears(event{api.NodeRecords(), added, again})
	gone := recordsOf("231", nodes[2:3])[0]
	gone.Metadata().UID = "r-late"
	w.hears(event{api.NodeRecords(), deleted, gone})
	w.hears(event{api.NodeRecords(), added, again})
	if got := w.states[len(w.states)-1]; got != "a=10.244.1.0/24 b=10.244.2.0/24" {
		t.Errorf("after a late record: %s", got)
	}

	w.hears(kept(false))
	follows("noderecords", "nodes")
	states = len(w.states)
	w.rv = 300
	w.hears(w.provedList(api.Nodes(), nodes[:2]))
	follows("nodes")
	if w.loop.known.feed.records || len(w.states) != states {
		t.Errorf("in force: records %v; States %v", w.loop.known.feed.records, w.states[states:])
	}
	w.hears(event{api.NodeRecords(), added, recordsOf("310", nodes[2:3])[0]})
	if len(w.states) != states {
		t.Errorf("a record counts that is not in force: %v", w.states[states:])
	}
}

// Another history, seen in NodeRecords, begins with Nodes, and nobody leaves.
func TestChangeOverHistory(t *testing.T) {
	w, nodes := newRecordsWorld(t)
	states := len(w.states)
	w.uid = "cluster-2"
	w.hears(w.provedList(api.NodeRecords(), recordsOf("150", nodes[:1])))
	if w.loop.known.feed.records || len(w.states) != states || w.loop.known.history.cluster != "cluster-2" {
		t.Errorf("records in force: %v; States %v; cluster %s", w.loop.known.feed.records, w.states[states:], w.loop.known.history.cluster)
	}
}

// An agent that may not list Nodes, as a kubelet's certificate, takes the NodeRecords, immediately if a controller keeps them and
// otherwise once the refusal has lasted; what they say of a
// member's blocks counts once its Node says the same. Without NodeRecords the refusal is reported.
func TestNodesForbidden(t *testing.T) { synctest.Test(t, testNodesForbidden) }

func testNodesForbidden(t *testing.T) {
	forbidden := trouble{kind: api.Nodes(), err: apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no")), refused: true}
	w := newWorld(t)
	w.list(true, w.lists)
	snap := w.loop.known.last
	w.restart(&snap)
	w.loop.steer()
	w.hears(forbidden)
	if len(w.errs) > 0 || !slices.Equal(w.followed, []string{"nodes"}) {
		t.Errorf("before it is known whether there are NodeRecords: %q, followed %v", w.errs, w.followed)
	}
	network := *w.lists["podnetworks"][0].(*api.PodNetwork)
	network.Status.RecordsLease = "edgemesh/edgemesh-controller"
	for kind, items := range map[string][]api.Object{"podnetworks": {&network}, "meshnodes": w.lists["meshnodes"], "podblocks": nil} {
		i := slices.IndexFunc(api.Kinds(), func(k api.Kind) bool { return k.Name == kind })
		w.hears(w.provedList(api.Kinds()[i], items))
	}
	time.Sleep(refusedLong)                                                                     // sleep: in a bubble
	w.hears(trouble{kind: api.Nodes(), err: errors.Join(errors.New("timeout"), forbidden.err)}) // the proof's refusal, not the list's
	w.hears(forbidden)
	if len(w.errs) > 0 || !slices.Equal(w.followed, []string{"nodes"}) {
		t.Errorf("refused twice: %q, followed %v", w.errs, w.followed)
	}
	w.hears(forbidden)
	if !slices.Equal(w.followed, []string{"nodes", "noderecords"}) {
		t.Errorf("followed %v", w.followed)
	}
	var read map[string]int
	w.loop.known.disputes.read = func(open map[string]int) { read = open }
	nodes := slices.Clone(w.lists["nodes"])
	forged := recordsOf("150", nodes)
	forged[1].(*api.NodeRecord).Spec.PodCIDRs = []string{"10.244.9.0/24"}
	w.rv = 200
	w.hears(w.provedList(api.NodeRecords(), forged))
	if w.is(allThree); !w.loop.known.feed.records || len(w.errs) > 0 || len(read) != 1 {
		t.Errorf("in force: %v; %q; read: %v", w.loop.known.feed.records, w.errs, read)
	}
	w.hears(vouched{name: "b", serial: read["b"], node: kubetest.Node("b", 2, "10.244.9.0/24")})
	w.is("a=10.244.1.0/24 b=10.244.9.0/24 c=10.244.3.0/24")

	// A controller ends, and Nodes are still refused: the records stay in force.
	w.hears(kept(true))
	w.hears(kept(false))
	w.hears(forbidden)
	if !w.loop.known.feed.records || len(w.errs) > 0 || !slices.Equal(slices.Sorted(slices.Values(w.followed)), []string{"noderecords", "nodes"}) {
		t.Errorf("in force: %v; %q; followed %v", w.loop.known.feed.records, w.errs, w.followed)
	}
	// The right is back: Nodes count, and stay in force.
	w.rv = 300
	w.hears(w.provedList(api.Nodes(), nodes))
	w.is(allThree)
	if w.hears(trouble{kind: api.Nodes()}); w.loop.known.feed.records || !slices.Equal(w.followed, []string{"nodes"}) {
		t.Errorf("NodeRecords in force: %v; followed %v", w.loop.known.feed.records, w.followed)
	}
	// Where Nodes were listed in this run, no refusal puts records in force that no controller keeps: it is reported.
	for range 3 {
		w.hears(forbidden)
		time.Sleep(refusedLong) // sleep: in a bubble
	}
	if w.is(allThree); w.loop.known.feed.records || len(w.errs) == 0 || !strings.Contains(w.errs[0], "nodes is forbidden") {
		t.Errorf("NodeRecords in force: %v; %q", w.loop.known.feed.records, w.errs)
	}
	w.hears(kept(true))
	if !w.loop.known.feed.records {
		t.Error("a controller keeps the NodeRecords, and they are not in force")
	}

	alone := newWorld(t)
	alone.loop.steer()
	alone.hears(forbidden)
	alone.hears(alone.provedList(api.Kinds()[slices.IndexFunc(api.Kinds(), func(k api.Kind) bool { return k.Name == "podnetworks" })], alone.lists["podnetworks"]))
	if len(alone.errs) == 0 || !strings.Contains(alone.errs[0], "nodes is forbidden") {
		t.Errorf("without NodeRecords: %q", alone.errs)
	}
}
