package peers

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/path/paths"
)

// EventKind says what happened to a peer's paths.
type EventKind int

const (
	// PathChanged: a better path than the one in use is there; new streams take it.
	PathChanged EventKind = iota + 1
	// PathLost: the path in use is gone, and the streams on it with it.
	PathLost
	// PathClosed is PathLost after a time without traffic: the peer, or this node, needs the path no longer.
	PathClosed
)

func (k EventKind) String() string {
	return [...]string{"", "path changed", "path lost", "unused path closed"}[k]
}

// Event is a change of the best path to a peer.
type Event struct {
	Peer peer.ID
	Kind EventKind
	Path paths.Path // the best path now
}

// dispatcher calls the listener, outside of all locks and in order.
type dispatcher struct {
	mu    sync.Mutex // a leaf
	queue []Event
	f     func(Event)
	wake  wake.One
}

func newDispatcher() *dispatcher { return &dispatcher{wake: wake.NewOne()} }

func (d *dispatcher) set(f func(Event)) {
	d.mu.Lock()
	d.f = f
	d.mu.Unlock()
}

func (d *dispatcher) emit(e Event) {
	d.mu.Lock()
	if d.f != nil {
		d.queue = append(d.queue, e)
	}
	d.mu.Unlock()
	d.wake.Wake()
}

func (d *dispatcher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		for {
			d.mu.Lock()
			if len(d.queue) == 0 {
				d.mu.Unlock()
				break
			}
			e, f := d.queue[0], d.f
			d.queue = d.queue[1:]
			d.mu.Unlock()
			f(e)
		}
	}
}
