package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/seldom"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
)

const (
	// sayEvery is how often the PodNetwork is read: it may have been made again.
	sayEvery = 30 * time.Second
	// deaf is how long Nodes may be silent before agents are to follow these themselves.
	deaf = 10 * time.Second
)

// copying is how often a Node's changes are copied: labels and blocks change once in a node's life.
func copying() pace {
	return pace{every: 10 * time.Second, most: 6, says: "a Node's labels or blocks change again and again: its NodeRecord follows slowly"}
}

// records keeps a NodeRecord of each Node. All of it belongs to the goroutine in run, and during a round to those that it
// waits for.
type records struct {
	api      cluster
	loop     *watchdog.Loop
	lease    string // whose holder keeps them, NAMESPACE/NAME
	log      *slog.Logger
	metrics  *metrics
	reported seldom.Log
	version  func(context.Context) (string, error) // the API server's
	pace     pace                                  // of changes that are copied
	failed   map[string]bool                       // names whose change has been counted, and could not be written: trying again is no other one

	signed    chan map[string]string // of the signer, latest: what it has signed about each member; nil without one
	grants    *atomic.Bool           // of the signer
	statement map[string]string      // received last; nil: not yet, and what records have stays
	exist     chan map[string]bool   // to the signer, latest: names of Nodes
	dropped   dropped
	moved     bool // a Node was made or deleted, and the signer does not know it

	nodes  map[string]*api.Node       // nil: not listed yet
	made   map[string]*api.NodeRecord // likewise
	dirty  map[string]bool            // names to look at
	behind map[string]time.Time       // what cannot be done now, and since when
}

// run keeps the records until ctx ends.
func (r *records) run(ctx context.Context) {
	in := make(chan news)
	var readers sync.WaitGroup
	defer readers.Wait()
	readers.Go(func() { follow(ctx, r.api, api.Nodes(), trimNode, in) })
	readers.Go(func() { follow(ctx, r.api, api.NodeRecords(), nil, in) })
	r.dirty, r.behind = map[string]bool{}, map[string]time.Time{}
	say := time.NewTicker(sayEvery)
	defer say.Stop()
	again := time.NewTimer(sweepAgain)
	defer again.Stop()
	said := "-" // by whoever led before
	for {
		speak := false
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			r.hear(ctx, n)
		case r.statement = <-r.signed:
			r.markAll()
		case <-again.C:
		case <-say.C:
			speak = true
		}
		if r.nodes != nil && r.made != nil {
			err := r.round(ctx)
			if ctx.Err() != nil {
				return
			}
			r.note("write them", err)
		}
		if r.moved && r.nodes != nil && r.exist != nil {
			names := make(map[string]bool, len(r.nodes))
			for name := range r.nodes {
				names[name] = true
			}
			wake.Latest(r.exist, names)
			r.moved = false
		}
		want := said
		switch {
		case r.late():
			want = ""
		case len(r.behind) == 0 && r.nodes != nil && r.made != nil:
			want = r.lease
		}
		if want != "-" && (want != said || speak) {
			err := r.say(ctx, want)
			r.note("announce them", err)
			if err == nil {
				said = want
			}
		}
		if len(r.behind) > 0 || len(r.dirty) > 0 {
			again.Reset(sweepAgain)
		}
	}
}

// note remembers since when something cannot be done, and says so.
func (r *records) note(what string, err error) {
	if err == nil {
		delete(r.behind, what)
		return
	}
	if r.behind[what].IsZero() {
		r.behind[what] = time.Now()
	}
	r.metrics.failures.Inc()
	if r.reported.Due(what) {
		r.log.Warn("cannot keep the NodeRecords; agents soon follow Nodes instead; retrying", "cannot", what, "err", err)
	}
}

// late reports whether something has failed for so long that agents had better follow Nodes.
func (r *records) late() bool {
	for _, since := range r.behind {
		if time.Since(since) > deaf {
			return true
		}
	}
	return false
}

// trimNode leaves what a NodeRecord has.
func trimNode(o api.Object) {
	n, ok := o.(*api.Node)
	if !ok {
		return
	}
	maps.DeleteFunc(n.Meta.Labels, func(key, _ string) bool {
		return key != mesh.SiteLabel && !strings.HasPrefix(key, mesh.RestrictedPrefix)
	})
	n.Meta.Annotations, n.Meta.OwnerReferences, n.Status = nil, nil, api.NodeStatus{}
}

// hear takes what the API says of Nodes and NodeRecords.
func (r *records) hear(ctx context.Context, n news) {
	_, end := r.loop.Begin(ctx)
	defer end()
	if r.note("follow "+n.kind.Name, n.err); n.err != nil {
		return
	}
	isNode := n.kind.Name == api.Nodes().Name
	switch {
	case n.all && isNode:
		r.markAll()
		r.nodes, r.moved = map[string]*api.Node{}, true
	case n.all:
		r.markAll()
		r.made = map[string]*api.NodeRecord{}
	}
	for _, o := range n.list {
		r.take(client.Event{What: client.Added, Object: o})
	}
	if !n.all {
		r.take(n.event)
	}
	r.metrics.records.Set(float64(len(r.made)))
}

// markAll marks everything known so far as dirty.
func (r *records) markAll() {
	for name := range r.nodes {
		r.dirty[name] = true
	}
	for name := range r.made {
		r.dirty[name] = true
	}
}

// take notes a change.
func (r *records) take(e client.Event) {
	name := e.Object.Metadata().Name
	gone := e.What == client.Deleted
	switch o := e.Object.(type) {
	case *api.Node:
		old := r.nodes[name]
		if gone || o.Meta.DeletionTimestamp != nil {
			delete(r.nodes, name)
		} else {
			r.nodes[name] = o
		}
		r.moved = r.moved || (old == nil) != (r.nodes[name] == nil)
		if old != nil && r.nodes[name] != nil && old.RecordSpec().Equal(o.RecordSpec()) {
			return // its kubelet reports
		}
	case *api.NodeRecord:
		if gone || o.Meta.DeletionTimestamp != nil {
			delete(r.made, name)
		} else {
			r.made[name] = o
		}
	}
	r.dirty[name] = true
}

// round makes the records of the names that changed agree with the Nodes, those of removed Nodes first. What fails stays
// dirty.
func (r *records) round(ctx context.Context) error {
	ctx, end := r.loop.Begin(ctx)
	defer end()
	if len(r.dirty) == 0 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(r.dirty), func(a, b string) int {
		if x, y := r.nodes[a] == nil, r.nodes[b] == nil; x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	clear(r.dirty)
	results, late := make([]result, len(names)), map[string]bool{}
	slots := make(chan struct{}, workers)
	var all sync.WaitGroup
	for i, name := range names {
		node, made := r.nodes[name], r.made[name]
		if node != nil && made != nil && r.spec(node, made).Equal(made.Spec) || node == nil && made == nil {
			results[i] = result{node, made, nil}
			continue
		}
		if node != nil && made != nil && !r.failed[name] && r.pace.exceeded(name, r.log) { // its own writes are not answered with as many
			results[i], late[name] = result{node, made, nil}, true
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results[i] = r.agree(ctx, name, node, made)
		})
	}
	all.Wait()
	var failed error
	r.failed = map[string]bool{}
	for i, name := range names {
		x := results[i]
		if x.err != nil {
			failed = fmt.Errorf("NodeRecord %s: %w", name, x.err)
			r.dirty[name], r.failed[name] = true, true
		}
		if x.made == nil {
			delete(r.made, name)
		} else {
			r.made[name] = x.made
		}
		if x.node == nil {
			r.moved = r.moved || r.nodes[name] != nil
			delete(r.nodes, name)
			r.pace.forget(name)
		}
	}
	maps.Copy(r.dirty, late)
	return failed
}

// result is a Node and its record as they are now.
type result struct {
	node *api.Node
	made *api.NodeRecord
	err  error
}

// agree makes the record of one Node what it should be. Whatever it does is safe to do late: a deletion names the record,
// a change the version that was read, and before a record is made the Node is read.
func (r *records) agree(ctx context.Context, name string, node *api.Node, made *api.NodeRecord) result {
	path := api.NodeRecords().Path(name)
	if made != nil && (node == nil || node.Meta.UID != made.Spec.NodeUID) {
		if err := removed(ctx, r.api, path, made.Meta.UID); err != nil {
			return result{node, made, err}
		}
		if node == nil {
			r.log.Info("a Node is gone, and its record with it", "node", name)
		}
		made = nil
	}
	if node == nil {
		return result{}
	}
	var got api.NodeRecord
	spec := r.spec(node, made)
	if made != nil {
		patch := map[string]any{"metadata": map[string]string{"uid": made.Meta.UID, "resourceVersion": made.Meta.ResourceVersion}, "spec": change(made.Spec, spec)}
		if err := r.api.Patch(ctx, path, client.Merge, nil, patch, &got); err != nil {
			return result{node, made, err}
		}
		if got.Spec.Signed != spec.Signed {
			r.dropped.note("noderecords", r.log)
		}
		return result{node, &got, nil}
	}
	var now api.Node
	err := r.api.Get(ctx, api.Nodes().Path(name), &now)
	if apierrors.IsNotFound(err) || err == nil && (now.Meta.UID != node.Meta.UID || now.Meta.DeletionTimestamp != nil) {
		return result{} // its event comes
	}
	if err == nil {
		in := api.NodeRecord{
			Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "NodeRecord"},
			Meta: api.Meta{Name: name, OwnerReferences: []api.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.Meta.UID}}},
			Spec: spec,
		}
		err = r.api.Create(ctx, api.NodeRecords().Path(""), in, &got)
	}
	if err != nil {
		return result{node, nil, err}
	}
	return result{node, &got, nil}
}

// spec is what the record of a Node should be.
func (r *records) spec(node *api.Node, made *api.NodeRecord) api.NodeRecordSpec {
	out := node.RecordSpec()
	if out.Signed = r.statement[node.Meta.Name]; made != nil && r.dropped.lately() {
		out.Signed = made.Spec.Signed
	}
	if made == nil || made.Spec.NodeUID != node.Meta.UID || made.Spec.Signed == out.Signed {
		return out
	}
	if r.statement == nil || out.Signed == "" {
		out.Signed = made.Spec.Signed
	} else if r.grants.Load() && otherKey(made.Spec.Signed, out.Signed) {
		out.Signed = made.Spec.Signed
		if r.reported.Due(node.Meta.Name + " has another key") {
			r.log.Warn("a node's peer ID was changed in the API, and its statement keeps the old one: sign the node by `edgemesh-agent membership sign --name NODE --peer-id ID "+
				"--pod-cidr BLOCK` for the PodNetwork's spec.signed, or delete its Node and let it join again; if nobody installed it again, find out who changed it", "node", node.Meta.Name)
		}
	}
	return out
}

// otherKey reports whether the same signer says another peer ID: of one Node only the operator's key may say that, or whoever
// writes MeshNodes would replace members.
func otherKey(before, now string) bool {
	x, failed := signed.Read(before)
	y, err := signed.Read(now)
	return failed == nil && err == nil && x.Signer == y.Signer && x.ID != y.ID
}

// replacing is a merge patch that makes a map is where it was: what is gone is null.
func replacing(was, is map[string]string) map[string]any {
	out := map[string]any{}
	for key := range was {
		out[key] = nil
	}
	for key, value := range is {
		out[key] = value
	}
	return out
}

// change is a merge patch from was to is.
func change(was, is api.NodeRecordSpec) map[string]any {
	out := map[string]any{"podCIDRs": is.PodCIDRs, "labels": replacing(was.Labels, is.Labels)}
	if was.Signed != is.Signed {
		out["signed"] = is.Signed
	}
	return out
}

// dropped remembers that the API drops what is signed.
type dropped struct{ until atomic.Int64 }

// lately reports whether it did so a short while ago: writing it again makes only more versions.
func (d *dropped) lately() bool { return time.Now().Unix() < d.until.Load() }

func (d *dropped) note(plural string, log *slog.Logger) {
	const wait = 10 * time.Minute
	if !d.lately() {
		d.until.Store(time.Now().Add(wait).Unix())
		log.Warn("the API drops what this controller signs, because its CustomResourceDefinitions are of an earlier release; nothing else suffers. Run: kubectl apply -f manifests/edgemesh/crds", "kind", plural, "retrying after", wait)
	}
}

// say announces the Lease whose renewal means that the records are kept; "" makes agents follow Nodes.
func (r *records) say(ctx context.Context, lease string) error {
	var n api.PodNetwork
	path := api.PodNetworks().Path(api.NetworkName)
	if err := r.api.Get(ctx, path, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // nobody reads it yet
		}
		return fmt.Errorf("read the PodNetwork: %w", err)
	}
	if !n.Spec.TrustedNodes && r.reported.Due("unguarded") {
		if v, err := r.version(ctx); err == nil && client.Unguarded(v) != nil {
			r.log.Warn("nothing keeps a node from writing what is of others", "err", client.Unguarded(v))
		}
	}
	if n.Status.RecordsLease == lease {
		return nil
	}
	status := map[string]any{"recordsLease": lease}
	if lease == "" {
		status["recordsLease"] = nil
	}
	patch := map[string]any{"status": status}
	if err := r.api.Patch(ctx, path+"/status", client.Merge, nil, patch, &n); err != nil {
		return fmt.Errorf("announce the NodeRecords in the PodNetwork's status: %w", err)
	}
	r.log.Info("agents may follow NodeRecords while this Lease is renewed, and follow Nodes if there is none", "lease", lease)
	return nil
}
