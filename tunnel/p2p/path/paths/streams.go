package paths

import (
	"maps"
	"slices"
	"sync"
)

// stream is one, to be reset. One of a lane continues on another path.
type stream interface {
	Reset()
	ofLane() bool
}

// streams are those that are open on a connection.
type streams struct {
	mu   sync.Mutex // a leaf
	open map[stream]struct{}
}

func newStreams() streams { return streams{open: make(map[stream]struct{})} }

func (ss *streams) add(s stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.open[s] = struct{}{}
}

func (ss *streams) remove(s stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, s)
}

// Streams is how many are open, and how many of those belong to the two lanes.
func (ss *streams) Streams() (all, lanes int) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for s := range ss.open {
		if s.ofLane() {
			lanes++
		}
	}
	return len(ss.open), lanes
}

// ResetStreams resets all that are open.
func (ss *streams) ResetStreams() {
	ss.mu.Lock()
	all := slices.Collect(maps.Keys(ss.open))
	ss.mu.Unlock()
	for _, s := range all {
		s.Reset()
	}
}
