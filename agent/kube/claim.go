package kube

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/kube/api"
)

// claim makes the lowest free block of size bits this node's. That only one node
// can create a PodBlock of a name is what makes blocks unique: who comes second
// looks again.
func (r *registrar) claim(ctx context.Context, w want, ranges []netip.Prefix, bits int) error {
	for {
		p, ok := lowestFree(ranges, bits, w.used, w.prefer)
		if !ok {
			return r.noBlock(ctx, w, ranges, bits)
		}
		b := api.PodBlock{
			Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "PodBlock"},
			Meta: api.Meta{Name: api.BlockName(p), OwnerReferences: r.owner(w.node)},
			Spec: api.PodBlockSpec{CIDR: p.String(), NodeName: r.cfg.NodeName},
		}
		var got api.PodBlock
		err := r.c.create(ctx, kindPodBlocks().path(""), b, &got)
		if apierrors.IsAlreadyExists(err) {
			if err := r.relearn(ctx, w.used, p); err != nil {
				return err
			}
			continue
		}
		uid := got.Meta.UID
		if err == nil {
			err = r.readBack(ctx, kindPodBlocks().path(b.Meta.Name), &got, func() bool {
				return uid != "" && got.Meta.UID == uid && got.Spec == b.Spec
			})
		}
		if err != nil {
			return fmt.Errorf("claim block %s: %w", p, err)
		}
		r.exhausted = false
		r.cfg.Log.Info("claimed a block", "block", p)
		r.claims[got.Meta.Name] = &got
		r.tell(ctx, event{kindPodBlocks(), added, &got})
		return nil
	}
}

// relearn adds to used what others claimed meanwhile, lost among it: many nodes
// that start at once would otherwise try one block after another.
func (r *registrar) relearn(ctx context.Context, used *blockSet, lost netip.Prefix) error {
	items, _, err := r.c.list(ctx, kindPodBlocks())
	if err != nil {
		return fmt.Errorf("look for a free block: %w", err)
	}
	used.add(lost, "")
	for _, o := range items {
		b, ok := o.(*api.PodBlock)
		if !ok {
			continue
		}
		if p, err := netip.ParsePrefix(b.Spec.CIDR); err == nil {
			used.add(p, b.Spec.NodeName)
		}
		if b.Spec.NodeName == r.cfg.NodeName {
			r.tell(ctx, event{kindPodBlocks(), added, b}) // ours after all
			if b.Spec.CIDR == lost.String() {
				return again{time.Second / 10}
			}
		}
	}
	return nil
}

// noBlock reports exhaustion, once as an event.
func (r *registrar) noBlock(ctx context.Context, w want, ranges []netip.Prefix, bits int) error {
	err := fmt.Errorf("%w: all /%d of %v are taken; add a range to the PodNetwork, or delete Nodes that are gone", ErrExhausted, bits, ranges)
	if n := len(w.orphans); n > 0 {
		err = fmt.Errorf("%w; %d PodBlocks are of Nodes that do not exist, such as %s: they go with the garbage collector, or by kubectl delete",
			err, n, strings.Join(w.orphans[:min(n, 3)], ", "))
	}
	if r.exhausted {
		return err
	}
	if sent := r.event(ctx, w.node, "PodBlocksExhausted", err.Error()); sent != nil {
		r.cfg.Log.Warn("no event was recorded", "err", sent)
	} else {
		r.exhausted = true
	}
	return err
}
