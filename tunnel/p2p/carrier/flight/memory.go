package flight

import "sync/atomic"

// leastHeld is what a peer may hold of a kind however much the others do, bytes: 64 packets of full size in flight, and as many behind holes.
const leastHeld = 128 << 10

// Memory bounds what all peers of a node hold together, bytes, in frames that are not acknowledged, in pieces behind holes and in frames that have begun.
type Memory struct {
	most int64
	held atomic.Int64
}

// NewMemory returns one of so many bytes.
func NewMemory(most int) *Memory { return &Memory{most: int64(most)} }

// share is what a peer holds of a kind.
type share struct {
	bytes int
	of    *Memory
}

func (s *share) add(n int) {
	s.bytes += n
	s.of.held.Add(int64(n))
}

// fits reports whether it may hold more, and so many bytes at most.
func (s *share) fits(more, most int) bool {
	after := s.bytes + more
	return after <= most && (after <= leastHeld || s.of.held.Load()+int64(more) <= s.of.most)
}
