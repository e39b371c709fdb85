package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/logs"
)

// levelSocket, in the state directory, switches the log's level.
const levelSocket = "log.sock"

// serveLevel lets the level be switched while the relay runs. A relay without that runs as well.
func serveLevel(stateDir string, level *slog.LevelVar, log *slog.Logger) (stop func()) {
	if level == nil {
		return func() {}
	}
	stop, err := logs.Serve(filepath.Join(stateDir, levelSocket), level, log)
	if err != nil {
		log.Info("the log's level cannot be changed while the relay runs; set log.level and restart it", "err", err)
		return func() {}
	}
	return stop
}

func newLogLevel() *cobra.Command {
	var stateDir string
	c := cli.LogLevel(program, "relay", func(ctx context.Context, level string) (string, error) {
		socket := filepath.Join(stateDir, levelSocket)
		is, err := logs.Ask(ctx, socket, level)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return "", fmt.Errorf("no relay is running here, or one of an older release: nothing listens on %s (start it: edgemesh-relay run; or give its state directory with --state-dir)", socket)
		}
		if errors.Is(err, fs.ErrPermission) {
			return "", fmt.Errorf("open %s: permission denied (run as root, or as the relay's user)", socket)
		}
		return is, err
	})
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory of the relay")
	return c
}
