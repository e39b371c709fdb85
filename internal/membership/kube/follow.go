package kube

import (
	"context"
	"sync"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
)

// News is what the API has said of a kind: all of it, one change, or why it cannot be followed now.
type News struct {
	All     bool         // List is all there is
	Proved  bool         // and an API server said so: what it lacks does not exist
	List    []api.Object // of which nothing is shared
	Event   client.Event // otherwise, unless What is ""
	Missing error        // an API server said that it has no such kind, or forbade to read it
	Err     error        // it cannot be followed now
}

// Follow lists and watches a kind beside the membership's, until ctx ends, with the membership's proofs; on is called from its goroutine.
// Edge-local caches need not keep it.
func (s *Source) Follow(ctx context.Context, k api.Kind, on func(News)) {
	in, again := make(chan any), wake.NewOne()
	defer s.also.add(again)()
	r := &reflector{kind: k, c: client.Brief(s.c), prover: s.prover, self: s.cfg.NodeName, out: in, relist: again}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.run(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-in:
			switch m := m.(type) {
			case listed:
				on(News{All: m.missing == nil, Proved: m.proof != nil, List: m.items, Missing: m.missing})
			case event:
				on(News{Event: client.Event{What: m.what, Object: m.obj}})
			case trouble:
				if m.err != nil {
					on(News{Err: m.err})
				}
			}
		}
	}
}

// Has reports whether the API surely has objects of another kind; of a cache it requests nothing.
func (s *Source) Has(ctx context.Context, k api.Kind) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return !s.c.Cache() && s.c.Has(ctx, k)
}

// followers are the kinds that are followed beside the membership's.
type followers struct {
	mu  sync.Mutex
	all map[wake.One]bool // whose lists are made again when the API answers after an outage
}

func (f *followers) add(again wake.One) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[wake.One]bool{}
	}
	f.all[again] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.all, again)
	}
}

func (f *followers) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for again := range f.all {
		again.Wake()
	}
}
