package observe

import (
	"context"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

const (
	// spread is over which time members come: a relay and a controller take in all of them.
	spread = 10 * time.Second
	// longestStay is the longest pause after visits that failed.
	longestStay = time.Minute
)

// Visits keeps this node connected to a controller that watches, for that long. The controller is not a member: it cannot connect
// to this node itself. Over that connection it observes as others do. All fields are required.
type Visits struct {
	Plan    func() mesh.Plan
	Changed <-chan struct{} // Plan may watch others now
	// Visit connects, and has answer serve streams until ctx or the connection ends.
	Visit  func(ctx context.Context, by []mesh.PeerID, answer func(mesh.PeerID, Stream)) error
	Answer func(mesh.PeerID, Stream)
	Log    *slog.Logger
}

// Run visits until ctx ends. While nobody watches it sleeps.
func (v Visits) Run(ctx context.Context) {
	first := v.turn()
	for pause := first; ; {
		by := v.by()
		if len(by) == 0 {
			pause = first
			select {
			case <-ctx.Done():
				return
			case <-v.Changed:
			}
			continue
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
		if err := v.stay(ctx, by); err != nil && ctx.Err() == nil {
			v.Log.Debug("this node's paths are not on the controller's map", "controllers", by, "err", err)
			pause = min(2*max(pause, time.Second), longestStay)
		} else {
			pause = first
		}
	}
}

// stay visits until the same ones no longer watch.
func (v Visits) stay(ctx context.Context, by []mesh.PeerID) error {
	ctx, leave := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer leave()
	looking.Go(func() {
		for slices.Equal(v.by(), by) && wake.Sleep(ctx, time.Second) {
		}
		leave()
	})
	return v.Visit(ctx, by, v.Answer)
}

func (v Visits) by() []mesh.PeerID { return v.Plan().Watched.At(time.Now()) }

// turn is when it is this node's turn.
func (v Visits) turn() time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(v.Plan().Self.PeerID))
	return time.Duration(h.Sum32()) * time.Nanosecond % spread
}
