package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/agent/kube"
	"edgemesh/agent/snapshot"
	"edgemesh/tunnel/p2p/identity"
)

// Cleanup takes back what an agent has set up on this host: the plugin's
// configuration first, so that no new pod comes, then kernel state and sysctls.
// Key and snapshot stay unless purge. It refuses with ErrLocked while an agent
// runs, and goes on after other errors.
func Cleanup(ctx context.Context, cfg config.Config, purge bool, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): interfaces, routes and rules can only be removed by root", os.Geteuid())
	}
	lock, err := LockStateDir(cfg.StateDir)
	if err != nil {
		return err
	}
	defer lock.Release()
	errs := []error{
		installer(cfg, log).Uninstall(),
		host.New(host.Config{StateDir: cfg.StateDir, Log: log}).Cleanup(ctx),
		removeFile(cfg.RuntimeDir, control.SocketFile),
	}
	if purge {
		errs = append(errs,
			removeFile(cfg.StateDir, identity.KeyFile),
			removeFile(cfg.StateDir, snapshot.File),
			removeFile(cfg.StateDir, kube.MemoryFile),
			removeFile(cfg.StateDir, config.PortFile),
			removeFile(cfg.StateDir, addressFile),
			removeFile(cfg.StateDir, lockFile))
	}
	return errors.Join(errs...)
}

func removeFile(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
