package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
)

// binder keeps this node's MeshNode, which binds this node's name to its key.
type binder struct {
	*writer
	kick    time.Duration // a deleted MeshNode comes back after it
	hadMesh bool
	kicked  time.Time // when this node's MeshNode was found missing
}

// bind corrects or creates this node's MeshNode.
func (b *binder) bind(ctx context.Context, w want) (*api.MeshNode, error) {
	if w.mesh == nil {
		return b.create(ctx, w)
	}
	b.hadMesh, b.kicked = true, time.Time{}
	if w.mesh.Meta.DeletionTimestamp != nil {
		return nil, again{time.Second}
	}
	patch := map[string]any{}
	if w.mesh.Spec.PeerID != string(b.cfg.PeerID) {
		patch["spec"] = api.MeshNodeSpec{PeerID: string(b.cfg.PeerID)}
	}
	meta := map[string]any{"uid": w.mesh.Meta.UID}
	owner := w.mesh.Meta.OwnerReferences
	if b.mayOwn(w.node) {
		owner = b.owner(w.node)
	}
	if !slices.Equal(w.mesh.Meta.OwnerReferences, owner) {
		meta["ownerReferences"] = owner
	}
	if w.mesh.Kept() != b.cfg.Keep {
		meta["annotations"] = map[string]any{api.ModeAnnotation: b.mode()}
	}
	if len(patch) == 0 && len(meta) == 1 {
		return w.mesh, nil
	}
	patch["metadata"] = meta
	var got api.MeshNode
	path := api.MeshNodes().Path(b.cfg.NodeName)
	err := b.patch(ctx, path, patch, &got)
	if apierrors.IsConflict(err) {
		return nil, again{time.Second} // it is another object by now; its event comes
	}
	if meta["ownerReferences"] != nil && apierrors.IsForbidden(err) {
		b.ownerRefused(w.node, "MeshNode "+b.cfg.NodeName, err)
		return b.bind(ctx, w)
	}
	if _, rotates := patch["spec"]; rotates && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
		return nil, fmt.Errorf("MeshNode %s has peer ID %s, this node's key is %s: %w; restore the node's identity.key, "+
			"or allow the new key: kubectl annotate meshnode %s %s=%s (%w)", b.cfg.NodeName, w.mesh.Spec.PeerID, b.cfg.PeerID,
			ErrPeerID, b.cfg.NodeName, api.RotateAnnotation, w.mesh.Spec.PeerID, err)
	}
	if err == nil {
		err = b.readBack(ctx, path, &got, func() bool {
			return got.Spec.PeerID == string(b.cfg.PeerID) && got.Kept() == b.cfg.Keep && slices.Equal(got.Meta.OwnerReferences, owner)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("update this node's MeshNode: %w", err)
	}
	b.send(ctx, event{api.MeshNodes(), modified, &got})
	return &got, nil
}

// mode is the value of the annotation cni-mode; nil removes it.
func (b *binder) mode() any {
	if b.cfg.Keep {
		return api.ModeKeep
	}
	return nil
}

// create creates this node's MeshNode. Whoever deleted it meant to cut this node off for
// a moment.
func (b *binder) create(ctx context.Context, w want) (*api.MeshNode, error) {
	if b.hadMesh {
		if b.kicked.IsZero() {
			b.kicked = time.Now()
		}
		if left := b.kick - time.Since(b.kicked); left > 0 {
			return nil, again{left}
		}
	}
	m := api.MeshNode{
		Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "MeshNode"},
		Meta: api.Meta{Name: b.cfg.NodeName, OwnerReferences: b.owner(w.node)},
		Spec: api.MeshNodeSpec{PeerID: string(b.cfg.PeerID)},
	}
	if b.cfg.Keep {
		m.Meta.Annotations = map[string]string{api.ModeAnnotation: api.ModeKeep}
	}
	var got api.MeshNode
	err := b.writer.create(ctx, api.MeshNodes().Path(""), m, &got)
	if apierrors.IsAlreadyExists(err) {
		err = b.client.Get(ctx, api.MeshNodes().Path(b.cfg.NodeName), &got) // its event is under way
	} else if err == nil {
		uid := got.Meta.UID
		err = b.readBack(ctx, api.MeshNodes().Path(b.cfg.NodeName), &got, func() bool { return got.Meta.UID == uid && uid != "" })
	}
	if err != nil {
		return nil, fmt.Errorf("create this node's MeshNode: %w", err)
	}
	b.cfg.Log.Info("registered", "node", b.cfg.NodeName, "peerID", b.cfg.PeerID)
	b.send(ctx, event{api.MeshNodes(), added, &got})
	return nil, again{time.Second / 10} // the rest is done when that was heard
}
