package peers

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

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

	before paths.Path // the one of the last event
	name   string     // of the peer, for the log
}

// changes is what the log will say: one line of all that happens to a peer's path until that has been quiet for a moment, or
// has gone on for long. A punch moves both lanes, each over two transports.
type changes struct {
	log *slog.Logger
	by  map[peer.ID]*change
}

type change struct {
	from, to Event
	lost     bool
	since    time.Time // of the first event
	at       time.Time // of the last one
}

// quiet is how long a path has to stay, long how late a line is at most for one that does not, patience how often they are
// looked at.
const (
	quiet    = time.Second
	long     = 10 * quiet
	patience = quiet / 4
)

func (c *changes) add(e Event, now time.Time) {
	x := c.by[e.Peer]
	if x == nil {
		x = &change{from: e, since: now}
		c.by[e.Peer] = x
	}
	x.to, x.at, x.lost = e, now, x.lost || e.Kind == PathLost
}

// write logs what is quiet, or has waited for long; all, if this is the end.
func (c *changes) write(ctx context.Context, now time.Time) {
	for id, x := range c.by {
		if now.Sub(x.at) < quiet && now.Sub(x.since) < long && ctx.Err() == nil {
			continue
		}
		delete(c.by, id)
		from, to := x.from.before, x.to.Path
		level, kind := slog.LevelInfo, PathChanged
		switch {
		case x.to.Kind == PathClosed && !x.lost:
			level, kind = slog.LevelDebug, PathClosed
		case x.lost && to.Kind == paths.KindNone:
			kind = PathLost
		case from.Kind == to.Kind && from.Transport == to.Transport: // the other lane's path, or the same as before
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, kind.String(), "peer", x.to.name, "path", to.Kind, "transport", to.Transport, "before", cmp.Or(from.Kind, paths.KindNone), "lost", x.lost)
	}
}

// dispatcher calls the listener, outside of all locks and in order.
type dispatcher struct {
	mu    sync.Mutex // a leaf
	queue []Event
	f     func(Event)
	wake  wake.One

	changes changes // run's
}

func newDispatcher(log *slog.Logger) *dispatcher {
	return &dispatcher{wake: wake.NewOne(), changes: changes{log, make(map[peer.ID]*change)}}
}

func (d *dispatcher) set(f func(Event)) {
	d.mu.Lock()
	d.f = f
	d.mu.Unlock()
}

func (d *dispatcher) emit(e Event) {
	d.mu.Lock()
	d.queue = append(d.queue, e)
	d.mu.Unlock()
	d.wake.Wake()
}

func (d *dispatcher) run(ctx context.Context) {
	for {
		var later <-chan time.Time
		if len(d.changes.by) > 0 {
			later = time.After(patience)
		}
		select {
		case <-ctx.Done():
			d.changes.write(ctx, time.Now())
			return
		case <-later:
			d.changes.write(ctx, time.Now())
			continue
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
			d.changes.add(e, time.Now())
			if f != nil {
				f(e)
			}
		}
		d.changes.write(ctx, time.Now())
	}
}
