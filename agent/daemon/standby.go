package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"edgemesh/agent/config"
)

// standBy takes the lock of the state directory once it is free. Meanwhile a pod's probes
// are answered, or a rolling update would never end the old pod: by the running agent, if
// it has the same metricsAddress, otherwise from here. An agent that could not take over
// does not stand by: check comes first, and its error ends the update while the other
// agent still works.
func standBy(ctx context.Context, cfg config.Config, check func(context.Context, config.Config) error, log *slog.Logger) (*Lock, error) {
	lock, err := LockStateDir(cfg.StateDir)
	if !errors.Is(err, ErrLocked) {
		return lock, err
	}
	if err := check(ctx, cfg); err != nil {
		return nil, err
	}
	if cfg.MetricsAddress != "" {
		if l, err := net.Listen("tcp", cfg.MetricsAddress); err == nil {
			mux := http.NewServeMux()
			mux.HandleFunc("GET /healthz", healthz)
			defer serveHTTP(l, mux, log)()
		}
	}
	return WaitStateDir(ctx, cfg.StateDir, log)
}
