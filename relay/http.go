package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// endpoint serves /metrics, /healthz (the process answers) and /readyz (members
// can use the relay).
type endpoint struct {
	server *http.Server
	addr   net.Addr
	ready  atomic.Bool
	done   chan struct{}
}

// serveHTTP starts the endpoint on address (host:port).
func serveHTTP(address string, reg *prometheus.Registry, logger *slog.Logger) (*endpoint, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metricsAddress: %w: %w", errListen, err)
	}
	e := &endpoint{addr: l.Addr(), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !e.ready.Load() {
			http.Error(w, "relay is starting or stopping", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	e.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	go func() {
		defer close(e.done)
		if err := e.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("metrics endpoint failed: no metrics or health checks until the relay restarts", "err", err)
		}
	}()
	return e, nil
}

func (e *endpoint) close(ctx context.Context) {
	if err := e.server.Shutdown(ctx); err != nil {
		_ = e.server.Close()
	}
	<-e.done
}
