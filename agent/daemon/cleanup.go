package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"

	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/agent/policy/enforce"
	"edgemesh/internal/cni/calls"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/version"
	"edgemesh/internal/watchdog"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/tun"
)

// Cleanup removes what an agent set up on this host: the plugin's configuration first, so
// that no new pod is created, then kernel state and sysctls. Key and snapshot stay unless
// purge is set. While an agent runs here, whatever its state directory, it refuses with
// ErrLocked or ErrHostTaken; it continues after other errors.
func Cleanup(ctx context.Context, cfg config.Config, purge bool, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): interfaces, routes and rules can only be removed by root", os.Geteuid())
	}
	lock, err := LockStateDir(cfg.StateDir)
	if err != nil {
		return err
	}
	defer lock.Release()
	if recorded, err := nodeip.Recorded(cfg.StateDir); err != nil || len(recorded) > 0 {
		log.Warn("kubelet reports this node's mesh address, which is removed now: until kubelet reports another one, no other node reaches it",
			"address", recorded, "remedy", "edgemesh-agent install --form daemonset --node-ip=off", "err", err)
	}
	release, err := holdHost(log)
	if err != nil {
		return err
	}
	defer release()
	return errors.Join(cleanFiles(cfg, purge, log), host.New(host.Config{StateDir: cfg.StateDir, Log: log}).Cleanup(ctx))
}

// CleanupFiles is the part of Cleanup that needs no kernel, for the host whose root directory is at root: links on the
// paths lead within it. The error wraps ErrLocked while an agent runs there; then nothing was removed.
func CleanupFiles(cfg config.Config, root string, purge bool, log *slog.Logger) error {
	for _, dir := range []*string{&cfg.StateDir, &cfg.RuntimeDir, &cfg.CNIConfDir, &cfg.CNIBinDir} {
		if *dir == "" {
			continue
		}
		var err error
		if *dir, err = securejoin.SecureJoin(root, *dir); err != nil {
			return err
		}
	}
	unlock := func() {}
	if _, err := os.Stat(cfg.StateDir); err == nil { // where there is none, no agent runs
		lock, err := LockStateDir(cfg.StateDir)
		if err != nil {
			return err
		}
		unlock = lock.Release
	}
	defer unlock()
	err := errors.Join(cleanFiles(cfg, purge, log), removeFile(cfg.StateDir, lockFile))
	for _, dir := range []string{cfg.StateDir, cfg.RuntimeDir} {
		_ = os.Remove(dir) // unless something is in it
	}
	return err
}

// cleanFiles removes an agent's files, the plugin's configuration first.
func cleanFiles(cfg config.Config, purge bool, log *slog.Logger) error {
	errs := []error{
		installer(cfg, log).Uninstall(),
		removeFile(cfg.RuntimeDir, control.SocketFile),
		removeFile(cfg.RuntimeDir, control.FailureFile),
		removeFile(cfg.RuntimeDir, calls.File),
		removeFile(cfg.RuntimeDir, conf.PoliciesFile),
		removeFile(cfg.RuntimeDir, watchdog.File),
		os.RemoveAll(filepath.Join(cfg.RuntimeDir, programsDir)),
		removeFile(cfg.StateDir, handoverFile), // a killed agent's
	}
	if purge {
		errs = append(errs,
			forget(cfg.StateDir),
			removeFile(cfg.StateDir, keyfile.Name+formerKey),
			removeFile(cfg.StateDir, enforce.File),
			removeFile(cfg.StateDir, source.StatementsFile),
			removeFile(cfg.StateDir, config.PortFile),
			removeFile(cfg.StateDir, routersFile),
			removeFile(cfg.StateDir, namesFile),
			removeFile(cfg.StateDir, version.StateFile),
			removeFile(cfg.StateDir, lockFile))
	}
	return errors.Join(errs...)
}

// Forget removes who the node of a state directory is, and what was known by it: the next start makes a new key. The former one stays,
// in another file.
func Forget(stateDir string) error {
	key := filepath.Join(stateDir, keyfile.Name)
	if err := os.Rename(key, key+formerKey); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the former key: %w", err)
	}
	return forget(stateDir)
}

// formerKey is what the former key's file ends with.
const formerKey = ".old"

func forget(stateDir string) error {
	var errs []error
	for _, name := range []string{keyfile.Name, clones.HardwareFile, snapshot.ChangesFile, snapshot.File, kube.MemoryFile, addressFile} {
		errs = append(errs, removeFile(stateDir, name))
	}
	return errors.Join(errs...)
}

// holdHost takes the TUN, which a running agent holds: kernel state exists once per host
// (network namespace), state directories may be many. No other process gets it until
// release, which removes it.
func holdHost(log *slog.Logger) (release func(), err error) {
	dev, err := tun.Open(tun.Config{Name: host.TUNName, Log: log})
	switch {
	case errors.Is(err, tun.ErrBusy):
		return nil, hostTaken(err)
	case err != nil: // no driver, or a foreign interface: so no agent runs
		log.Debug("clean up without the TUN", "err", err)
		return func() {}, nil
	}
	return func() {
		if err := dev.Close(); err != nil {
			log.Debug("close the TUN", "err", err)
		}
	}, nil
}

func removeFile(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
