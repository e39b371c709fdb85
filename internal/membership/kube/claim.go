package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// claimer keeps this node's PodBlocks.
type claimer struct {
	*writer
	grace     time.Duration // how long the cluster's allocator has for a new Node
	bare      time.Time     // since when the Node has no podCIDRs
	bareUID   string        // of that Node
	exhausted bool          // the event was sent
	// claims were made and not seen in a list or watch since: want may be older.
	claims map[string]*api.PodBlock
}

// podBlocks claims the blocks this node lacks, and releases those it does not need.
func (c *claimer) podBlocks(ctx context.Context, w want) error {
	given, foreign := counting(w.node, w.ranges)
	if c.cfg.Keep && !w.complete {
		return nil // its plugin may have blocks for it
	}
	if len(w.plugin) > 0 {
		given = w.plugin
	}
	if len(given) > 0 {
		c.bareUID = ""
		for _, b := range w.own {
			if err := c.remove(ctx, api.PodBlocks().Path(b.Meta.Name), b.Meta.UID); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("release block %s: %w", b.Spec.CIDR, err)
			}
			c.cfg.Log.Info("released a block: the Node has its own", "block", b.Spec.CIDR, "own", given)
		}
		return nil
	}
	if w.network == nil {
		return nil // reported by the loop
	}
	var errs []error
	for _, v4 := range []bool{true, false} {
		ranges := mesh.OfVersion(w.ranges, !v4)
		if len(ranges) == 0 {
			continue
		}
		bits := w.network.BlockBits(ranges[0])
		has, err := c.adopt(ctx, w, ranges)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if has {
			continue
		}
		// A Node is created before the cluster's allocator sees it.
		if c.bareUID != w.node.Meta.UID {
			c.bare, c.bareUID = time.Now(), w.node.Meta.UID
		}
		grace := c.grace
		if w.allocator {
			grace *= 3
		}
		// What it gave from another range it will not change. A node that had a block claims it again immediately, unless
		// the allocator is about to give it another one: pods would have addresses of the wrong one.
		if left := grace - time.Since(c.bare); left > 0 && (len(w.prefer) == 0 || w.allocator) && len(foreign) == 0 {
			return again{left}
		}
		errs = append(errs, c.claim(ctx, w, ranges, bits))
	}
	return sift(errs...)
}

// adopt reports whether the node has a block in ranges, and binds the blocks it has
// to the Node: one that was recreated under its name is a new owner.
func (c *claimer) adopt(ctx context.Context, w want, ranges []netip.Prefix) (bool, error) {
	has := false
	own, err := c.owned(ctx, w)
	if err != nil {
		return false, err
	}
	for _, b := range own {
		p, err := b.Prefix()
		if err != nil || b.Meta.DeletionTimestamp != nil || !mesh.Inside(ranges, p) {
			continue
		}
		has = true
		if owner := c.owner(w.node); !slices.Equal(b.Meta.OwnerReferences, owner) && c.mayOwn(w.node) {
			patch := map[string]any{"metadata": map[string]any{"uid": b.Meta.UID, "ownerReferences": owner}}
			var got api.PodBlock
			err := c.patch(ctx, api.PodBlocks().Path(b.Meta.Name), patch, &got)
			if apierrors.IsForbidden(err) {
				c.ownerRefused(w.node, "PodBlock "+b.Meta.Name, err)
				continue
			}
			if err != nil {
				return true, fmt.Errorf("bind block %s to the Node: %w", b.Spec.CIDR, err)
			}
			c.send(ctx, event{api.PodBlocks(), modified, &got})
		}
	}
	return has, nil
}

// owned are the node's blocks, including those that the loop did not know when it made
// w.
func (c *claimer) owned(ctx context.Context, w want) ([]*api.PodBlock, error) {
	own := slices.Clone(w.own)
	for _, b := range w.own {
		delete(c.claims, b.Meta.Name)
	}
	for name := range c.claims {
		var got api.PodBlock
		err := c.client.Get(ctx, api.PodBlocks().Path(name), &got)
		switch {
		case apierrors.IsNotFound(err) || err == nil && got.Spec.NodeName != c.cfg.NodeName:
			delete(c.claims, name)
		case err != nil:
			return nil, fmt.Errorf("read this node's block: %w", err)
		default:
			own = append(own, &got)
		}
	}
	return own, nil
}

// claim makes the lowest free block of size bits this node's. Blocks are unique
// because only one node can create a PodBlock of a name: the second one tries the next.
func (c *claimer) claim(ctx context.Context, w want, ranges []netip.Prefix, bits int) error {
	for {
		p, ok := lowestFree(ranges, bits, w.used, w.prefer)
		if !ok {
			return c.noBlock(ctx, w, ranges, bits)
		}
		b := api.PodBlock{
			Type: api.Type{APIVersion: api.Group + "/" + api.Version, Kind: "PodBlock"},
			Meta: api.Meta{Name: api.BlockName(p), OwnerReferences: c.owner(w.node)},
			Spec: api.PodBlockSpec{CIDR: p.String(), NodeName: c.cfg.NodeName},
		}
		var got api.PodBlock
		err := c.create(ctx, api.PodBlocks().Path(""), b, &got)
		if apierrors.IsAlreadyExists(err) {
			if err := c.relearn(ctx, w.used, p); err != nil {
				return err
			}
			continue
		}
		uid := got.Meta.UID
		if err == nil {
			err = c.readBack(ctx, api.PodBlocks().Path(b.Meta.Name), &got, func() bool {
				return uid != "" && got.Meta.UID == uid && got.Spec == b.Spec
			})
		}
		if err != nil {
			return fmt.Errorf("claim block %s: %w", p, err)
		}
		c.exhausted = false
		c.cfg.Log.Info("claimed a block", "block", p)
		c.claims[got.Meta.Name] = &got
		c.send(ctx, event{api.PodBlocks(), added, &got})
		return nil
	}
}

// relearn adds to used what others have claimed meanwhile, lost included: nodes that start
// together would otherwise all try one block after another.
func (c *claimer) relearn(ctx context.Context, used *blockSet, lost netip.Prefix) error {
	items, _, err := list(ctx, c.client, api.PodBlocks())
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
		if b.Spec.NodeName == c.cfg.NodeName {
			c.send(ctx, event{api.PodBlocks(), added, b}) // ours after all
			if b.Spec.CIDR == lost.String() {
				return again{time.Second / 10}
			}
		}
	}
	return nil
}

// noBlock reports that no block is free, once as an event.
func (c *claimer) noBlock(ctx context.Context, w want, ranges []netip.Prefix, bits int) error {
	err := fmt.Errorf("%w: all /%d of %v are taken; add a range to the PodNetwork, or delete Nodes that are gone", ErrExhausted, bits, ranges)
	if n := len(w.orphans); n > 0 {
		err = fmt.Errorf("%w; %d PodBlocks belong to Nodes that do not exist, such as %s: the garbage collector removes them, or kubectl delete",
			err, n, strings.Join(w.orphans[:min(n, 3)], ", "))
	}
	if c.exhausted {
		return err
	}
	if sent := c.event(ctx, w.node, "PodBlocksExhausted", err.Error()); sent != nil {
		c.cfg.Log.Warn("could not create the event PodBlocksExhausted", "err", sent)
	} else {
		c.exhausted = true
	}
	return err
}
