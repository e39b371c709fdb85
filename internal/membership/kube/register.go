package kube

import (
	"context"
	"errors"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// versionAge is for how long the API server's version is believed: a control plane may step back to one without policies.
const versionAge = time.Hour

// registrar maintains this node's entries in the API: its MeshNode, its blocks, its
// condition. It writes only what differs, and trusts a write once it has read it back.
// All of it belongs to the goroutine that runs it.
type registrar struct {
	*writer
	want     chan want      // latest, of the loop
	serving  chan error     // latest, of Source.SetServing
	relay    chan []string  // latest, of Source.SetRelay
	place    chan api.Place // latest, of Source.SetPlace
	warnings chan [2]string // of Source.Warn; nil: nobody warns
	healthy  chan [2]string // latest, of Source.SetHealthy; nil: nobody says it

	version string    // the API server's, "" if it is not known
	asked   time.Time // for it

	binder   binder   // this node's MeshNode
	claimer  claimer  // the own PodBlocks
	reporter reporter // the MeshNode's status, the Node's condition
}

func newRegistrar(c *client.Client, cfg Config, tune tuning, out chan<- any, serving chan error, relay chan []string, place chan api.Place) *registrar {
	w := &writer{client: c, cfg: cfg, out: out}
	return &registrar{
		writer: w, want: make(chan want, 1), serving: serving, relay: relay, place: place,
		binder:   binder{writer: w, kick: tune.kick},
		claimer:  claimer{writer: w, grace: tune.allocator, claims: map[string]*api.PodBlock{}},
		reporter: reporter{writer: w, health: health{sustain: tune.sustain}},
	}
}

// run reconciles after every change, and again until that succeeds.
func (r *registrar) run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	wait := minBackoff
	failed := false // the last round: what changes nothing does not hurry the next one
	var w want
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-r.want:
			if failed && reflect.DeepEqual(next, w) {
				continue
			}
			w = next
		case err := <-r.serving:
			r.reporter.health.serve(err)
		case r.reporter.relayAddrs = <-r.relay:
		case p := <-r.place:
			r.reporter.place = p.After(r.reporter.place)
		case x := <-r.healthy:
			r.reporter.healthy = &x
		case x := <-r.warnings:
			r.warn(ctx, w.node, x)
			continue
		case <-retry.C:
		}
		err := r.reconcile(ctx, w)
		r.heard(err)
		if ctx.Err() != nil {
			return
		}
		guard := r.unguarded(ctx, w.network)
		var later again
		if errors.As(guard, &later) {
			err, guard = sift(err, later), nil
		}
		failed = err != nil && !errors.As(err, &later)
		switch {
		case err == nil:
			wait = minBackoff
			retry.Stop()
		case !failed:
			retry.Reset(later.after)
			err = nil
		default:
			retry.Reset(wait)
			wait = min(2*wait, maxBackoff/2) // pods wait for it
		}
		r.send(ctx, registered{errors.Join(err, guard)})
	}
}

// unguarded says that the API server keeps no node from writing another's objects, unless the operator trusts every node with that.
func (r *registrar) unguarded(ctx context.Context, n *api.PodNetwork) error {
	if n == nil || n.Spec.TrustedNodes {
		return nil
	}
	if client.Unguarded(r.version) != nil || time.Since(r.asked) > versionAge { // a control plane is upgraded, and may step back
		v, err := r.client.Version(ctx)
		if err != nil && !errors.As(err, new(*apierrors.StatusError)) {
			return nil // no answer; the next round requests it again
		}
		r.version, r.asked = v, time.Now()
	}
	if err := client.Unguarded(r.version); err != nil {
		return err
	}
	return again{versionAge - time.Since(r.asked)}
}

// warn records an event, if this node's Node is known.
func (r *registrar) warn(ctx context.Context, n *api.Node, x [2]string) {
	if n == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := r.event(ctx, n, x[0], x[1]); err != nil {
		r.cfg.Log.Debug("event not recorded", "reason", x[0], "err", err)
	}
}

// reconcile makes one round. Without a Node there is nothing to register.
func (r *registrar) reconcile(ctx context.Context, w want) error {
	if w.node == nil || w.node.Meta.DeletionTimestamp != nil {
		r.claimer.bareUID = ""
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	r.relays, r.controllers = w.relays, w.controllers
	m, err := r.binder.bind(ctx, w)
	if err != nil {
		return err
	}
	blockErr := r.claimer.podBlocks(ctx, w)
	soon := r.reporter.health.sustained()
	return sift(blockErr, soon, r.reporter.status(ctx, w, m, blockErr), r.reporter.condition(ctx, w))
}
