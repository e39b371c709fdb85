package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// A NodeRecord that moves a member's block, to another one that the attacker chose, to a node that was no member, or after the
// record of its owner was deleted, counts for nothing until the Node says the same; what the Node says counts then.
func TestForgedRecords(t *testing.T) {
	w := newWorld(t)
	w.loop.steer()
	w.list(true, w.lists)
	w.hears(kept(true))
	nodes := slices.Clone(w.lists["nodes"])
	w.rv = 200
	w.hears(w.provedList(api.NodeRecords(), recordsOf("150", nodes)))
	if !w.loop.known.feed.records {
		t.Fatal("NodeRecords are not in force")
	}
	var log bytes.Buffer
	var read []string
	w.loop.known.disputes.log = slog.New(slog.NewTextHandler(&log, nil))
	w.loop.known.disputes.read = func(names []string) { read = slices.Clone(names) }
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
		w.hears(vouched{name, n, err})
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
	w.hears(vouched{"x", thief, nil})
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
