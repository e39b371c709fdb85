package paths

import (
	"maps"
	"slices"
	"sync"
)

// stream is one, to be reset.
type stream interface{ Reset() }

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

// Streams is how many are open.
func (ss *streams) Streams() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.open)
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
