// Package daemon is a running agent: it joins membership, decisions, kernel
// state, tunnel and libp2p, and answers the control socket.
//
//	file ──State──▶ mesh.NewPlan ──▶ p2p.SetMembership, tunnel.SetRoutes, host.Set, cniconf.Write
//
// Nothing it sets up in the kernel goes away when it stops: pods, bridge, routes
// and rules stay, and a blackhole holds the cluster's range until it is back.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/agent/kube"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
	"edgemesh/agent/source"
	"edgemesh/cni/conf"
	"edgemesh/cni/upkeep"
	"edgemesh/internal/processors"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/socket"
	"edgemesh/tunnel/p2p/wan"
	"edgemesh/tunnel/tun"
)

const (
	repairEvery  = 30 * time.Second       // how often kernel state is compared with the plan
	retryEvery   = 2 * time.Second        // the same after an error
	lookEvery    = 5 * time.Minute        // how often others' rules are looked at, for status
	statusEvery  = 5 * time.Second        // the same while new pods get no network
	repairSettle = 200 * time.Millisecond // from the first sign of a change to the repair
	repairRest   = 2 * time.Second        // least time between two repairs: others change the firewall often
	pingTimeout  = 9500 * time.Millisecond
)

// addressFile, in the state directory, is where p2p remembers members' addresses.
const addressFile = "addresses.json"

// daemon is one running agent.
type daemon struct {
	cfg    config.Config
	opts   Options
	id     peer.ID
	log    *slog.Logger
	source source.Source
	host   *host.Host
	cni    *cniconf.Installer
	pods   *conf.NetConf // as the plugin has it
	device tun.Device
	lacks  []control.Fallback // of the system, as it was at the start
	node   *p2p.Node
	tunnel *tunnel.Tunnel
	lan    *lanPaths
	// metrics is nil when metricsAddress is "".
	metrics net.Listener

	hostMu sync.Mutex // one applyHost at a time
	planMu sync.Mutex // one change of plan at a time, until it is in force

	mu      sync.Mutex
	state   mesh.State
	plan    mesh.Plan
	problem error             // why the source's membership is not in force, nil when it is
	hostErr error             // of the last host.Set or cniconf.Write
	waits   error             // why the conflist is not in place, nil when it is
	inWay   []control.Finding // what on the host is in the way, as looked at last
}

// Options are what the command line adds to the configuration.
type Options struct {
	Version     string
	PortableTUN bool // do not use the kernel's offloads
	Wait        bool // stand by while another agent runs here, instead of ErrLocked
	Log         *slog.Logger
}

// Run is an agent's life: it returns nil once ctx ended and everything of this
// process is stopped. A *ConfigError is the operator's to mend, ErrLocked
// and ErrHostTaken say that another agent runs here, and any other error is the system's.
func Run(ctx context.Context, cfg config.Config, o Options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): the agent makes interfaces, routes and firewall rules; run it as root, or privileged in a container", os.Geteuid())
	}
	for _, dir := range []struct {
		key, path string
		mode      os.FileMode
	}{{"stateDir", cfg.StateDir, 0o700}, {"runtimeDir", cfg.RuntimeDir, 0o755}} {
		if err := config.MakeDir(dir.key, dir.path, dir.mode); err != nil {
			return configError(err)
		}
	}
	lock, err := takeLock(ctx, cfg, o)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while standing by
		}
		return err
	}
	defer lock.Release()
	key, err := identity.LoadOrCreate(cfg.StateDir)
	if err != nil {
		return keyError(err)
	}
	identity.LogLibrary(o.Log)
	d := &daemon{cfg: cfg, opts: o, log: o.Log}
	if d.id, err = peer.IDFromPrivateKey(key); err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	d.source, err = source.New(cfg.Membership, kube.Config{
		NodeName: cfg.NodeName, PeerID: mesh.PeerID(d.id.String()), AgentVersion: o.Version,
		StateDir: cfg.StateDir, Keep: cfg.CNIMode == config.CNIKeep, Log: o.Log.With("part", "kube"),
	})
	if err != nil {
		return configError(err)
	}
	if err := d.loadMembership(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while the API had no answer yet
		}
		return err
	}
	if err := d.start(ctx, key); err != nil {
		return err
	}
	return d.serve(ctx)
}

func takeLock(ctx context.Context, cfg config.Config, o Options) (*Lock, error) {
	if o.Wait {
		return standBy(ctx, cfg, preflight, o.Log)
	}
	return LockStateDir(cfg.StateDir)
}

// loadMembership finds the state to start with.
func (d *daemon) loadMembership(ctx context.Context) error {
	s, warning, err := d.source.Start(ctx)
	if errors.Is(err, source.ErrUnusable) {
		return configError(err)
	}
	if err != nil {
		return err
	}
	plan, err := planFor(s, d.cfg, d.id)
	if err != nil {
		return configError(errors.Join(warning, fmt.Errorf("%s: %w", d.source, err)))
	}
	if err := config.OutsideOf(s.PodCIDRs, d.cfg.Key("listen"), d.cfg.Listen); err != nil {
		return configError(err)
	}
	if warning != nil {
		d.log.Warn("membership cannot be used", "source", d.source, "err", warning)
	}
	d.state, d.plan, d.problem = s, plan, warning
	return nil
}

// start makes all parts. Directories and ports come first: one that cannot be had
// must not leave half a data plane behind.
func (d *daemon) start(ctx context.Context, key crypto.PrivKey) (err error) {
	if err := d.prepareCNI(); err != nil {
		return configError(err)
	}
	if err := refuseLAN(d.plan.Host); err != nil {
		return err
	}
	if err := d.cfg.ResolveListen(); err != nil {
		return err
	}
	if ignored := wan.TreatAsPublic(d.state.WANCIDRs); len(ignored) > 0 {
		d.log.Warn("wanCIDRs that cannot be treated as public are ignored", "wanCIDRs", ignored)
	}
	if err := d.openNode(key); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.node.Close()
		}
	}()
	if err := d.listenMetrics(); err != nil {
		return err
	}
	defer func() {
		if err != nil && d.metrics != nil {
			d.metrics.Close()
		}
	}()
	d.device, err = openTUN(tun.Config{
		Name: host.TUNName, MTU: d.plan.Host.MTU, Persist: true, Portable: d.opts.PortableTUN,
		Log: d.log,
	})
	if errors.Is(err, tun.ErrBusy) {
		return hostTaken(err)
	}
	if err != nil {
		return err
	}
	if d.cfg.TUNQueues > 0 {
		d.log.Warn("tunQueues has no effect: the TUN has one queue; remove the key", "value", d.cfg.TUNQueues)
	}
	d.lacks = fallbacks(d.device, socket.Fallbacks())
	tellFallbacks(d.log, d.lacks)
	processors.Limit()
	d.host = host.New(host.Config{StateDir: d.cfg.StateDir, Log: d.log.With("part", "host")})
	d.lan = newLANPaths(d)
	d.plan = d.lan.complete(d.plan)
	d.tunnel = tunnel.New(overNode(d.node, d.lan.used, tunnel.Config{Device: d.device, Log: d.log.With("part", "tunnel")}))
	d.tunnel.SetRoutes(tunnelRoutes(d.plan))
	if err := d.applyHost(ctx); err != nil {
		d.tunnel.Close()
		d.lan.close()
		return err
	}
	d.warnNeighbours(d.plan)
	d.warnHost(ctx, d.plan)
	join(d.node, d.tunnel, d.lan.used, d.log)
	d.lan.join(d.node)
	if err := snapshot.Save(d.cfg.StateDir, d.state); err != nil {
		d.log.Error("the membership cannot be kept for an offline start", "err", err)
	}
	return nil
}

// openNode opens the ports to the other members.
func (d *daemon) openNode(key crypto.PrivKey) error {
	members, err := p2pMembership(d.plan)
	if err != nil {
		return err
	}
	d.node, err = p2p.New(p2p.Config{
		Key: key, Listen: d.cfg.Listen, Membership: members, Relay: relayLimits(d.cfg.Relay), MDNS: d.cfg.Discovery.MDNS, PortMapping: d.cfg.Discovery.PortMapping,
		PortGuessing: d.cfg.Punch.Birthday,
		SocketMark:   host.Mark, AddressFile: filepath.Join(d.cfg.StateDir, addressFile), Log: d.log.With("part", "p2p"),
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("%w; another program has the port: stop it, or set listen", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		err = fmt.Errorf("%w; no interface has this address: listen on 0.0.0.0, or set another one", err)
	}
	return fmt.Errorf("%s: %w", d.cfg.Key("listen"), err)
}

// prepareCNI checks what pods are made with, and makes the folders for it.
func (d *daemon) prepareCNI() (err error) {
	d.cni = installer(d.cfg, d.log)
	if d.pods, err = d.cni.NetConf(); err != nil {
		return fmt.Errorf("cni: %w", err)
	}
	if d.cfg.CNIMode == config.CNIOwn {
		return d.cni.MakeDirs()
	}
	return nil
}

func installer(cfg config.Config, log *slog.Logger) *cniconf.Installer {
	return cniconf.New(cniconf.Config{
		RuntimeDir: cfg.RuntimeDir, ConfDir: cfg.CNIConfDir, BinDir: cfg.CNIBinDir, DataDir: cfg.CNIDataDir,
		CNI: cfg.CNI, Status: upkeep.Status, Log: log,
	})
}

// serve runs until ctx ends or a part fails, and stops everything.
func (d *daemon) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.node.Close()
	defer d.tunnel.Close()
	defer d.serveMetrics()()
	ctl, err := control.Serve(d.cfg.RuntimeDir, d, d.log)
	if err != nil {
		return err
	}
	defer ctl.Close()
	if err := control.KeepFailure(d.cfg.RuntimeDir, nil); err != nil {
		d.log.Warn("an old failure stays on record", "err", err)
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		d.source.Watch(ctx, func(s mesh.State) { d.onState(ctx, s) }, d.onBroken)
	})
	changed := make(chan struct{}, 1)
	wg.Go(func() { d.repair(ctx, ctl, changed) })
	if w, err := d.host.NewWatcher(); err != nil {
		d.log.Warn("the kernel does not tell of changes; they are looked for", "every", repairEvery, "err", err)
	} else {
		wg.Go(func() { w.Run(ctx, func() { signal(changed) }) })
	}
	wg.Go(func() { d.reconcile(ctx) })
	wg.Go(func() { d.lan.run(ctx) })
	plan, _ := d.current()
	why := d.serving(plan, nil)
	d.source.SetServing(why)
	if why != nil {
		signal(changed) // look again soon
	}

	d.log.Info("agent is running", "node", d.cfg.NodeName, "peerID", d.id, "listen", d.node.ListenAddrs(),
		"tun", d.device.Kind(), "offloads", d.device.Offloads().String())
	d.tellRelay(plan)
	err = d.tunnel.Run(ctx)
	if err != nil {
		return err
	}
	d.log.Info("agent stops; pods, routes and rules stay")
	return nil
}

// repair compares kernel state and the plugin's files with the plan whenever the
// kernel says that something changed, and now and then, so that a flushed
// firewall, a deleted bridge or a removed runtime directory heals by itself. The addresses of a node that is a
// relay change with the kernel's too.
func (d *daemon) repair(ctx context.Context, ctl *control.Server, changed <-chan struct{}) {
	wait := repairEvery
	rested := time.Now() // when the next repair may be
	looked := time.Now() // when others' rules were looked at
	relay := relayTeller{set: d.source.SetRelay}
	for {
		relay.tell(d.cfg.Relay.Enabled, d.node.RelayAddrs(d.cfg.Relay.Announce))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(repairSettle, time.Until(rested))):
			}
		}
		err := d.applyHost(ctx)
		plan, _ := d.current()
		if err != nil && ctx.Err() == nil {
			d.log.Error("kernel state is not as it should be; retrying", "err", err)
		}
		if err := ctl.Renew(); err != nil {
			d.log.Error("nobody can ask this agent", "err", err)
		}
		d.mu.Lock()
		d.hostErr = err
		d.mu.Unlock()
		if time.Since(looked) > lookEvery {
			d.noteHost(d.host.Warnings(ctx, plan.Host))
			looked = time.Now()
		}
		why := d.serving(plan, err)
		d.source.SetServing(why)
		switch {
		case err != nil:
			wait = retryEvery
		case why != nil:
			wait = statusEvery
		default:
			wait = repairEvery
		}
		rested = time.Now().Add(repairRest)
	}
}

// signal leaves one token in c, which has room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
