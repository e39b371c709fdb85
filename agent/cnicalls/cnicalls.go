// Package cnicalls exports the calls of the CNI plugin, which leaves them for the agent, as metrics.
package cnicalls

import (
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/internal/cni/calls"
)

// Collector takes the calls whenever it is scraped.
type Collector struct {
	dir      string
	log      *slog.Logger
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu   sync.Mutex // one scrape at a time
	said string     // the last error
}

var _ prometheus.Collector = (*Collector)(nil)

// New takes calls from a runtime directory.
func New(runtimeDir string, log *slog.Logger) *Collector {
	c := &Collector{dir: runtimeDir, log: log,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "edgemesh_cni_calls_total",
			Help: "Calls of the CNI plugin, by verb and result; try_again are those that the runtime repeats."}, []string{"verb", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "edgemesh_cni_call_seconds",
			Help: "How long calls of the CNI plugin took, by verb.", NativeHistogramBucketFactor: 1.2, NativeHistogramMaxBucketNumber: 60,
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}}, []string{"verb"}),
	}
	for _, verb := range calls.Verbs() {
		c.duration.WithLabelValues(verb)
		for _, result := range calls.Results() {
			c.total.WithLabelValues(verb, result)
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.total.Describe(ch)
	c.duration.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.take()
	c.total.Collect(ch)
	c.duration.Collect(ch)
}

func (c *Collector) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := calls.Take(c.dir)
	if err != nil && err.Error() != c.said {
		c.said = err.Error()
		c.log.Warn("calls of the CNI plugin are not counted", "err", err)
	}
	for _, x := range all {
		c.total.WithLabelValues(x.Verb, x.Result).Inc()
		c.duration.WithLabelValues(x.Verb).Observe(x.Took.Seconds())
	}
}
