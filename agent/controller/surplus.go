package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/seldom"
	"edgemesh/internal/watchdog"
)

// surplus deletes the PodBlocks that do not count. All of it belongs to the goroutine in run,
// and during a sweep to those that it waits for.
type surplus struct {
	api      cluster
	loop     *watchdog.Loop
	log      *slog.Logger
	metrics  *metrics
	reported seldom.Log

	nodes map[string]map[string]*api.PodBlock // by node and name
	dirty map[string]bool                     // nodes to look at in the next sweep

	inForce []netip.Prefix // the last ranges that were right
}

// run follows the PodBlocks until ctx ends.
func (s *surplus) run(ctx context.Context) {
	in := make(chan news)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { follow(ctx, s.api, api.PodBlocks(), nil, in) })
	next := time.NewTimer(0)
	defer next.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			s.hear(ctx, n)
			if len(s.dirty) > 0 && !waiting {
				next.Reset(gather)
				waiting = true
			}
		case <-next.C:
			waiting = false
			if err := s.sweep(ctx); err != nil {
				s.metrics.failures.Inc()
				if s.reported.Due("sweep") {
					s.log.Warn("cannot delete PodBlocks in surplus; retrying", "err", err)
				}
				next.Reset(sweepAgain)
				waiting = true
			}
		}
	}
}

// hear takes what the API says of PodBlocks.
func (s *surplus) hear(ctx context.Context, n news) {
	_, end := s.loop.Begin(ctx)
	defer end()
	switch {
	case n.err != nil:
		s.metrics.failures.Inc()
		if s.reported.Due("follow") {
			s.log.Warn("cannot follow the PodBlocks: those in surplus stay; retrying", "err", n.err)
		}
	case n.all:
		s.nodes, s.dirty = map[string]map[string]*api.PodBlock{}, map[string]bool{}
		for _, o := range n.list {
			s.take(client.Event{What: client.Added, Object: o})
		}
	default:
		s.take(n.event)
	}
}

// take notes a change. Nodes that have more blocks than count, of whatever IP version, are
// looked at.
func (s *surplus) take(e client.Event) {
	b, ok := e.Object.(*api.PodBlock)
	if !ok || e.What == client.Bookmark {
		return
	}
	node := b.Spec.NodeName
	if e.What == client.Deleted {
		delete(s.nodes[node], b.Meta.Name)
		if len(s.nodes[node]) == 0 {
			delete(s.nodes, node)
		}
		return
	}
	if s.nodes[node] == nil {
		s.nodes[node] = map[string]*api.PodBlock{}
	}
	s.nodes[node][b.Meta.Name] = b
	if len(s.nodes[node]) > kube.MostBlocks {
		s.dirty[node] = true
	}
}

// sweep deletes what the nodes have in surplus that changed. Nodes where that fails stay
// dirty.
func (s *surplus) sweep(ctx context.Context) error {
	ctx, end := s.loop.Begin(ctx)
	defer end()
	if len(s.dirty) == 0 {
		return nil
	}
	ranges, err := s.ranges(ctx)
	if err != nil {
		return err
	}
	var blocks []*api.PodBlock
	for node := range s.dirty {
		for _, b := range s.nodes[node] {
			blocks = append(blocks, b)
		}
	}
	_, extra := kube.SplitBlocks(blocks, ranges)
	clear(s.dirty)
	deleted := map[string]int{}
	var failed error
	for i, err := range s.remove(ctx, extra) {
		b := extra[i]
		if err != nil {
			failed = fmt.Errorf("PodBlock %s of node %s: %w", b.Meta.Name, b.Spec.NodeName, err)
			s.dirty[b.Spec.NodeName] = true
			continue
		}
		delete(s.nodes[b.Spec.NodeName], b.Meta.Name)
		deleted[b.Spec.NodeName]++
	}
	for node, n := range deleted {
		s.metrics.deleted.Add(float64(n))
		if s.reported.Due("node " + node) {
			s.log.Warn("a node claims more PodBlocks than count: deleted those in surplus. A node needs one of each IP version: check who uses its credentials, "+
				"and ban it (banned in the PodNetwork)", "node", node, "deleted", n, "counting", kube.MostBlocks)
		}
	}
	return failed
}

// remove deletes blocks, several at a time; the errors are in their order. One that is gone
// is no error.
func (s *surplus) remove(ctx context.Context, blocks []*api.PodBlock) []error {
	errs := make([]error, len(blocks))
	slots := make(chan struct{}, workers)
	var all sync.WaitGroup
	for i, b := range blocks {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = removed(ctx, s.api, api.PodBlocks().Path(b.Meta.Name), b.Meta.UID)
		})
	}
	all.Wait()
	return errs
}

// ranges are those of the PodNetwork in force: while it is wrong, which API servers before Kubernetes 1.31 accept, the one before.
// Without any nothing is in surplus.
func (s *surplus) ranges(ctx context.Context) ([]netip.Prefix, error) {
	var n api.PodNetwork
	if err := s.api.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n); err != nil {
		return nil, fmt.Errorf("read the PodNetwork: %w", err)
	}
	network, err := kube.ReadNetwork(&n)
	switch {
	case err == nil:
		s.inForce = network.PodCIDRs
	case s.inForce == nil:
		return nil, fmt.Errorf("PodNetwork %s: %w", api.NetworkName, err)
	}
	return s.inForce, nil
}
