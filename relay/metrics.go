package main

import (
	"sync/atomic"
	"time"

	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics holds the relay's registry and what is in it. As the relay service's
// MetricsTracer it hears of the service's events.
type metrics struct {
	registry *prometheus.Registry

	circuits     atomic.Int64 // open now
	reservations atomic.Int64 // held now
	members      atomic.Int64
	peers        func() int // connected now
	joined       func() int // of them, those that have proved the join secret

	bytes       prometheus.Counter
	refused     *prometheus.CounterVec // by reason
	requests    *prometheus.CounterVec // by type and status
	memberships *prometheus.CounterVec // by result
}

var _ relayv2.MetricsTracer = (*metrics)(nil)

func newMetrics(peers, joined func() int) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		peers:    peers, joined: joined,
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "edgemesh_relay_bytes_total", Help: "Bytes relayed, both directions."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_refused_total", Help: "Connections, reservations and circuits refused by membership or limits."}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_requests_total", Help: "Reservation and circuit requests by the answer given."}, []string{"type", "status"}),
		memberships: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_membership_reads_total", Help: "Memberships read, good and bad."}, []string{"result"}),
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.bytes, m.refused, m.requests, m.memberships,
		gauge("edgemesh_relay_circuits", "Relayed connections open now.", func() float64 { return float64(m.circuits.Load()) }),
		gauge("edgemesh_relay_reservations", "Reservations held now.", func() float64 { return float64(m.reservations.Load()) }),
		gauge("edgemesh_relay_members", "Members of the membership in force.", func() float64 { return float64(m.members.Load()) }),
		gauge("edgemesh_relay_joined_peers", "Peers that have proved the join secret, connected now.", func() float64 { return float64(m.joined()) }),
		gauge("edgemesh_relay_connected_peers", "Members and relays connected now.", func() float64 { return float64(m.peers()) }),
	)
	return m
}

func (m *metrics) refuse(reason string) { m.refused.WithLabelValues(reason).Inc() }

func (m *metrics) RelayStatus(bool) {}

func (m *metrics) ConnectionOpened() { m.circuits.Add(1) }

func (m *metrics) ConnectionClosed(time.Duration) { m.circuits.Add(-1) }

func (m *metrics) ConnectionRequestHandled(s pbv2.Status) {
	m.requests.WithLabelValues("connect", s.String()).Inc()
}

func (m *metrics) ReservationAllowed(renewal bool) {
	if !renewal {
		m.reservations.Add(1)
	}
}

func (m *metrics) ReservationClosed(n int) { m.reservations.Add(-int64(n)) }

func (m *metrics) ReservationRequestHandled(s pbv2.Status) {
	m.requests.WithLabelValues("reserve", s.String()).Inc()
}

func (m *metrics) BytesTransferred(n int) { m.bytes.Add(float64(n)) }
