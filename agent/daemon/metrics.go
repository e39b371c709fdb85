package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/tunnel"
)

const (
	metricsHeaderTimeout = 5 * time.Second
	metricsShutdown      = time.Second
)

// collector reads the numbers when they are scraped: the packet path has its own counters
// and does not know Prometheus.
type collector struct {
	b                                                          *backend
	bytes, packets, drops, refused, marks, peers, relays, good *prometheus.Desc
	poolSize, poolAddresses, poolOldest                        *prometheus.Desc
}

func newCollector(b *backend) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("edgemesh_"+name, help, labels, nil)
	}
	return &collector{
		b:       b,
		bytes:   desc("tunnel_bytes_total", "IP bytes carried, by direction.", "direction"),
		packets: desc("tunnel_packets_total", "Packets carried, by direction; a super-segment counts once.", "direction"),
		drops:   desc("tunnel_drops_total", "Packets dropped, by reason.", "reason"),
		refused: desc("refused_total", "What was refused of members: packets, sessions, offers and dials of addresses that they named; by reason.", "reason"),
		marks:   desc("tunnel_ecn_marks_total", "Packets marked \"congestion experienced\" (ECN) where others would have been dropped for delay; a super-segment counts once."),
		peers:   desc("peers", "Members by the path to them.", "path"),
		relays:  desc("relays", "Relays of the membership by state.", "state"),
		good:    desc("membership_good", "1 while the membership source is readable and valid."),

		poolSize:      desc("pool_size", "Addresses that this node's pods can have, by IP family.", "family"),
		poolAddresses: desc("pool_addresses", "Addresses used by pods, and free ones kept for deleted pods' names.", "family", "state"),
		poolOldest:    desc("pool_oldest_release_timestamp_seconds", "When the pod that is gone longest, of those with an address kept, went.", "family"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	total := c.b.tunnel.Stats().Total
	counter(c.bytes, total.TxBytes, "tx")
	counter(c.bytes, total.RxBytes, "rx")
	counter(c.packets, total.TxPackets, "tx")
	counter(c.packets, total.RxPackets, "rx")
	for _, r := range tunnel.Reasons() {
		counter(c.drops, total.Drops.Of(r), r.String())
	}
	counter(c.marks, total.Marked)
	for reason, n := range c.b.node.Refused() {
		counter(c.refused, n, reason)
	}
	s := c.b.Status()
	paths := map[string]int{}
	for _, p := range s.Peers {
		paths[p.Path]++
	}
	for path, n := range paths {
		gauge(c.peers, float64(n), path)
	}
	states := map[string]int{"connected": 0, "reserved": 0}
	for _, r := range s.Relays {
		if r.Connected {
			states["connected"]++
		}
		if r.Reserved {
			states["reserved"]++
		}
	}
	for state, n := range states {
		gauge(c.relays, float64(n), state)
	}
	c.collectPools(gauge, s.Pools)
	good := 1.0
	if _, problem := c.b.force.plan(); problem != nil {
		good = 0
	}
	gauge(c.good, good)
}

func (c *collector) collectPools(gauge func(*prometheus.Desc, float64, ...string), pools []control.Pool) {
	for _, p := range pools {
		family := "ipv4"
		if len(p.Blocks) > 0 && strings.Contains(p.Blocks[0], ":") {
			family = "ipv6"
		}
		gauge(c.poolSize, float64(p.Size), family)
		gauge(c.poolAddresses, float64(p.Used), family, "used")
		gauge(c.poolAddresses, float64(p.Kept), family, "kept")
		if p.Oldest != nil {
			gauge(c.poolOldest, float64(p.Oldest.Unix()), family)
		}
	}
}

// listenMetrics opens the port of the metrics. The error is a *config.KeyError: missing
// metrics without a word would be worse.
func (d *daemon) listenMetrics() error {
	if d.cfg.MetricsAddress == "" {
		return nil
	}
	l, err := net.Listen("tcp", d.cfg.MetricsAddress)
	if err != nil {
		return &config.KeyError{Key: "metricsAddress", Err: fmt.Errorf("%w; free the port, set another one, or \"\" for none", err)}
	}
	d.metrics = l
	return nil
}

// serveMetrics serves /metrics and /healthz until stop is called.
func (d *daemon) serveMetrics(b *backend) (stop func()) {
	if d.metrics == nil {
		return func() {}
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(b), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", healthz)
	return serveHTTP(d.metrics, mux, d.log)
}

// healthz answers a pod's probes: the process runs.
func healthz(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// serveHTTP serves h on l until stop is called.
func serveHTTP(l net.Listener, h http.Handler, logger *slog.Logger) (stop func()) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: metricsHeaderTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("metrics stopped", "err", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), metricsShutdown)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close() // what did not end in time
		}
		<-done
	}
}
