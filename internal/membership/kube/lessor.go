package kube

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

const (
	// selfEvery is how soon this node's own Node is read again while Nodes are not followed: it has some 8 kB. Where it says nothing
	// new more than selfCalm times in a row, it is read a quarter as often each time, down to selfRarely: for one and a half
	// times as long, 90 minutes, an annotation may have no effect. A change of its NodeRecord, which has no annotations, has it read immediately.
	selfEvery  = time.Minute
	selfRarely = time.Hour
	selfCalm   = 3 // what kubelet reports follows the blocks
	// selfKey requests it earlier, among the kinds that can be listed again.
	selfKey = "self"
)

// lessor looks at the Lease that the PodNetwork names. All of it belongs to the goroutine in run.
type lessor struct {
	c      *client.Client
	prover *prover
	out    chan<- any  // kept, theirs
	name   chan string // latest: NAMESPACE/NAME of the Lease, "" for none
	again  wake.One    // something depends on it

	leaderless *atomic.Pointer[string] // the Lease that nobody renews
}

// run reports each change of whether the NodeRecords are kept, until ctx ends.
func (l *lessor) run(ctx context.Context) {
	var r renewal
	name := ""
	doubts := 0 // looks that have to follow soon: the first one may find what was renewed long ago
	for wait := time.Duration(0); ; wait = r.pause() {
		if doubts > 0 {
			wait, doubts = min(wait, lookEvery), doubts-1
		}
		t := time.NewTimer(wait*3/4 + rand.N(wait/2+1)) // agents do not all turn at the same time
		soon := time.NewTimer(min(wait, lookEvery))
		again := (<-chan struct{})(nil)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				t.Stop()
				soon.Stop()
				return
			case name = <-l.name:
				waiting = false
			case <-soon.C:
				again = l.again
			case <-again:
				waiting, doubts = false, 1
			case <-t.C:
				waiting = false
			}
		}
		t.Stop()
		soon.Stop()
		was := r.kept
		if name == "" && !was {
			l.leaderless.Store(nil)
			continue
		}
		version, members, known := l.look(ctx, name, r)
		if !known {
			continue
		}
		r.look(version)
		if r.kept && r.silent == 0 && !send(ctx, l.out, theirs(members)) {
			return
		}
		if unrenewed := name; r.kept || name == "" {
			l.leaderless.Store(nil)
		} else if r.silent >= silentLooks {
			l.leaderless.Store(&unrenewed)
		}
		if r.kept == was {
			continue
		}
		if !send(ctx, l.out, kept(r.kept)) {
			return
		}
	}
}

// look reads the Lease. What an API that cannot be reached says, or an edge-local cache without uplink, is not known.
func (l *lessor) look(ctx context.Context, name string, r renewal) (version, members string, known bool) {
	namespace, lease, ok := strings.Cut(name, "/")
	if !ok {
		return "", "", true
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var got api.Lease
	err := l.c.Get(ctx, api.LeasePath(namespace, lease), &got)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
	case err != nil:
		return "", "", false
	case got.Spec.HolderIdentity != "" && got.Meta.ResourceVersion != r.last:
		holder, members, _ := strings.Cut(got.Meta.Annotations[api.MembersAnnotation], " ")
		if holder != got.Spec.HolderIdentity || !mesh.Comparable(members) {
			members = ""
		}
		return got.Meta.ResourceVersion, members, true
	}
	if l.c.Cache() && (r.kept || r.silent < silentLooks) {
		if _, err := l.prover.prove(ctx); err != nil {
			return "", "", false
		}
	}
	return r.last, "", true
}

// readSelf reads this node's own Node now and then, until ctx ends.
func (r *reflector) readSelf(ctx context.Context, again wake.One) {
	wait, calm, last := selfEvery, 0, (*api.Node)(nil)
	for ctx.Err() == nil {
		rctx, cancel := context.WithTimeout(ctx, requestTimeout)
		var n api.Node
		err := r.c.Get(rctx, api.Nodes().Path(r.self), &n)
		cancel()
		switch {
		case err == nil:
			trim(&n)
			if calm++; last == nil || !sameContent(last, &n) {
				calm = 0
			}
			if wait = min(4*wait, selfRarely); calm <= selfCalm {
				wait = selfEvery
			}
			last = &n
			send(ctx, r.out, event{api.Nodes(), modified, &n})
		case apierrors.IsNotFound(err):
			wait = selfEvery
		default:
			wait = selfEvery / 4
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
		case <-again:
			wait, calm = selfEvery, 0
		case <-t.C:
		}
		t.Stop()
	}
}
