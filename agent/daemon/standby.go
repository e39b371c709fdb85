package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/internal/config"
	"edgemesh/internal/endpoint"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/resolve"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/tun"
)

// standBy takes the lock of the state directory once it is free. Meanwhile a pod's probes
// are answered, or a rolling update would never end the old pod: by the running agent, if
// it has the same metricsAddress, otherwise from here. An agent that could not take over,
// or had better not, does not stand by: its error ends the update while the other agent
// still works. That is what check finds, and kube.ErrRolloutStopped.
func standBy(ctx context.Context, cfg config.Config, check func(context.Context, config.Config) error, healthy func() error, held *heldTUN, o Options) (*Lock, error) {
	lock, err := LockStateDir(cfg.StateDir)
	if !errors.Is(err, ErrLocked) {
		return lock, err
	}
	if err := check(ctx, cfg); err != nil {
		return nil, err
	}
	stopped, err := rolloutOf(cfg, o)
	if err != nil {
		return nil, configError(err)
	}
	if err := stopped(ctx); err != nil {
		return nil, err
	}
	if cfg.MetricsAddress != "" {
		at, _ := endpoint.Loopback(cfg.MetricsAddress)
		if l, err := net.Listen("tcp", at); err == nil {
			defer endpoint.Serve(l, endpoint.Handler(nil, healthy, func(ctx context.Context) error {
				return cmp.Or(stopped(ctx), answers(ctx, cfg.RuntimeDir))
			}), o.Log)()
		}
	}
	held.ask(ctx, cfg.StateDir)
	waiting, stop := context.WithCancelCause(ctx)
	var checking sync.WaitGroup
	defer checking.Wait()
	defer stop(nil) // first
	checking.Go(func() { stop(untilStopped(waiting, stopped)) })
	lock, err = WaitStateDir(waiting, cfg.StateDir, held.attach, o.Log)
	if err != nil && ctx.Err() == nil {
		err = context.Cause(waiting)
	}
	return lock, err
}

const (
	// checkEvery is how often an agent that stands by checks whether it may still take over, checkLater the same once
	// it has waited for longer than a rollout lets it.
	checkEvery = time.Second
	checkLater = 30 * time.Second
)

// untilStopped returns why the rollout has stopped, as soon as it has, or ctx's error.
func untilStopped(ctx context.Context, stopped func(context.Context) error) error {
	every, began := checkEvery, time.Now()
	for wake.Sleep(ctx, every) {
		if err := stopped(ctx); err != nil {
			return err
		}
		if time.Since(began) > checkLater {
			every = checkLater
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
	via, err := proxyOf(cfg, nil)
	if err != nil {
		return nil, err
	}
	access := source.Access(k)
	access.Names = resolve.New(resolve.Config{Root: resolve.Mounted})
	c, err := client.New(access, "edgemesh-agent/"+o.Version, via.Request)
	if err != nil {
		access.Names.Close()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer access.Names.Close()
		defer c.Close()
		return kube.NewRollout(c, o.Revision).Stopped(ctx)
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
	key, err := keyfile.Load(filepath.Join(cfg.StateDir, keyfile.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist): // is made when it starts
	case err != nil:
		return keyError(err)
	default:
		if id, err = peer.IDFromPrivateKey(key); err != nil {
			return fmt.Errorf("derive peer ID: %w", err)
		}
		if cfg, _, err = byKey(cfg, mesh.PeerID(id.String())); err != nil {
			return configError(err)
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
