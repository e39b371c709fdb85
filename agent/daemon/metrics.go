package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/upkeep"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
)

// collector reads the numbers when they are scraped: the packet path has its own counters
// and does not know Prometheus.
type collector struct {
	tunnel *tunnel.Tunnel
	node   *p2p.Node
	lan    *lanPaths
	reach  reach
	source interface{ Contact() *client.Contact }
	pools  func() []control.Pool
	upkeep *upkeep.Budget
	policy func() map[string]uint64 // packets dropped, by direction
	good   func() bool              // the membership's source is readable and valid
	found  func() []findings.Finding
	others func() uint64
}

// Describe sends nothing: what the collector has depends on what happened ("unchecked", as prometheus calls it).
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// metric is one of the agent's series of samples.
type metric struct {
	ch   chan<- prometheus.Metric
	desc *prometheus.Desc
}

func (m metric) add(kind prometheus.ValueType, v float64, labels []string) {
	m.ch <- prometheus.MustNewConstMetric(m.desc, kind, v, labels...)
}

func (m metric) counter(v uint64, labels ...string) {
	m.add(prometheus.CounterValue, float64(v), labels)
}

func (m metric) gauge(v float64, labels ...string) { m.add(prometheus.GaugeValue, v, labels) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	desc := func(name, help string, labels ...string) metric {
		return metric{ch, prometheus.NewDesc("edgemesh_"+name, help, labels, nil)}
	}
	total := c.tunnel.Stats().Total
	bytes := desc("tunnel_bytes_total", "IP bytes carried, by direction.", "direction")
	bytes.counter(total.TxBytes, "tx")
	bytes.counter(total.RxBytes, "rx")
	packets := desc("tunnel_packets_total", "Packets carried, by direction; a super-segment counts once.", "direction")
	packets.counter(total.TxPackets, "tx")
	packets.counter(total.RxPackets, "rx")
	drops := desc("tunnel_drops_total", "Packets dropped, by reason.", "reason")
	for _, r := range tunnel.Reasons() {
		drops.counter(total.Drops.Of(r), r.String())
	}
	desc("tunnel_ecn_marks_total", "Packets marked \"congestion experienced\" (ECN) where others would have been dropped for delay; a super-segment counts once.").counter(total.Marked)
	refused := desc("refused_total", "What was refused: connections and streams, of strangers and members, and of members packets, sessions, offers and dials of addresses that they named; by reason.", "reason")
	for reason, n := range c.node.Refused() {
		refused.counter(n, strings.ReplaceAll(reason, " ", "_"))
	}
	proxy := desc("proxy_failures_total", "Connections to relays that the HTTP proxy did not give, by cause.", "cause")
	for cause, n := range c.node.ProxyFailures() {
		proxy.counter(n, cause)
	}
	path := desc("path_bytes_total", "Bytes that paths of the tunnel have carried, encryption aside, by kind of path and direction.", "path", "direction")
	carried := c.node.Carried()
	for _, k := range tunnelKinds {
		path.counter(carried[k].Tx, string(k), "tx")
		path.counter(carried[k].Rx, string(k), "rx")
	}
	cost := desc("upkeep_bytes_total", "IP bytes, headers included, that no pod's packet asked for, by purpose and direction.", "purpose", "direction")
	for p, n := range c.upkeep.Sums() {
		cost.counter(n.Tx, string(p), "tx")
		cost.counter(n.Rx, string(p), "rx")
	}
	pods := desc("carried_bytes_total", "IP bytes, headers included, of what carried pods' packets through the tunnel: theirs, overhead, acknowledgements and repetitions, by direction.", "direction")
	pods.counter(c.upkeep.Carried().Tx, "tx")
	pods.counter(c.upkeep.Carried().Rx, "rx")
	handshakes := desc("handshakes", "Handshakes of peers that are not known yet: places, and those taken now.", "state")
	places, taken := c.node.Handshakes()
	handshakes.gauge(float64(places), "places")
	handshakes.gauge(float64(taken), "taken")
	budget := desc("punch_budget_packets", "Packets a minute to addresses that a peer names and that are not known to be its own: the limit for each peer, and the most that went for one.", "of")
	limit, spent := c.node.PunchBudget()
	budget.gauge(float64(limit), "limit")
	budget.gauge(float64(spent), "spent")
	lan := desc("lan_received_bytes_total", "IP bytes that came in past the tunnel, by kind of path; of VXLAN with its headers.", "path")
	received := c.lan.received()
	for _, k := range []mesh.PathKind{mesh.Native, mesh.VXLAN} {
		lan.counter(received[k], string(k))
	}
	desc("foreign_config_removed_total", "Addresses and routes that other programs gave interfaces of the pod network, and the agent removed.").counter(c.others())
	c.collectPeers(desc("peers", "Members by the path to them.", "path"),
		desc("peer_transports", "Members to whom there is a path, by what carries packets to them.", "transport"), desc("relays", "Relays of the membership: known, connected and reserved at.", "state"))
	c.collectPools(desc)
	denied := desc("policy_drops_total", "Packets that NetworkPolicies dropped, by direction of the pod; none while no policy is in force.", "direction")
	for direction, n := range c.policy() {
		denied.counter(n, direction)
	}
	if api := c.source.Contact(); api != nil {
		requests := desc("api_requests_total", "Requests to the API, or to the cache on the node, by what came of them.", "result")
		requests.counter(api.Answered, "answered")
		requests.counter(api.Refused, "refused")
		requests.counter(api.Failed, "failed")
		last := 0.0
		if !api.Last.IsZero() {
			last = float64(api.Last.UnixMilli()) / 1000
		}
		desc("api_last_answer_timestamp_seconds", "When the API, or the cache on the node, was heard last; 0: never.").gauge(last)
	}
	good := 0.0
	if c.good() {
		good = 1
	}
	finding, seen := desc("finding", "1 for each kind of finding there is now (docs/findings.md), by severity: broken, warning or note.", "id", "severity"), map[[2]string]bool{}
	for _, f := range c.found() {
		if key := [2]string{f.ID, string(f.Severity)}; !seen[key] {
			seen[key] = true
			finding.gauge(1, key[0], key[1])
		}
	}
	desc("membership_good", "1 while the membership source is readable and valid.").gauge(good)
}

// collectPeers counts members and relays.
func (c *collector) collectPeers(peers, transports, relays metric) {
	paths, over := map[string]int{}, map[string]int{}
	for _, path := range memberPaths {
		paths[path] = 0
	}
	for _, transport := range memberTransports {
		over[transport] = 0
	}
	used, idle := c.reach.peers(false)
	paths[describe.Idle] = idle
	for _, p := range used {
		paths[p.Path]++
		if p.Transport != "" {
			over[p.Transport]++
		}
	}
	for transport, n := range over {
		transports.gauge(float64(n), transport)
	}
	for path, n := range paths {
		peers.gauge(float64(n), path)
	}
	known := c.node.Status().Relays
	connected, reserved := 0, 0
	for _, r := range known {
		if r.Connected {
			connected++
		}
		if r.Reserved {
			reserved++
		}
	}
	relays.gauge(float64(len(known)), "known")
	relays.gauge(float64(connected), "connected")
	relays.gauge(float64(reserved), "reserved")
}

// collectPools counts the addresses of this node's pods.
func (c *collector) collectPools(desc func(name, help string, labels ...string) metric) {
	size := desc("pool_size", "Addresses that this node's pods can have, by IP family.", "family")
	addresses := desc("pool_addresses", "Addresses used by pods, and free ones kept for deleted pods' names.", "family", "state")
	oldest := desc("pool_oldest_release_timestamp_seconds", "When the pod that is gone longest, of those with an address kept, went.", "family")
	for _, p := range c.pools() {
		family := "ipv4"
		if len(p.Blocks) > 0 && strings.Contains(p.Blocks[0], ":") {
			family = "ipv6"
		}
		size.gauge(float64(p.Size), family)
		addresses.gauge(float64(p.Used), family, "used")
		addresses.gauge(float64(p.Kept), family, "kept")
		if p.Oldest != nil {
			oldest.gauge(float64(p.Oldest.Unix()), family)
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
	version    string
	collectors []prometheus.Collector
	healthy    func() error // as the watchdog sees it
	ready      func() error
	log        *slog.Logger
}

// start serves until stop is called. follow takes this node's mesh addresses whenever they may have changed.
func (m metricsServer) start() (follow func([]netip.Addr), stop func()) {
	follow = func([]netip.Addr) {}
	if m.listener == nil {
		return follow, func() {}
	}
	reg := endpoint.Registry(m.version)
	reg.MustRegister(m.collectors...)
	mux := endpoint.Handler(reg, m.healthy, func(context.Context) error { return m.ready() })
	end := endpoint.Serve(m.listener, mux, m.log)
	if _, inMesh := endpoint.Loopback(m.address); !inMesh {
		return follow, end
	}
	f, err := endpoint.NewFollower(m.listener.Addr(), mux, m.log)
	if err != nil {
		m.log.Error("metrics are served on 127.0.0.1 only", "err", err)
		return follow, end
	}
	return f.Set, func() { f.Close(); end() }
}
