package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// A NodeRecord that moves a member's block, to another one that the attacker chose, to a node that was no member, or after the
// record of its owner was deleted, counts for nothing until the Node says the same; what the Node says counts then.
func TestForgedRecords(t *testing.T) {
	w, nodes := newRecordsWorld(t)
	var log bytes.Buffer
	var read []string
	w.loop.known.disputes.log = slog.New(slog.NewTextHandler(&log, nil))
	w.loop.known.disputes.read = func(open map[string]int) { read = slices.Sorted(maps.Keys(open)) }
	rv := 200
	record := func(node int, blocks ...string) *api.NodeRecord {
		rv++
		r := recordsOf(fmt.Sprint(rv), nodes[node:node+1])[0].(*api.NodeRecord)
		r.Spec.PodCIDRs = blocks
		return r
	}
	states := len(w.states)
	unchanged := func(when string, wantRead ...string) {
		t.Helper()
		if len(w.states) != states || !slices.Equal(read, wantRead) {
			t.Errorf("%s: States %v; read %v, want %v", when, w.states[states:], read, wantRead)
		}
	}
	vouch := func(name string, err error, blocks ...string) {
		n := kubetest.Node(name, 3, blocks...)
		w.hears(vouched{name: name, serial: w.loop.known.disputes.open[name].serial, node: n, err: err})
	}
	w.hears(event{api.NodeRecords(), modified, record(1, "10.244.3.0/24")})
	unchanged("another's block", "b")
	w.hears(event{api.NodeRecords(), modified, record(2, "10.244.9.0/24")})
	unchanged("another block", "b", "c")
	vouch("b", nil, "10.244.2.0/24")
	vouch("b", nil, "10.244.2.0/24")
	vouch("c", &apierrors.StatusError{})
	unchanged("the Node says otherwise, or does not answer", "b", "c")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, "node=b record=[10.244.3.0/24] before=[10.244.2.0/24]") {
		t.Errorf("log: %s", text)
	}
	w.rv = 400
	rv = 300
	w.hears(w.provedList(api.NodeRecords(), []api.Object{record(0, "10.244.1.0/24"), record(1, "10.244.3.0/24", "10.244.2.0/24"), record(2, "10.244.3.0/24")}))
	unchanged("in a list", "b")
	rv = 400
	w.hears(event{api.NodeRecords(), modified, record(1, "10.244.2.0/24")})
	unchanged("the record is repaired")

	// The owner's record is deleted, and a node of the attacker's gets the block.
	w.hears(event{api.NodeRecords(), deleted, record(2)})
	thief := kubetest.Node("x", 9, "10.244.3.0/25")
	bound := kubetest.MeshNode("x", kubetest.PeerIDs(t, 4)[3])
	bound.Meta.ResourceVersion = "500"
	w.hears(event{api.MeshNodes(), added, bound})
	r := recordsOf(fmt.Sprint(rv+1), []api.Object{thief})[0].(*api.NodeRecord)
	r.Meta.Name = "x"
	w.hears(event{api.NodeRecords(), added, r})
	if got := w.states[len(w.states)-1]; got != "a=10.244.1.0/24 b=10.244.2.0/24" || !slices.Equal(read, []string{"x"}) {
		t.Errorf("%s; read %v", got, read)
	}
	w.hears(vouched{name: "x", serial: w.loop.known.disputes.open["x"].serial, node: thief})
	if got := w.states[len(w.states)-1]; got != "a=10.244.1.0/24 b=10.244.2.0/24 x=10.244.3.0/25" {
		t.Errorf("what the Node says does not count: %s", got)
	}

	// Whoever may not read Nodes believes the record.
	rv += 2
	w.hears(event{api.NodeRecords(), modified, record(1, "10.244.7.0/24")})
	vouch("b", apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "b", nil))
	if got := w.states[len(w.states)-1]; got != "a=10.244.1.0/24 b=10.244.7.0/24 x=10.244.3.0/25" || len(read) > 0 {
		t.Errorf("%s; read %v", got, read)
	}
}

// A NodeRecord that is deleted and made again is no other thing than one that changes: it counts if it says what the member had
// last, and otherwise once the Node says it. One that covers the member's own block and a neighbour's takes neither.
func TestForgedRecordsMadeAgain(t *testing.T) {
	w, nodes := newRecordsWorld(t)
	var read []string
	w.loop.known.disputes.read = func(open map[string]int) { read = slices.Sorted(maps.Keys(open)) }
	rv := 200
	again := func(node int, created time.Time, blocks ...string) {
		old := recordsOf(fmt.Sprint(rv+1), nodes[node:node+1])[0].(*api.NodeRecord)
		old.Meta.UID = w.loop.known.node(old.Meta.Name).Record
		w.hears(event{api.NodeRecords(), deleted, old})
		rv += 2
		r := recordsOf(fmt.Sprint(rv), nodes[node:node+1])[0].(*api.NodeRecord)
		r.Meta.UID, r.Spec.PodCIDRs, r.Spec.Created = fmt.Sprintf("again-%d", rv), blocks, &created
		w.hears(event{api.NodeRecords(), added, r})
	}
	want := func(when, state string, wantRead ...string) {
		t.Helper()
		if got := w.states[len(w.states)-1]; got != state || !slices.Equal(read, wantRead) {
			t.Errorf("%s: %s, want %s; read %v, want %v", when, got, state, read, wantRead)
		}
	}
	again(1, time.Unix(0, 0), "10.244.2.0/23")
	want("its own block and a neighbour's", "a=10.244.1.0/24 c=10.244.3.0/24", "b")
	again(1, time.Unix(0, 0), "10.244.2.0/24")
	want("what it had", "a=10.244.1.0/24 b=10.244.2.0/24 c=10.244.3.0/24")
	again(2, time.Unix(0, 0), "10.244.77.0/24")
	want("nobody's block", "a=10.244.1.0/24 b=10.244.2.0/24", "c")

	// What is older than what is known opens no dispute and ends none.
	late := recordsOf("199", nodes[1:2])[0].(*api.NodeRecord)
	late.Spec.PodCIDRs = []string{"10.244.9.0/24"}
	w.hears(event{api.NodeRecords(), modified, late})
	w.hears(event{api.NodeRecords(), modified, recordsOf("199", nodes[2:])[0]})
	want("late", "a=10.244.1.0/24 b=10.244.2.0/24", "c")

	// The age that counts where two have a block is the Node's.
	created := w.loop.known.node("a").Meta.CreationTimestamp
	r := recordsOf("900", nodes[:1])[0].(*api.NodeRecord)
	r.Spec.Created = &time.Time{}
	w.hears(event{api.NodeRecords(), modified, r})
	if got := w.loop.known.node("a").Meta.CreationTimestamp; !reflect.DeepEqual(got, created) {
		t.Errorf("a record changes when its Node was created: %v, was %v", got, created)
	}

	// A dispute ends with the record.
	gone := recordsOf("950", nodes[2:])[0].(*api.NodeRecord)
	gone.Meta.UID = w.loop.known.node("c").Record
	w.hears(event{api.NodeRecords(), deleted, gone})
	want("deleted", "a=10.244.1.0/24 b=10.244.2.0/24")

	// After an hour a block is anybody's: allocators use blocks again.
	later := time.Now().Add(goneFor)
	w.loop.known.disputes.now, w.loop.known.disputes.held = func() time.Time { return later }, nil
	fresh := recordsOf("960", nodes[2:])[0].(*api.NodeRecord)
	fresh.Meta.UID, fresh.Spec.PodCIDRs = "fresh", []string{"10.244.77.0/24"}
	w.hears(event{api.NodeRecords(), added, fresh})
	want("an hour later", "a=10.244.1.0/24 b=10.244.2.0/24 c=10.244.77.0/24")
}

// New disputes are read before those that are read again, these ever less often, and all of them at a bounded rate.
func TestVoucherIsFair(t *testing.T) {
	v := voucher{pace: rate.NewLimiter(vouchPace, mostVouched)}
	open := map[string]int{}
	for i := range 3 * mostVouched {
		open[fmt.Sprintf("n%03d", i)] = i
	}
	v.follow(open)
	now, times := time.Now(), map[string]int{}
	if got := len(v.due(now)); got != mostVouched {
		t.Errorf("read immediately: %d", got)
	}
	// All of them are read within 17 s.
	for i, read := 1, mostVouched; read < len(open); i++ {
		read += len(v.due(now.Add(time.Duration(i) * time.Second)))
		if i > 17 {
			t.Fatalf("%d of %d read after %d s", read, len(open), i)
		}
	}
	open["new"] = 1000
	v.follow(open)
	delete(open, "new")
	for i := range 5 * mostVouched {
		for _, name := range v.due(now.Add(time.Duration(i) * time.Second)) {
			times[name]++
		}
	}
	if times["new"] == 0 || times["n191"] == 0 || times["n064"] == 0 {
		t.Errorf("never read: %v", times)
	}
	v.follow(map[string]int{"n000": 0, "one": 7})
	times = map[string]int{}
	for i := range 126 {
		for _, name := range v.due(now.Add(time.Duration(600+i) * time.Second)) {
			times[name]++
		}
	}
	if n := times["one"]; n != 7 { // after 0, 2, 6, 14, 30, 62 and 122 s
		t.Errorf("one dispute is read %d times in two minutes", n)
	}
}

// Members whose blocks are PodBlocks, beside another allocator's podCIDRs or none, have no Node read after a restart; a block of the pod
// network that a record gives one of them does.
func TestPodBlocksAreNoDispute(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"a", "b", "c"} {
		n := kubetest.Node(name, i+1)
		if name == "b" {
			n.Spec.PodCIDRs = []string{"10.42.1.0/24"}
		}
		w.lists["nodes"][i] = n
		b := kubetest.PodBlock(fmt.Sprintf("10.244.%d.0/24", i+1), name)
		w.lists["podblocks"] = append(w.lists["podblocks"], b)
	}
	w.list(true, w.lists)
	w.is(allThree)
	nodes, snap := slices.Clone(w.lists["nodes"]), w.loop.known.last
	w.restart(&snap)
	var read []string
	w.loop.known.disputes.read = func(open map[string]int) { read = slices.Sorted(maps.Keys(open)) }
	w.loop.known.feed.refuse(true)
	forged := recordsOf("150", nodes)
	forged[2].(*api.NodeRecord).Spec.PodCIDRs = []string{"10.244.9.0/24"}
	w.lists["noderecords"] = forged
	w.rv = 200
	w.loop.take(w.provedList(api.NodeRecords(), forged))
	if !slices.Equal(read, []string{"c"}) {
		t.Errorf("read %v", read)
	}
	delete(w.lists, "nodes")
	for _, k := range api.Kinds() {
		if k.Name != "nodes" {
			w.loop.take(w.provedList(k, w.lists[k.Name]))
		}
	}
	w.loop.update()
	w.is(allThree)
}
