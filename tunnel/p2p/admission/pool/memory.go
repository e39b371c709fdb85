package pool

// Memory is a set that forgets its oldest element when it is full. Its owner locks it.
type Memory[K comparable] struct {
	most  int
	set   map[K]struct{}
	order []K // oldest first
}

// NewMemory returns an empty set for at most so many elements.
func NewMemory[K comparable](most int) *Memory[K] {
	return &Memory[K]{most: most, set: make(map[K]struct{})}
}

// Add adds k.
func (m *Memory[K]) Add(k K) {
	if m.Has(k) {
		return
	}
	if len(m.order) == m.most {
		delete(m.set, m.order[0])
		m.order = m.order[1:]
	}
	m.set[k] = struct{}{}
	m.order = append(m.order, k)
}

// Has reports whether k is in the set.
func (m *Memory[K]) Has(k K) bool {
	_, ok := m.set[k]
	return ok
}
