package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/internal/config"
	"edgemesh/internal/endpoint"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/rollout"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/tun"
)

// lockFile is held for the life of the process: one agent per state directory,
// whatever form it runs in.
const lockFile = "agent.lock"

var (
	// ErrLocked means that another agent uses the state directory.
	ErrLocked = errors.New("another agent runs on this state directory")
	// ErrHostTaken means that an agent with another state directory has the host.
	ErrHostTaken = errors.New("another agent runs on this host")
)

// Lock is an exclusive hold on a state directory. The kernel releases it with
// the process, so a killed agent leaves none behind.
type Lock struct{ f *os.File }

// LockStateDir makes dir (0700) if needed and takes its lock. The error is
// ErrLocked, naming the holder, or one of the file system.
func LockStateDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("%w: %s is held by process %s; stop it first, or use another stateDir",
			ErrLocked, path, strings.TrimSpace(string(holder)))
	}
	// The holder's ID is for people. The lock is held on a full disk, too.
	_ = f.Truncate(0)
	_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	return &Lock{f}, nil
}

// lockRetry is how often a waiting agent tries the lock: part of the gap when one takes
// over from another.
const lockRetry = 100 * time.Millisecond

// WaitStateDir is LockStateDir, but waits until the holder of the lock ends. It returns
// ctx's error if ctx ends first.
func WaitStateDir(ctx context.Context, dir string, logger *slog.Logger) (*Lock, error) {
	for reported := false; ; reported = true {
		lock, err := LockStateDir(dir)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		if !reported {
			logger.Info("standing by until the agent that runs here ends", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockRetry):
		}
	}
}

// Release gives the lock back.
func (l *Lock) Release() { l.f.Close() }

// standBy takes the lock of the state directory once it is free. Meanwhile a pod's probes
// are answered, or a rolling update would never end the old pod: by the running agent, if
// it has the same metricsAddress, otherwise from here. An agent that could not take over,
// or had better not, does not stand by: its error ends the update while the other agent
// still works. That is what check finds, and rollout.ErrStopped.
func standBy(ctx context.Context, cfg config.Config, check func(context.Context, config.Config) error, o Options) (*Lock, error) {
	lock, err := LockStateDir(cfg.StateDir)
	if !errors.Is(err, ErrLocked) {
		return lock, err
	}
	if err := check(ctx, cfg); err != nil {
		return nil, err
	}
	ask, err := rolloutOf(cfg, o)
	if err != nil {
		return nil, configError(err)
	}
	if err := ask(ctx); err != nil {
		return nil, err
	}
	if cfg.MetricsAddress != "" {
		at, _ := endpoint.Loopback(cfg.MetricsAddress)
		if l, err := net.Listen("tcp", at); err == nil {
			mux := http.NewServeMux()
			mux.HandleFunc("GET /healthz", healthz)
			mux.HandleFunc("GET /readyz", readyz(func(ctx context.Context) error {
				return cmp.Or(ask(ctx), answers(ctx, cfg.RuntimeDir))
			}))
			defer endpoint.Serve(l, mux, o.Log)()
		}
	}
	waiting, stop := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop(nil) // first
	asking.Go(func() { stop(askAgain(waiting, ask)) })
	lock, err = WaitStateDir(waiting, cfg.StateDir, o.Log)
	if err != nil && ctx.Err() == nil {
		err = context.Cause(waiting)
	}
	return lock, err
}

const (
	// askEvery is how often an agent that stands by asks whether it may take over, and askLater how often once it
	// has done so for longer than a rollout lets it.
	askEvery = time.Second
	askLater = 30 * time.Second
)

// askAgain asks until the answer is no, or ctx ends.
func askAgain(ctx context.Context, ask func(context.Context) error) error {
	every, began := askEvery, time.Now()
	for wake.Sleep(ctx, every) {
		if err := ask(ctx); err != nil {
			return err
		}
		if time.Since(began) > askLater {
			every = askLater
		}
	}
	return ctx.Err()
}

// rolloutOf returns what says why the rollout that this agent belongs to is stopped: never, where it belongs to none.
func rolloutOf(cfg config.Config, o Options) (func(context.Context) error, error) {
	k := cfg.Membership.Kubernetes
	if k == nil || o.Revision == "" {
		return func(context.Context) error { return nil }, nil
	}
	way, err := proxyOf(cfg, nil)
	if err != nil {
		return nil, err
	}
	c, err := client.New(k.Kubeconfig, k.Server, "edgemesh-agent/"+o.Version, way.Request)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer c.Close()
		return rollout.New(c, o.Revision).Stopped(ctx)
	}, nil
}

// holderTimeout is how long the agent that runs here may take to answer.
const holderTimeout = 2 * time.Second

// answers says why the agent that runs here is not healthy: one that stands by for it is as ready as it is.
func answers(ctx context.Context, runtimeDir string) error {
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	if _, err := control.NewClient(runtimeDir).Status(ctx); err != nil {
		return fmt.Errorf("standing by for an agent that does not answer: %w", err)
	}
	return nil
}

// preflight checks what an agent with this configuration would fail on, while another one
// still does the work: key, membership, and what it needs of the host. It uses neither
// network nor API, and changes nothing. A *ConfigError is the operator's to fix.
func preflight(ctx context.Context, cfg config.Config) error {
	if err := version.CheckState(cfg.StateDir); err != nil {
		return configError(err)
	}
	if err := refuseRival(cfg); err != nil {
		return err
	}
	var id peer.ID
	key, err := identity.Load(filepath.Join(cfg.StateDir, identity.KeyFile))
	switch {
	case errors.Is(err, fs.ErrNotExist): // is made when it starts
	case err != nil:
		return keyError(err)
	default:
		if id, err = peer.IDFromPrivateKey(key); err != nil {
			return fmt.Errorf("derive peer ID: %w", err)
		}
	}
	if _, err := joinSecrets(cfg); err != nil {
		return configError(err)
	}
	if _, err := proxyOf(cfg, nil); err != nil {
		return configError(err)
	}
	members, err := source.New(cfg.Membership, kube.Config{NodeName: cfg.NodeName, PeerID: mesh.PeerID(id.String()), StateDir: cfg.StateDir})
	if err != nil {
		return configError(err)
	}
	if cfg.Membership.File != "" && id != "" {
		s, _, err := members.Start(ctx)
		if err != nil {
			return configError(err)
		}
		if _, err := planFor(s, cfg, id); err != nil {
			return configError(fmt.Errorf("%s: %w", members, err))
		}
	}
	if cfg.CNIMode == config.CNIOwn {
		if err := installer(cfg, slog.New(slog.DiscardHandler)).Check(); err != nil {
			return err
		}
	}
	return errors.Join(tun.Available(), host.Usable())
}
