package relayservice

import (
	"strings"
	"sync/atomic"
	"time"

	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/tunnel/p2p/relay/forward"
	"edgemesh/tunnel/p2p/who/lookup"
)

// Metrics are a relay's for Prometheus: edgemesh-relay's, and those of an agent that is a relay. Each series exists from the
// start, except for members': one that appears late has no rate.
type Metrics struct {
	circuits     atomic.Int64 // open now
	reservations atomic.Int64 // held now
	bytes        prometheus.Counter
	forwarded    prometheus.Counter
	carried      *carried               // by member
	dropped      *prometheus.CounterVec // by reason
	drops        map[forward.Reason]prometheus.Counter
	refused      *prometheus.CounterVec // by reason
	requests     *prometheus.CounterVec // by type and status
	limits       *prometheus.GaugeVec
}

var _ relayv2.MetricsTracer = (*Metrics)(nil)

// NewMetrics counts for a service with these limits.
func NewMetrics(l Limits) *Metrics {
	m := &Metrics{
		carried: newCarried(),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "edgemesh_relay_bytes_total", Help: "Bytes relayed by circuits, both directions."}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "edgemesh_relay_forwarded_bytes_total", Help: "Bytes of sealed packets forwarded beside circuits."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_forward_dropped_total", Help: "Packets to forward that were dropped, by reason."}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_refused_total", Help: "Connections, reservations and circuits refused by membership or limits."}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_requests_total", Help: "Reservation and circuit requests by the answer given."}, []string{"type", "status"}),
		limits: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "edgemesh_relay_limit", Help: "What members may use at most: reservations, of them from one address, circuits, of them with one member."}, []string{"of"}),
	}
	for of, n := range map[string]int{"reservations": l.MaxReservations, "reservations_per_ip": l.MaxReservationsPerIP,
		"circuits": l.MaxCircuits, "circuits_per_peer": l.MaxCircuitsPerPeer} {
		m.limits.WithLabelValues(of).Set(float64(n))
	}
	for _, reason := range []string{tooManyCircuits, stalledCircuit, forward.TooMany, lookup.LargeMessage, lookup.TooManyStreams} {
		m.refused.WithLabelValues(label(reason))
	}
	m.drops = make(map[forward.Reason]prometheus.Counter)
	for _, reason := range forward.Reasons() {
		m.drops[reason] = m.dropped.WithLabelValues(reason.String())
	}
	for _, kind := range []string{"connect", "reserve"} {
		for _, status := range pbv2.Status_name {
			if status != pbv2.Status_UNUSED.String() {
				m.requests.WithLabelValues(kind, status)
			}
		}
	}
	return m
}

// Collectors are what a registry takes.
func (m *Metrics) Collectors() []prometheus.Collector {
	gauge := func(name, help string, of *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of.Load()) })
	}
	return []prometheus.Collector{m.bytes, m.forwarded, m.carried, m.dropped, m.refused, m.requests, m.limits,
		gauge("edgemesh_relay_circuits", "Relayed connections open now.", &m.circuits),
		gauge("edgemesh_relay_reservations", "Reservations held now.", &m.reservations)}
}

func (m *Metrics) droppedPackets(why forward.Reason, n int) {
	m.drops[why].Add(float64(n))
}

// label is a reason as a label's value.
func label(reason string) string { return strings.ReplaceAll(reason, " ", "_") }

// Refuse counts a refusal.
func (m *Metrics) Refuse(reason string) { m.refused.WithLabelValues(label(reason)).Inc() }

// Circuits is how many circuits are open now, Reservations how many are held.
func (m *Metrics) Circuits() int     { return int(m.circuits.Load()) }
func (m *Metrics) Reservations() int { return int(m.reservations.Load()) }

// RelayStatus implements relayv2.MetricsTracer, as do the others.
func (m *Metrics) RelayStatus(bool) {}

func (m *Metrics) ConnectionOpened() { m.circuits.Add(1) }

func (m *Metrics) ConnectionClosed(time.Duration) { m.circuits.Add(-1) }

func (m *Metrics) ConnectionRequestHandled(s pbv2.Status) {
	m.requests.WithLabelValues("connect", s.String()).Inc()
}

func (m *Metrics) ReservationAllowed(renewal bool) {
	if !renewal {
		m.reservations.Add(1)
	}
}

func (m *Metrics) ReservationClosed(n int) { m.reservations.Add(-int64(n)) }

func (m *Metrics) ReservationRequestHandled(s pbv2.Status) {
	m.requests.WithLabelValues("reserve", s.String()).Inc()
}

func (m *Metrics) BytesTransferred(n int) { m.bytes.Add(float64(n)) }
