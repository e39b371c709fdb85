package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	web "edgemesh/internal/endpoint"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/relay/relayservice"
)

// metrics holds the relay's registry and what is in it.
type metrics struct {
	*relayservice.Metrics
	registry *prometheus.Registry

	members atomic.Int64
	peers   func() int // connected now
	joined  func() int // of them, those that have proved the join secret

	memberships *prometheus.CounterVec // by result
}

func newMetrics(limits relayservice.Limits, peers, joined func() int) *metrics {
	m := &metrics{
		Metrics:  relayservice.NewMetrics(limits),
		registry: web.Registry(version.Number()),
		peers:    peers, joined: joined,
		memberships: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgemesh_relay_membership_reads_total", Help: "Memberships read, good and bad."}, []string{"result"}),
	}
	for _, result := range []string{"good", "bad"} {
		m.memberships.WithLabelValues(result)
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(m.Collectors()...)
	m.registry.MustRegister(
		m.memberships,
		gauge("edgemesh_relay_members", "Members of the membership in force.", func() float64 { return float64(m.members.Load()) }),
		gauge("edgemesh_relay_joined_peers", "Peers that have proved the join secret, connected now.", func() float64 { return float64(m.joined()) }),
		gauge("edgemesh_relay_connected_peers", "Members and relays connected now.", func() float64 { return float64(m.peers()) }),
	)
	return m
}

// endpoint serves /metrics, /healthz (no loop hangs) and /readyz (members can use the relay).
type endpoint struct {
	mesh  *web.Follower // nil unless it is served on mesh addresses, too
	addr  net.Addr
	ready atomic.Bool
	close func()
}

// serveHTTP starts the endpoint on address (host:port).
func serveHTTP(address string, reg *prometheus.Registry, healthy func() error, logger *slog.Logger) (*endpoint, error) {
	at, mesh := web.Loopback(address)
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("metricsAddress: %w: %w", errListen, err)
	}
	e := &endpoint{addr: l.Addr()}
	h := web.Handler(reg, healthy, func(context.Context) error {
		if !e.ready.Load() {
			return errors.New("the relay is starting or stopping")
		}
		return nil
	})
	if mesh {
		if e.mesh, err = web.NewFollower(l.Addr(), h, logger); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	e.close = web.Serve(l, h, logger)
	return e, nil
}

// meshEvery is how often the agent's subnet file is read: a block rarely changes.
const meshEvery = 5 * time.Second

// followMesh serves on the mesh addresses that the agent's subnet file names and this host has, until ctx ends.
func (e *endpoint) followMesh(ctx context.Context, runtimeDir string, logger *slog.Logger) {
	said := ""
	for {
		addrs, err := nodeip.Subnet(runtimeDir)
		if err == nil {
			addrs, err = nodeip.Present(addrs)
		}
		if err == nil {
			said = ""
			e.mesh.Set(addrs)
		} else if said != err.Error() {
			said = err.Error()
			logger.Warn("mesh addresses unknown; metrics stay where they are", "err", err)
		}
		if !wake.Sleep(ctx, meshEvery) {
			e.mesh.Close()
			return
		}
	}
}
