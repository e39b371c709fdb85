// Package endpoint serves metrics and health checks over HTTP.
package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	headerTimeout = 5 * time.Second
	shutdown      = time.Second
)

// Serve serves h on l until stop is called.
func Serve(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics stopped", "err", err)
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
