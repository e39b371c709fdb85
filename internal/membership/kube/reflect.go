package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 8 * time.Second
	// rarelyRefused is the same of Nodes that may not be listed: the NodeRecords may be in force.
	rarelyRefused = 30 * time.Second
	// provedWatch is how long a watch runs on a proved list, at least; up to twice
	// that, so that agents do not all come back together. Each costs 1 kB.
	provedWatch = 45 * time.Minute
	// cacheWatch is the same through an edge-local cache, where each watch begins with a list; see outage.
	cacheWatch = 12 * time.Hour
	// replayWatch is the same where an answer alone has shown that it is a cache.
	replayWatch = 10 * time.Minute
	// absentWait is how soon an absent kind of another plugin is tried again; at first, in case it is an API server's start, absentSoon.
	absentWait  = 2 * time.Minute
	absentSoon  = 5 * time.Second
	absentTries = 6
	// pollNodes is how soon Nodes are listed again that are not watched, then half as often each time down to pollLast: each Node is some kB.
	// Later it is requested where a MeshNode says that something is new; see outage, too.
	pollNodes = 6 * time.Second
	pollLast  = 2 * time.Minute
	// unprovedWatch is how soon an unproved list is repeated, then half as often each time, down to unprovedRarely.
	unprovedWatch  = 10 * time.Second
	unprovedRarely = time.Minute
)

// watchSlack is how far from its agreed end a watch may really end.
const watchSlack = 5 * time.Second

// reflector follows one kind: it lists between two proofs, then watches. What it
// receives goes to out.
type reflector struct {
	kind   api.Kind
	c      *client.Client
	prover *prover
	self   string     // own node, "" when reading only
	out    chan<- any // listed, event, trouble
	relist wake.One   // list again now

	rv      string        // to watch from; "" requires a list
	proof   *proof        // of the list that rv continues
	poll    time.Duration // until the next list of a kind that is polled
	doubt   time.Duration // how long a watch of an unproved list is; 0: the last one is proved
	replays bool          // the server is a cache: it repeats objects at every watch
	broken  error         // why the last watch ended too early; nil when it did not
	refused bool          // the last list was answered with 403
	absent  int           // how often in a row a foreign kind was not there
}

// run follows until ctx ends.
func (r *reflector) run(ctx context.Context) {
	wait := minBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := r.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > maxBackoff {
			wait = minBackoff
		}
		if err == nil {
			continue
		}
		if !send(ctx, r.out, trouble{r.kind, r.c.Explain(ctx, r.kind, err), r.refused}) {
			return
		}
		if r.pause(ctx, wait) {
			limit := maxBackoff
			if r.refused && r.kind.Name == "nodes" {
				limit = rarelyRefused
			}
			wait = min(2*wait, limit)
		}
	}
}

// pause waits for about d, a request for a list, or the end. It reports whether d
// passed.
func (r *reflector) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.relist:
		r.rv = ""
		return false
	case <-time.After(d/2 + rand.N(d)):
		return true
	}
}

// send hands m on; false: the end.
func send(ctx context.Context, out chan<- any, m any) bool {
	select {
	case out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// polls says that the kind is listed again and again in place of being watched.
func (r *reflector) polls() bool { return r.kind.Name == "nodes" && r.c.ListNodes() }

// step makes one list, or one watch.
func (r *reflector) step(ctx context.Context) error {
	r.refused = false
	if r.polls() {
		if err := r.list(ctx); err != nil {
			return err
		}
		if r.proof == nil { // old objects, perhaps
			r.pause(ctx, r.doubt)
			return ctx.Err()
		}
		if r.poll = max(2*r.poll, pollNodes); r.poll > pollLast {
			r.poll = cacheWatch
		}
		r.pause(ctx, r.poll)
		return ctx.Err()
	}
	if r.rv != "" && r.broken != nil {
		if err := r.resume(ctx); err != nil {
			return err
		}
	}
	if r.rv == "" {
		return r.list(ctx)
	}
	began, length := time.Now(), r.length()
	err := r.watch(ctx, length)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errGone):
		r.rv = ""
		return nil
	case r.cache() || r.proof == nil:
		r.rv = "" // what it did not say can only be had from a list
		if err == nil && time.Since(began) < time.Second {
			err = fmt.Errorf("watch %s: ended immediately", r.kind.Name)
		}
		return err
	case err == nil && time.Since(began) > length-watchSlack:
		return nil // as agreed
	case err == nil:
		err = fmt.Errorf("watch %s: ended too early", r.kind.Name)
	}
	r.broken = err
	return nil
}

// resume decides how to continue after a watch that broke off: from where it was, if
// the API still has the same history. A server that lost it would stay silent for a
// long time: it has yet to reach the requested version.
func (r *reflector) resume(ctx context.Context) error {
	p, err := r.prover.prove(ctx)
	if err != nil && !answered(err) {
		return errors.Join(r.broken, err)
	}
	if err != nil || p.cluster != r.proof.cluster || p.version < version(r.rv) {
		r.rv = ""
	}
	r.broken = nil
	return nil
}

// answered says that this is the answer of an API server or a cache, and not of
// overload or a failing connection.
func answered(err error) bool {
	var refused *apierrors.StatusError
	if !errors.As(err, &refused) {
		return errors.Is(err, errUnproved)
	}
	switch refused.ErrStatus.Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusBadGateway:
		return false
	}
	return true
}

func (r *reflector) cache() bool { return r.replays || r.c.Cache() }

func (r *reflector) length() time.Duration {
	switch {
	case r.proof == nil:
		return r.doubt
	case r.replays && !r.c.Cache(): // nothing says when it was cut off
		return replayWatch + rand.N(replayWatch)
	case r.cache():
		return cacheWatch + rand.N(cacheWatch)
	}
	return provedWatch + rand.N(provedWatch)
}

// list reads the kind whole. With a proof before and one after it, and an answer
// that fits between them, it is proved.
func (r *reflector) list(ctx context.Context) error {
	select {
	case <-r.relist:
	default:
	}
	before, reason := r.prover.prove(ctx)
	lctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	items, rv, err := list(lctx, r.c, r.kind)
	cancel()
	r.refused = apierrors.IsForbidden(err)
	if r.kind.Foreign && reason == nil && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		send(ctx, r.out, listed{kind: r.kind, missing: err})
		send(ctx, r.out, trouble{kind: r.kind})
		wait := absentWait
		if r.absent++; r.absent <= absentTries {
			wait = absentSoon
		}
		r.pause(ctx, wait)
		return ctx.Err()
	}
	if err != nil {
		return errors.Join(err, reason)
	}
	r.absent = 0
	l := listed{kind: r.kind, items: items, rv: version(rv)}
	if reason == nil {
		var after proof
		if after, reason = r.prover.prove(ctx); reason == nil {
			reason = r.fits(l, before, after)
		}
		if reason == nil {
			l.proof = &after
		}
	}
	if r.doubt = min(max(2*r.doubt, unprovedWatch), unprovedRarely); l.proof != nil {
		r.doubt = 0
	}
	l.reason = reason
	r.rv, r.proof, r.broken = rv, l.proof, nil
	if rv == "" {
		r.rv = "0" // a cache without versions: watch from wherever it is
	}
	if !send(ctx, r.out, l) {
		return ctx.Err()
	}
	send(ctx, r.out, trouble{kind: r.kind})
	return nil
}

// fits checks that a list was made between its two proofs: by the same cluster, not
// older than the first, and with this node in it.
func (r *reflector) fits(l listed, before, after proof) error {
	switch {
	case before.cluster != after.cluster || before.ownUID != after.ownUID:
		return fmt.Errorf("list %s: the cluster changed meanwhile: %w", l.kind.Name, errUnproved)
	case l.rv < before.version || after.version < before.version:
		return fmt.Errorf("list %s: version %d is older than %d: %w", l.kind.Name, l.rv, before.version, errUnproved)
	case r.self == "":
		return nil
	}
	switch l.kind.Name {
	case "nodes", "noderecords", "meshnodes":
		for _, o := range l.items {
			m := o.Metadata()
			if m.Name == r.self && (l.kind.Name != "meshnodes" || m.UID == before.ownUID) {
				return nil
			}
		}
		return fmt.Errorf("list %s: this node is not in it: %w", l.kind.Name, errUnproved)
	case "podnetworks":
		if len(l.items) == 0 {
			return fmt.Errorf("list podnetworks: empty: %w", errUnproved)
		}
	}
	return nil
}

// watch receives changes until the server ends it, and keeps r.rv up to date.
func (r *reflector) watch(ctx context.Context, length time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The server ends the watch; some caches never do.
	late := make(chan struct{})
	stop := time.AfterFunc(length+watchSlack, func() { close(late); cancel() })
	defer stop.Stop()
	relist := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-r.relist:
			close(relist)
			cancel()
		case <-ctx.Done():
		}
	}()
	err := r.receive(ctx, length)
	cancel()
	<-ended
	select {
	case <-relist:
		return errGone
	case <-late:
		return nil
	default:
		return err
	}
}

func (r *reflector) receive(ctx context.Context, length time.Duration) error {
	stream, err := r.c.Watch(ctx, r.kind, r.rv, int(length/time.Second), trim)
	if err != nil {
		return gone(err)
	}
	defer stream.Close()
	from := version(r.rv)
	for {
		e, err := stream.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return gone(fmt.Errorf("watch %s: %w", r.kind.Name, err))
		}
		rv := e.Object.Metadata().ResourceVersion
		if v := version(rv); v > version(r.rv) {
			r.rv = rv
		} else if v <= from && e.What != client.Bookmark {
			r.replays = true // an API server would only report what is newer
			if r.proof != nil && e.What != client.Deleted {
				continue // it is in the proved list, or was deleted before: KubeEdge's MetaServer replays that, too
			}
		}
		if e.What != client.Bookmark && !send(ctx, r.out, event{r.kind, e.What, e.Object}) {
			return ctx.Err()
		}
	}
}

// gone marks the errors after which only a list helps.
func gone(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) || apierrors.IsNotFound(err) ||
		apierrors.IsForbidden(err) { // the list says whether the right is gone
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}
