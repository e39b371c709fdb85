package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/agent/describe"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/relay/relayservice"
)

// tunnelKinds are the kinds of paths through the tunnel, memberPaths all that a member can have, memberTransports what carries packets on
// them; the values of labels.
var (
	tunnelKinds      = []paths.Kind{paths.KindDirect, paths.KindPunched, paths.KindRelayed}                                      //nolint:gochecknoglobals // a constant
	memberPaths      = []string{"native", "vxlan", "direct", "punched", "relayed", "none", describe.Idle}                        //nolint:gochecknoglobals // a constant
	memberTransports = []string{"ip", "vxlan", "sealed", "tcp", "quic", "relay/tcp", "relay/quic", "relay/ws"}                   //nolint:gochecknoglobals // a constant
	natKinds         = []ladder.NAT{ladder.NATUnknown, ladder.NATNone, ladder.NATStable, ladder.NATSequential, ladder.NATRandom} //nolint:gochecknoglobals // a constant
)

// counts are what happens to paths since the start. Each series exists from then on: one that appears late has no rate.
type counts struct {
	changes *prometheus.CounterVec // by the path that is used now
	punches *prometheus.CounterVec
	probes  *prometheus.HistogramVec
	queues  *prometheus.HistogramVec
	relay   *relayservice.Metrics // nil: this node is no relay
}

func newCounts(relay *relayservice.Limits) *counts {
	histogram := func(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, NativeHistogramBucketFactor: 1.2,
			NativeHistogramMaxBucketNumber: 60, Buckets: buckets}, []string{label})
	}
	c := &counts{
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "edgemesh_path_changes_total",
			Help: "Changes of the tunnel's path to a member, by the path used since, and whether the one before was lost."}, []string{"path", "lost"}),
		punches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "edgemesh_punch_attempts_total",
			Help: "Attempts to punch holes, by the kind of NAT here and there, and by result."}, []string{"here", "there", "result"}),
		probes: histogram("edgemesh_probe_rtt_seconds", "Round trips of answered probes, by the kind of path.", "path",
			.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5),
		queues: histogram("edgemesh_queue_delay_seconds", "How long packets have waited here for a path of the tunnel, by its kind; a sample of each busy lane every 20 ms.", "path",
			.0001, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1),
	}
	if relay != nil {
		c.relay = relayservice.NewMetrics(*relay)
	}
	for _, k := range tunnelKinds {
		c.probes.WithLabelValues(string(k))
		c.queues.WithLabelValues(string(k))
	}
	for _, k := range append([]paths.Kind{paths.KindNone}, tunnelKinds...) {
		c.changes.WithLabelValues(string(k), "true")
		c.changes.WithLabelValues(string(k), "false")
	}
	for _, here := range natKinds {
		for _, there := range natKinds {
			c.punches.WithLabelValues(here.String(), there.String(), "direct")
			c.punches.WithLabelValues(here.String(), there.String(), "failed")
		}
	}
	return c
}

func (c *counts) collectors() []prometheus.Collector {
	out := []prometheus.Collector{c.changes, c.punches, c.probes, c.queues}
	if c.relay != nil {
		out = append(out, c.relay.Collectors()...)
	}
	return out
}

func (c *counts) probed(k paths.Kind, rtt time.Duration) {
	c.probes.WithLabelValues(string(k)).Observe(rtt.Seconds())
}

func (c *counts) queued(k paths.Kind, d time.Duration) {
	c.queues.WithLabelValues(string(k)).Observe(d.Seconds())
}

func (c *counts) punched(mine, theirs ladder.NAT, ok bool) {
	result := "failed"
	if ok {
		result = "direct"
	}
	c.punches.WithLabelValues(mine.String(), theirs.String(), result).Inc()
}

func (c *counts) changed(e peers.Event) {
	lost := "false"
	if e.Kind == peers.PathLost {
		lost = "true"
	}
	c.changes.WithLabelValues(string(e.Path.Kind), lost).Inc()
}
