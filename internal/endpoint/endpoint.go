// Package endpoint serves metrics and health checks over HTTP.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = time.Minute
	shutdown      = time.Second
	// mostOpen connections are open at a time: whoever reaches the port could use up the program's files and memory. Each one more
	// closes the oldest of the address that has most: whoever opens many ends no probe or scrape of others.
	mostOpen = 64
)

// Registry has what every program exports: its version, and the Go runtime's and the process's figures.
func Registry(version string) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "edgemesh_build_info", Help: "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}})
	build.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Handler serves what reg has at /metrics (nil: nothing), at /healthz why a supervisor is to restart the process, and at /readyz
// why it does not serve.
func Handler(reg *prometheus.Registry, healthy func() error, ready func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	if reg != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	}
	answer := func(path string, why func(context.Context) error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := why(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	answer("/healthz", func(context.Context) error { return healthy() })
	answer("/readyz", func(ctx context.Context) error {
		if err := ready(ctx); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
		return nil
	})
	return mux
}

// Serve serves h on l until stop is called.
func Serve(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ConnState: new(open).changed, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics endpoint failed: no metrics or health checks until the program restarts", "err", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdown)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close() // what did not end in time
		}
		<-done
	}
}

// open are a server's connections, the oldest first.
type open struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (o *open) changed(c net.Conn, s http.ConnState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch s {
	case http.StateNew:
		if o.conns = append(o.conns, c); len(o.conns) > mostOpen {
			i := o.victim()
			_ = o.conns[i].Close() // the server learns of it
			o.conns = slices.Delete(o.conns, i, i+1)
		}
	case http.StateClosed:
		o.conns = slices.DeleteFunc(o.conns, func(x net.Conn) bool { return x == c })
	}
}

// victim is the oldest connection of the address that has most.
func (o *open) victim() (victim int) {
	host := func(c net.Conn) string {
		h, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		return h
	}
	of := map[string]int{}
	for _, c := range o.conns {
		of[host(c)]++
	}
	for i, c := range o.conns {
		if of[host(c)] > of[host(o.conns[victim])] {
			victim = i
		}
	}
	return victim
}
