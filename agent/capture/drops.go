package capture

import (
	"time"

	"edgemesh/agent/control"
	"edgemesh/internal/wording"
)

const (
	// dropsEvery is the least time between two looks at what NetworkPolicies drop, dropsStay how long a flow's answer counts, and
	// mostFlows how many are known.
	dropsEvery = 50 * time.Millisecond
	dropsStay  = 2 * time.Second
	mostFlows  = 10_000
)

// Drops knows which packets from other nodes NetworkPolicies drop here, behind the interface that they come in by. It must not be used
// concurrently.
type Drops struct {
	fetch   func() []control.PolicyFlow // dropped within the last minute
	fetched time.Time
	by      map[flow]string
	known   map[flow]time.Time
}

// flow is what a policy judges.
type flow struct {
	from, to, protocol string
	port               uint16
}

// NewDrops returns Drops. fetch queries the agent; it is called at most once in 50 ms, when a flow has a packet that is new or was not looked
// up for 2 s.
func NewDrops(fetch func() []control.PolicyFlow) *Drops {
	return &Drops{fetch: fetch, known: map[flow]time.Time{}}
}

// Comment names the policies that drop the packet, "" if none does.
func (d *Drops) Comment(p Packet) string {
	h, ok := headerOf(p.Data)
	if !ok || p.Out {
		return ""
	}
	f := flow{h.src.Addr().String(), h.dst.Addr().String(), h.protocol, h.dst.Port()}
	if time.Since(d.known[f]) >= dropsStay && time.Since(d.fetched) >= dropsEvery {
		d.by, d.fetched = map[flow]string{}, time.Now()
		for _, x := range d.fetch() {
			if x.Direction == "ingress" {
				d.by[flow{x.From, x.To, x.Protocol, x.Port}] = wording.Foreign(wording.List(x.Policies), 1<<10)
			}
		}
		if len(d.known) >= mostFlows {
			clear(d.known)
		}
		d.known[f] = d.fetched
	}
	if by := d.by[f]; by != "" {
		return ", dropped here by NetworkPolicy " + by
	}
	return ""
}
