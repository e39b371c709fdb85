package controller

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/internal/endpoint"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/version"
)

// unheard is how long the API may be silent before the controller is not ready.
const unheard = 15 * time.Second

// metrics counts what the controller does. Its methods may be called at any time.
type metrics struct {
	registry *prometheus.Registry
	leader   prometheus.Gauge
	deleted  prometheus.Counter
	failures prometheus.Counter
	requests *prometheus.CounterVec
	relays   prometheus.Gauge
	records  prometheus.Gauge
	groups   prometheus.Gauge
	forged   prometheus.Gauge
	last     atomic.Int64 // when the API answered last, in Unix nanoseconds
}

func newMetrics(b *upkeep.Budget) *metrics {
	m := &metrics{
		registry: endpoint.Registry(version.Number()),
		leader:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "edgemesh_controller_leader", Help: "1 while this controller leads."}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "edgemesh_controller_surplus_blocks_deleted_total", Help: "PodBlocks deleted that nodes had claimed beyond those that count."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "edgemesh_controller_failures_total", Help: "Rounds that failed and are tried again."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_controller_requests_total", Help: "Requests of edges, by whether they proved which node they are."}, []string{"proved"}),
		relays: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "edgemesh_controller_relays", Help: "Relays at which edges reach this controller."}),
		records: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "edgemesh_controller_node_records", Help: "NodeRecords, one for each Node, as the leader has seen them."}),
		groups: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "edgemesh_controller_policy_groups", Help: "Groups of pods that NetworkPolicies select as peers, as PolicyGroups."}),
		forged: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "edgemesh_controller_forged_addresses", Help: "Pods whose status claims an address of another node's block, while there are NetworkPolicies."}),
	}
	for direction, of := range map[string]func(upkeep.Bytes) uint64{
		"tx": func(n upkeep.Bytes) uint64 { return n.Tx }, "rx": func(n upkeep.Bytes) uint64 { return n.Rx },
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "edgemesh_upkeep_bytes_total", Help: "IP bytes to and from the API, headers included, by direction.",
			ConstLabels: prometheus.Labels{"purpose": string(upkeep.API), "direction": direction},
		}, func() float64 { return float64(of(b.Sums()[upkeep.API])) }))
	}
	m.registry.MustRegister(m.leader, m.deleted, m.failures, m.requests, m.relays, m.records, m.groups, m.forged)
	return m
}

// lead notes whether this controller leads.
func (m *metrics) lead(now bool) {
	if now {
		m.leader.Set(1)
	} else {
		m.leader.Set(0)
	}
}

// request counts a request; err says why it proved nothing.
func (m *metrics) request(err error) {
	m.requests.WithLabelValues(strconv.FormatBool(err == nil)).Inc()
}

// hear notes that the API has answered.
func (m *metrics) hear() { m.last.Store(time.Now().UnixNano()) }

// ready says why the controller is not: the API does not answer it.
func (m *metrics) ready(context.Context) error {
	if time.Since(time.Unix(0, m.last.Load())) > unheard {
		return errors.New("the API does not answer")
	}
	return nil
}
