package relayservice

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
)

// carried is what each member has sent through this relay. There are series of those alone that have sent something, as long
// as they are members.
type carried struct {
	bytes *prometheus.Desc

	mu       sync.Mutex // a leaf: guards what follows
	isMember func(peer.ID) bool
	name     func(peer.ID) string
	by       map[peer.ID]*sums // perhaps former members among them
	most     int               // so many are kept without a look whether they are members
}

// fewCarried is the least of that.
const fewCarried = 256

// sums are one member's bytes.
type sums struct{ circuits, forwarded atomic.Uint64 }

var _ prometheus.Collector = (*carried)(nil)

func newCarried() *carried {
	return &carried{by: make(map[peer.ID]*sums), most: fewCarried,
		isMember: func(peer.ID) bool { return true }, name: peer.ID.String,
		bytes: prometheus.NewDesc("edgemesh_relay_member_bytes_total",
			"Bytes that members have sent through this relay, by kind: circuit or forwarded; of those that have sent some, while they are members.",
			[]string{"node", "kind"}, nil)}
}

// follow says who is a member, and how it is called.
func (c *carried) follow(isMember func(peer.ID) bool, name func(peer.ID) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isMember, c.name = isMember, name
}

// of returns where p's bytes are counted.
func (c *carried) of(p peer.ID) *sums {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.by[p]
	if s == nil {
		s = new(sums)
		c.by[p] = s
	}
	return s
}

// tidy forgets former members once there may be many.
func (c *carried) tidy() {
	c.mu.Lock()
	many := len(c.by) > c.most
	c.mu.Unlock()
	if many {
		c.members()
	}
}

// members are those of now, and how they are called; others are forgotten.
func (c *carried) members() (by map[peer.ID]*sums, name func(peer.ID) string) {
	c.mu.Lock()
	by, name = maps.Clone(c.by), c.name
	isMember := c.isMember
	c.mu.Unlock()
	var gone []peer.ID
	for p := range by {
		if !isMember(p) {
			gone = append(gone, p)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range gone {
		delete(by, p)
		delete(c.by, p)
	}
	c.most = max(fewCarried, 2*len(c.by))
	return by, name
}

// Describe implements prometheus.Collector.
func (c *carried) Describe(out chan<- *prometheus.Desc) { out <- c.bytes }

// Collect implements prometheus.Collector.
func (c *carried) Collect(out chan<- prometheus.Metric) {
	named := make(map[string][2]uint64) // two members of one name, while a node is replaced, are one series
	by, name := c.members()
	for p, s := range by {
		sum := named[name(p)]
		named[name(p)] = [2]uint64{sum[0] + s.circuits.Load(), sum[1] + s.forwarded.Load()}
	}
	for name, sum := range named {
		for i, kind := range []string{"circuit", "forwarded"} {
			if sum[i] > 0 {
				out <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(sum[i]), name, kind)
			}
		}
	}
}
