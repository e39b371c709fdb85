package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/internal/config"
	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
)

// collector reads the numbers when they are scraped: the packet path has its own counters
// and does not know Prometheus.
type collector struct {
	tunnel *tunnel.Tunnel
	node   *p2p.Node
	paths  *lanPaths
	reach  reach
	source interface{ Contact() *client.Contact }
	pools  func() []control.Pool
	good   func() bool // the membership's source is readable and valid

	bytes, packets, drops, refused, marks, peers, relays, valid *prometheus.Desc
	poolSize, poolAddresses, poolOldest, carried, lan, knocks   *prometheus.Desc
	apiRequests, apiAnswer, budget, proxy                       *prometheus.Desc
	all                                                         []*prometheus.Desc
}

// named fills in the metrics' names, and returns c.
func (c *collector) named() *collector {
	var all []*prometheus.Desc
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("edgemesh_"+name, help, labels, nil)
		all = append(all, d)
		return d
	}
	c.bytes = desc("tunnel_bytes_total", "IP bytes carried, by direction.", "direction")
	c.packets = desc("tunnel_packets_total", "Packets carried, by direction; a super-segment counts once.", "direction")
	c.drops = desc("tunnel_drops_total", "Packets dropped, by reason.", "reason")
	c.refused = desc("refused_total", "What was refused: connections and streams, of strangers and members, and of members packets, sessions, offers and dials of addresses that they named; by reason.", "reason")
	c.marks = desc("tunnel_ecn_marks_total", "Packets marked \"congestion experienced\" (ECN) where others would have been dropped for delay; a super-segment counts once.")
	c.peers = desc("peers", "Members by the path to them.", "path")
	c.relays = desc("relays", "Relays of the membership: known, connected and reserved at.", "state")
	c.valid = desc("membership_good", "1 while the membership source is readable and valid.")
	c.carried = desc("path_bytes_total", "Bytes that paths of the tunnel have carried, encryption aside, by kind of path and direction.", "path", "direction")
	c.knocks = desc("handshakes", "Handshakes of peers that are not known yet: places, and those taken now.", "state")
	c.budget = desc("punch_budget_packets", "Packets a minute to addresses that a peer names and that are not known to be its own: the limit for each peer, and the most that went for one.", "of")
	c.proxy = desc("proxy_failures_total", "Connections to relays that the HTTP proxy did not give, by cause.", "cause")
	c.lan = desc("lan_received_bytes_total", "IP bytes that came in past the tunnel, by kind of path; of VXLAN with its headers.", "path")
	c.apiRequests = desc("api_requests_total", "Requests to the API, or to the cache on the node, by what came of them.", "result")
	c.apiAnswer = desc("api_last_answer_timestamp_seconds", "When the API, or the cache on the node, was heard last; 0: never.")
	c.poolSize = desc("pool_size", "Addresses that this node's pods can have, by IP family.", "family")
	c.poolAddresses = desc("pool_addresses", "Addresses used by pods, and free ones kept for deleted pods' names.", "family", "state")
	c.poolOldest = desc("pool_oldest_release_timestamp_seconds", "When the pod that is gone longest, of those with an address kept, went.", "family")
	c.all = all
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	total := c.tunnel.Stats().Total
	counter(c.bytes, total.TxBytes, "tx")
	counter(c.bytes, total.RxBytes, "rx")
	counter(c.packets, total.TxPackets, "tx")
	counter(c.packets, total.RxPackets, "rx")
	for _, r := range tunnel.Reasons() {
		counter(c.drops, total.Drops.Of(r), r.String())
	}
	counter(c.marks, total.Marked)
	for reason, n := range c.node.Refused() {
		counter(c.refused, n, strings.ReplaceAll(reason, " ", "_"))
	}
	for cause, n := range c.node.ProxyFailures() {
		counter(c.proxy, n, cause)
	}
	carried := c.node.Carried()
	for _, k := range tunnelKinds {
		counter(c.carried, carried[k].Tx, string(k), "tx")
		counter(c.carried, carried[k].Rx, string(k), "rx")
	}
	places, taken := c.node.Handshakes()
	gauge(c.knocks, float64(places), "places")
	gauge(c.knocks, float64(taken), "taken")
	limit, spent := c.node.PunchBudget()
	gauge(c.budget, float64(limit), "limit")
	gauge(c.budget, float64(spent), "spent")
	received := c.paths.received()
	for _, k := range []mesh.PathKind{mesh.Native, mesh.VXLAN} {
		counter(c.lan, received[k], string(k))
	}
	paths := map[string]int{}
	for _, path := range memberPaths {
		paths[path] = 0
	}
	used, idle := c.reach.peers(false)
	paths[describe.Idle] = idle
	for _, p := range used {
		paths[p.Path]++
	}
	for path, n := range paths {
		gauge(c.peers, float64(n), path)
	}
	known := c.node.Status().Relays
	states := map[string]int{"known": len(known), "connected": 0, "reserved": 0}
	for _, r := range known {
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
	c.collectPools(gauge, c.pools())
	if api := c.source.Contact(); api != nil {
		c.collectAPI(ch, *api)
	}
	good := 1.0
	if !c.good() {
		good = 0
	}
	gauge(c.valid, good)
}

func (c *collector) collectAPI(ch chan<- prometheus.Metric, api client.Contact) {
	for result, n := range map[string]uint64{"answered": api.Answered, "refused": api.Refused, "failed": api.Failed} {
		ch <- prometheus.MustNewConstMetric(c.apiRequests, prometheus.CounterValue, float64(n), result)
	}
	last := 0.0
	if !api.Last.IsZero() {
		last = float64(api.Last.UnixMilli()) / 1000
	}
	ch <- prometheus.MustNewConstMetric(c.apiAnswer, prometheus.GaugeValue, last)
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

// listenMetrics opens the port of the metrics, nil where there are none. The error is a *config.KeyError: missing
// metrics without a word would be worse.
func listenMetrics(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // no port is wanted
	}
	at, _ := endpoint.Loopback(address)
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, &config.KeyError{Key: "metricsAddress", Err: fmt.Errorf("%w; free the port, set another one, or \"\" for none", err)}
	}
	return l, nil
}

// metricsServer serves /metrics, /healthz and /readyz on a port that is open.
type metricsServer struct {
	listener   net.Listener // nil: there are no metrics
	address    string       // metricsAddress
	collectors []prometheus.Collector
	ready      func() error
	log        *slog.Logger
}

// start serves until stop is called. follow takes this node's mesh addresses whenever they may have changed.
func (m metricsServer) start() (follow func([]netip.Addr), stop func()) {
	follow = func([]netip.Addr) {}
	if m.listener == nil {
		return follow, func() {}
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(m.collectors...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	handleProbes(mux, func(context.Context) error { return m.ready() })
	stop = endpoint.Serve(m.listener, mux, m.log)
	if _, inMesh := endpoint.Loopback(m.address); !inMesh {
		return follow, stop
	}
	f, err := endpoint.NewFollower(m.listener.Addr(), mux, m.log)
	if err != nil {
		m.log.Error("metrics are served on 127.0.0.1 only", "err", err)
		return follow, stop
	}
	return f.Set, func() { f.Close(); stop() }
}
