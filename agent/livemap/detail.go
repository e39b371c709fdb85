package livemap

import (
	"time"
)

// detail is what is known of one pair.
type detail struct {
	A       string   `json:"a"`
	B       string   `json:"b"`
	Ends    []side   `json:"ends"`    // of those that report it
	History []change `json:"history"` // the latest first
}

// side is what one end says.
type side struct {
	Node      string     `json:"node"`
	Path      string     `json:"path"`
	Transport string     `json:"transport,omitempty"`
	Relay     string     `json:"relay,omitempty"`
	RTTMs     *float64   `json:"rttMs,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Mbps      float64    `json:"mbps"` // that it sends
	TxBytes   uint64     `json:"tx"`
	RxBytes   uint64     `json:"rx"`
	LANBytes  uint64     `json:"lanRx"`
	QueueMs   *float64   `json:"queueMs,omitempty"`
	Drops     uint64     `json:"drops"`
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
		d.Ends = append(d.Ends, side{
			Node: key[i], Path: here.Path, Transport: here.Transport, Relay: m.nameOf(here.Relay), RTTMs: here.RTTMs, Since: here.Since, Reason: here.Reason,
			Mbps: throughput(here, there), TxBytes: here.TxBytes, RxBytes: here.RxBytes, LANBytes: here.LANBytes, QueueMs: here.QueueMs, Drops: here.Drops,
		})
	}
	for i := range p.history {
		d.History = append(d.History, p.history[len(p.history)-1-i])
	}
	return d, true
}
