package link

import "time"

// fifo is a ring of frames.
type fifo struct {
	ring       [][]byte
	head, used int
}

func (f *fifo) len() int { return f.used }

// first returns the oldest frame, nil when there is none.
func (f *fifo) first() []byte {
	if f.used == 0 {
		return nil
	}
	return f.ring[f.head]
}

func (f *fifo) push(frame []byte) {
	if f.used == len(f.ring) {
		ring := make([][]byte, max(64, 2*len(f.ring)))
		n := copy(ring, f.ring[f.head:])
		copy(ring[n:], f.ring[:f.head])
		f.ring, f.head = ring, 0
	}
	f.ring[(f.head+f.used)%len(f.ring)] = frame
	f.used++
}

func (f *fifo) pop() []byte {
	frame := f.ring[f.head]
	f.ring[f.head] = nil
	f.head = (f.head + 1) % len(f.ring)
	f.used--
	return frame
}

// flying is a frame in flight.
type flying struct {
	at     time.Duration // when it comes out
	number uint64        // keeps the order of those that come out together
	frame  []byte
}

func (a flying) before(b flying) bool { return a.at < b.at || a.at == b.at && a.number < b.number }

// frameHeap is a binary heap, the next to come out first. Frames mostly come in
// order, so that a push is O(1) in practice.
type frameHeap []flying

func (h *frameHeap) push(f flying) {
	s := append(*h, f)
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s[i].before(s[parent]) {
			break
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
	*h = s
}

func (h *frameHeap) pop() flying {
	s := *h
	top, n := s[0], len(s)-1
	s[0], s[n] = s[n], flying{}
	s = s[:n]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < n && s[child].before(s[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
	*h = s
	return top
}
