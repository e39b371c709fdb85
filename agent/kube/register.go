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
	prefer  []netip.Prefix // own, as they were
	used    *blockSet      // everybody else's blocks
	orphans []string       // PodBlocks of nodes that do not exist
	// allocator: some Node has podCIDRs, so the cluster gives out blocks itself.
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

	known     bool      // serving was told
	unserved  error     // why the node does not serve, as the API is told
	failing   time.Time // since when it does not, zero: it does
	cause     error     // why it does not
	hadMesh   bool
	kicked    time.Time // when the own MeshNode was found missing
	bare      time.Time // since when the Node has no podCIDRs
	bareUID   string
	exhausted bool // the event was sent
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
			return got.Spec.PeerID == string(r.cfg.PeerID) && slices.Equal(got.Meta.OwnerReferences, r.owner(w.node))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("correct the own MeshNode: %w", err)
	}
	r.tell(ctx, event{kindMeshNodes(), modified, &got})
	return &got, nil
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

// podBlocks claims what this node lacks, and gives back what it does not need.
func (r *registrar) podBlocks(ctx context.Context, w want) error {
	if len(w.node.Spec.PodCIDRs) > 0 {
		r.bareUID = ""
		for _, b := range w.own {
			if err := r.c.remove(ctx, kindPodBlocks().path(b.Meta.Name), b.Meta.UID); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("give back block %s: %w", b.Spec.CIDR, err)
			}
			r.cfg.Log.Info("gave back a block: the Node has its own", "block", b.Spec.CIDR, "podCIDRs", w.node.Spec.PodCIDRs)
		}
		return nil
	}
	if w.network == nil {
		return nil // reported by the loop
	}
	var errs []error
	for _, v4 := range []bool{true, false} {
		ranges := ofFamily(w.ranges, v4)
		bits := w.network.Spec.BlockSize
		if !v4 {
			bits = w.network.Spec.BlockSizeIPv6
		}
		if bits == 0 {
			bits = map[bool]int{true: api.DefaultBlockSize, false: api.DefaultBlockSizeIPv6}[v4]
		}
		if len(ranges) == 0 {
			continue
		}
		has, err := r.adopt(ctx, w, ranges)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if has {
			continue
		}
		// A Node is created before the cluster's allocator sees it.
		if r.bareUID != w.node.Meta.UID {
			r.bare, r.bareUID = time.Now(), w.node.Meta.UID
		}
		grace := r.tune.allocator
		if w.allocator {
			grace *= 3
		}
		if left := grace - time.Since(r.bare); left > 0 && len(w.prefer) == 0 {
			return again{left}
		}
		errs = append(errs, r.claim(ctx, w, ranges, bits))
	}
	return sift(errs...)
}

// adopt reports whether the node has a block in ranges, and binds the blocks it has
// to the Node: one that was made anew under the old name is another owner.
func (r *registrar) adopt(ctx context.Context, w want, ranges []netip.Prefix) (bool, error) {
	has := false
	own, err := r.owned(ctx, w)
	if err != nil {
		return false, err
	}
	for _, b := range own {
		p, err := netip.ParsePrefix(b.Spec.CIDR)
		inside := func(o netip.Prefix) bool { return contains(o, p) }
		if err != nil || b.Meta.DeletionTimestamp != nil || !slices.ContainsFunc(ranges, inside) {
			continue
		}
		has = true
		if owner := r.owner(w.node); !slices.Equal(b.Meta.OwnerReferences, owner) {
			patch := map[string]any{"metadata": map[string]any{"uid": b.Meta.UID, "ownerReferences": owner}}
			var got api.PodBlock
			if err := r.c.patch(ctx, kindPodBlocks().path(b.Meta.Name), contentMerge, nil, patch, &got); err != nil {
				return true, fmt.Errorf("bind block %s to the Node: %w", b.Spec.CIDR, err)
			}
			r.tell(ctx, event{kindPodBlocks(), modified, &got})
		}
	}
	return has, nil
}

// owned are the node's blocks, with those that the loop had not heard of when it
// made w.
func (r *registrar) owned(ctx context.Context, w want) ([]*api.PodBlock, error) {
	own := slices.Clone(w.own)
	for _, b := range w.own {
		delete(r.claims, b.Meta.Name)
	}
	for name := range r.claims {
		var got api.PodBlock
		err := r.c.get(ctx, kindPodBlocks().path(name), &got)
		switch {
		case apierrors.IsNotFound(err) || err == nil && got.Spec.NodeName != r.cfg.NodeName:
			delete(r.claims, name)
		case err != nil:
			return nil, fmt.Errorf("look at the own block: %w", err)
		default:
			own = append(own, &got)
		}
	}
	return own, nil
}

// status writes what people want to see, when it changed.
func (r *registrar) status(ctx context.Context, w want, m *api.MeshNode, blockErr error) error {
	st := api.MeshNodeStatus{AgentVersion: r.cfg.AgentVersion}
	for _, p := range w.blocks {
		st.PodCIDRs = append(st.PodCIDRs, p.String())
	}
	st.Conditions = []api.Condition{r.blockCondition(w, blockErr), r.readyCondition(w)}
	if statusEqual(m.Status, st) {
		return nil
	}
	now := time.Now().UTC().Truncate(time.Second)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.LastTransitionTime = &now
		if old := api.FindCondition(m.Status.Conditions, c.Type); old != nil && old.Status == c.Status && old.LastTransitionTime != nil {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	var got api.MeshNode
	patch := map[string]any{"metadata": map[string]string{"uid": m.Meta.UID}, "status": st}
	err := r.c.patch(ctx, kindMeshNodes().path(r.cfg.NodeName)+"/status", contentMerge, nil, patch, &got)
	if err == nil && !statusEqual(got.Status, st) {
		err = errLied
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone meanwhile: its event comes
	}
	if err != nil {
		return fmt.Errorf("write the own MeshNode's status: %w", err)
	}
	r.tell(ctx, event{kindMeshNodes(), modified, &got})
	return nil
}

func (r *registrar) readyCondition(w want) api.Condition {
	c := api.Condition{Type: readyType, Status: "False", Reason: "Starting", Message: "the agent sets up the node"}
	switch {
	case len(w.blocks) == 0:
		c.Reason, c.Message = "NoBlock", "the node has no pod block"
	case r.known && r.unserved == nil:
		c.Status, c.Reason, c.Message = "True", "Serving", "pods of this node have their network"
	case r.known:
		c.Reason, c.Message = "Failing", clip(r.unserved.Error())
	}
	return c
}

func (r *registrar) blockCondition(w want, err error) api.Condition {
	c := api.Condition{Type: blockType, Status: "False", Reason: "Waiting", Message: "no block yet"}
	var later again
	if errors.As(err, &later) {
		err = nil
	}
	switch {
	case errors.Is(err, ErrExhausted):
		c.Reason, c.Message = "Exhausted", clip(err.Error())
	case err != nil:
		c.Reason, c.Message = "Failing", clip(err.Error())
	case len(w.node.Spec.PodCIDRs) > 0 && len(w.blocks) > 0:
		c.Status, c.Reason, c.Message = "True", "FromNode", "from the Node's spec.podCIDRs"
	case len(w.node.Spec.PodCIDRs) > 0:
		c.Reason, c.Message = "Refused", "the Node's spec.podCIDRs are outside the PodNetwork or another node's"
	case len(w.blocks) > 0:
		c.Status, c.Reason, c.Message = "True", "Claimed", "claimed as PodBlock"
	}
	return c
}

// statusEqual compares what is worth a write: times are not.
func statusEqual(a, b api.MeshNodeStatus) bool {
	return a.AgentVersion == b.AgentVersion && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(x, y api.Condition) bool {
			return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
		})
}

// clip shortens a message to what a condition may hold.
func clip(text string) string {
	const most = 1000 // bytes; metav1.Condition allows 32768
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
