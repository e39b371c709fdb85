package livemap

import "edgemesh/agent/observe"

// detail is what is known of one pair.
type detail struct {
	A       string   `json:"a"`
	B       string   `json:"b"`
	Ends    []side   `json:"ends"`    // of those that report it
	History []change `json:"history"` // the latest first
}

// side is what one end says: the pair, whose relay has its name.
type side struct {
	observe.Pair
	Node string  `json:"node"`
	Mbps float64 `json:"mbps"` // that it sends
}

// detail returns what is known of a pair; ok is false if it was never seen.
func (m *model) detail(a, b string) (d detail, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := pairOf(a, b)
	p := m.pairs[key]
	if p == nil {
		return detail{}, false
	}
	d = detail{A: key[0], B: key[1], Ends: []side{}, History: []change{}}
	for i := range key {
		here, there := m.members[key[i]].ends[key[1-i]], m.members[key[1-i]].ends[key[i]]
		if here == nil {
			continue
		}
		end := side{here.Pair, key[i], throughput(here, there)}
		end.Relay = m.nameOf(here.Relay)
		d.Ends = append(d.Ends, end)
	}
	for i := range p.history {
		d.History = append(d.History, p.history[len(p.history)-1-i])
	}
	return d, true
}
