package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/kube/api"
)

// want is what is known about this node and what its registration depends on.
type want struct {
	node    *api.Node     // own Node, nil: unknown
	mesh    *api.MeshNode // own MeshNode, nil: none
	own     []*api.PodBlock
	network *api.PodNetwork
	ranges  []netip.Prefix // the cluster's
	blocks  []netip.Prefix // own, as resolved
	plugin  []netip.Prefix // own, where another plugin has the pods and tells
	settled bool           // plugin is all there is
	prefer  []netip.Prefix // own, as they were
	used    *blockSet      // everybody else's blocks
	orphans []string       // PodBlocks of nodes that do not exist
	// allocator: some Node has podCIDRs that count, so the cluster gives out blocks itself.
	allocator bool
}

// registrar keeps what this node has in the API: its MeshNode, its blocks, its
// condition. It writes only what differs, and believes a write once it has read it.
type registrar struct {
	c       *client
	cfg     Config
	tune    tuning
	out     chan<- any // event, registered
	want    chan want
	serving chan error
	relay   chan []string // where this node is a relay

	relayAddrs []string
	known      bool      // serving was told
	unserved   error     // why the node does not serve, as the API is told
	failing    time.Time // since when it does not, zero: it does
	cause      error     // why it does not
	hadMesh    bool
	kicked     time.Time // when the own MeshNode was found missing
	bare       time.Time // since when the Node has no podCIDRs
	bareUID    string
	exhausted  bool // the event was sent
	// claims were made and not heard of since: want may be older.
	claims map[string]*api.PodBlock

	said       time.Time // when the Node's condition was last written, and how
	saidStatus string
}

// again asks for another round after a while, though nothing failed.
type again struct{ after time.Duration }

func (a again) Error() string { return fmt.Sprintf("in %v", a.after) }

// run reconciles after every change, and again until that succeeds.
func (r *registrar) run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	wait := minBackoff
	var w want
	for {
		select {
		case <-ctx.Done():
			return
		case w = <-r.want:
		case err := <-r.serving:
			r.serve(err)
		case r.relayAddrs = <-r.relay:
		case <-retry.C:
		}
		err := r.reconcile(ctx, w)
		if ctx.Err() != nil {
			return
		}
		var later again
		switch {
		case err == nil:
			wait = minBackoff
			retry.Stop()
		case errors.As(err, &later):
			retry.Reset(later.after)
			err = nil
		default:
			retry.Reset(wait)
			wait = min(2*wait, maxBackoff/2) // somebody's pods wait for it
		}
		r.tell(ctx, registered{err})
	}
}

func (r *registrar) tell(ctx context.Context, m any) {
	select {
	case r.out <- m:
	case <-ctx.Done():
	}
}

// reconcile makes one round. Without a Node there is nothing to register.
func (r *registrar) reconcile(ctx context.Context, w want) error {
	if w.node == nil || w.node.Meta.DeletionTimestamp != nil {
		r.bareUID = ""
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	m, err := r.meshNode(ctx, w)
	if err != nil {
		return err
	}
	blockErr := r.podBlocks(ctx, w)
	soon := r.sustained()
	return sift(blockErr, soon, r.status(ctx, w, m, blockErr), r.condition(ctx, w))
}

// serve notes whether the node serves. The first cause stands for those that follow
// from it.
func (r *registrar) serve(err error) {
	switch {
	case err == nil:
		r.known, r.unserved, r.failing = true, nil, time.Time{}
	case !r.known:
		r.known, r.unserved = true, err
	case r.unserved == nil && r.failing.IsZero():
		r.failing, r.cause = time.Now(), err
	}
}

// sustained tells the API of a failure that lasts: a Node that is tainted and
// untainted for every repair would chase pods about.
func (r *registrar) sustained() error {
	if r.unserved != nil || r.failing.IsZero() {
		return nil
	}
	if left := r.tune.sustain - time.Since(r.failing); left > 0 {
		return again{left}
	}
	r.unserved = r.cause
	return nil
}

// sift joins what failed; where nothing did, it asks for another round when the
// first of errs wants one.
func sift(errs ...error) error {
	var failed []error
	var soonest error
	least := time.Duration(0)
	for _, err := range errs {
		var later again
		switch {
		case err == nil:
		case !errors.As(err, &later):
			failed = append(failed, err)
		case soonest == nil || later.after < least:
			soonest, least = later, later.after
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	return soonest
}

// meshNode makes the own MeshNode what it should be.
func (r *registrar) meshNode(ctx context.Context, w want) (*api.MeshNode, error) {
	if w.mesh == nil {
		return r.newMeshNode(ctx, w)
	}
	r.hadMesh, r.kicked = true, time.Time{}
	if w.mesh.Meta.DeletionTimestamp != nil {
		return nil, again{time.Second}
	}
	patch := map[string]any{}
	if w.mesh.Spec.PeerID != string(r.cfg.PeerID) {
		patch["spec"] = api.MeshNodeSpec{PeerID: string(r.cfg.PeerID)}
	}
	meta := map[string]any{"uid": w.mesh.Meta.UID}
	if owner := r.owner(w.node); !slices.Equal(w.mesh.Meta.OwnerReferences, owner) {
		meta["ownerReferences"] = owner
	}
	if w.mesh.Kept() != r.cfg.Keep {
		meta["annotations"] = map[string]any{api.ModeAnnotation: r.mode()}
	}
	if len(patch) == 0 && len(meta) == 1 {
		return w.mesh, nil
	}
	patch["metadata"] = meta
	var got api.MeshNode
	path := kindMeshNodes().path(r.cfg.NodeName)
	err := r.c.patch(ctx, path, contentMerge, nil, patch, &got)
	if apierrors.IsConflict(err) {
		return nil, again{time.Second} // it is another object by now; its event comes
	}
	if _, rotates := patch["spec"]; rotates && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
		return nil, fmt.Errorf("MeshNode %s has peer ID %s, this node's key is %s: %w; restore the node's identity.key, "+
			"or allow the new key: kubectl annotate meshnode %s %s=%s (%w)", r.cfg.NodeName, w.mesh.Spec.PeerID, r.cfg.PeerID,
			ErrPeerID, r.cfg.NodeName, api.RotateAnnotation, w.mesh.Spec.PeerID, err)
	}
	if err == nil {
		err = r.readBack(ctx, path, &got, func() bool {
			return got.Spec.PeerID == string(r.cfg.PeerID) && got.Kept() == r.cfg.Keep && slices.Equal(got.Meta.OwnerReferences, r.owner(w.node))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("correct the own MeshNode: %w", err)
	}
	r.tell(ctx, event{kindMeshNodes(), modified, &got})
	return &got, nil
}

// mode is the value of the annotation of that name; nil is none.
func (r *registrar) mode() any {
	if r.cfg.Keep {
		return api.ModeKeep
	}
	return nil
}

// newMeshNode creates the own MeshNode. One that was deleted meant to cut this
// node off for a moment.
func (r *registrar) newMeshNode(ctx context.Context, w want) (*api.MeshNode, error) {
	if r.hadMesh {
		if r.kicked.IsZero() {
			r.kicked = time.Now()
		}
		if left := r.tune.kick - time.Since(r.kicked); left > 0 {
			return nil, again{left}
		}
	}
	m := api.MeshNode{
		Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "MeshNode"},
		Meta: api.Meta{Name: r.cfg.NodeName, OwnerReferences: r.owner(w.node)},
		Spec: api.MeshNodeSpec{PeerID: string(r.cfg.PeerID)},
	}
	if r.cfg.Keep {
		m.Meta.Annotations = map[string]string{api.ModeAnnotation: api.ModeKeep}
	}
	var got api.MeshNode
	err := r.c.create(ctx, kindMeshNodes().path(""), m, &got)
	if apierrors.IsAlreadyExists(err) {
		err = r.c.get(ctx, kindMeshNodes().path(r.cfg.NodeName), &got) // its event is under way
	} else if err == nil {
		uid := got.Meta.UID
		err = r.readBack(ctx, kindMeshNodes().path(r.cfg.NodeName), &got, func() bool { return got.Meta.UID == uid && uid != "" })
	}
	if err != nil {
		return nil, fmt.Errorf("create the own MeshNode: %w", err)
	}
	r.cfg.Log.Info("registered", "node", r.cfg.NodeName, "peerID", r.cfg.PeerID)
	r.tell(ctx, event{kindMeshNodes(), added, &got})
	return nil, again{time.Second / 10} // the rest is done when that was heard
}

// readBack reads what was written into out. The error wraps errLied when it is
// not as good says: some caches acknowledge what they cannot store.
func (r *registrar) readBack(ctx context.Context, path string, out any, good func() bool) error {
	err := r.c.get(ctx, path, out)
	if apierrors.IsNotFound(err) || err == nil && !good() {
		return fmt.Errorf("%s: %w", path, errLied)
	}
	return err
}

func (r *registrar) owner(n *api.Node) []api.OwnerReference {
	return []api.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Meta.Name, UID: n.Meta.UID}}
}
