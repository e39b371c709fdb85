package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/logs"
)

// relaySocket, in the state directory, switches the log's level and has the relay's status.
const relaySocket = "log.sock"

// serveSocket lets the level be switched, and status be asked for, while the relay runs. A relay without that runs as well.
func serveSocket(stateDir string, level *slog.LevelVar, status http.Handler, log *slog.Logger) (stop func()) {
	if level == nil {
		return func() {}
	}
	stop, err := logs.Serve(filepath.Join(stateDir, relaySocket), level, log, map[string]http.Handler{"GET " + statusPath: status})
	if err != nil {
		log.Info("status does not work, and the log's level cannot be changed while the relay runs; set log.level and restart it", "err", err)
		return func() {}
	}
	return stop
}

func newLogLevel() *cobra.Command {
	var stateDir string
	c := cli.LogLevel(program, "relay", func(ctx context.Context, level string) (string, error) {
		socket := filepath.Join(stateDir, relaySocket)
		is, err := logs.Ask(ctx, socket, level)
		return is, explain(socket, err)
	})
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory of the relay")
	return c
}

// explain says what an error of a call to the relay's socket means.
func explain(socket string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no relay is running here, or one of an older release: nothing listens on %s (start it: edgemesh-relay run; or give its state directory with --state-dir)", socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open %s: permission denied (run as root, or as the relay's user)", socket)
	}
	return err
}
