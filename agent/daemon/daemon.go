// Package daemon is a running agent: it joins membership, decisions, kernel state, tunnel
// and libp2p, and answers the control socket.
//
//	daemon.go      Run: which parts are made, in which order, and what runs then
//	membership.go  how a changed membership travels to all parts, and what each is told; firststart.go: answers before there is one
//	kernel.go      plan ──▶ kernel and CNI files, and again whenever they differ
//	underlay.go    the tunnel over p2p's paths; device.go: a TUN that is recreated
//	lan.go         the search for LAN paths, and which IP version VXLAN takes
//	counts.go      what happens to paths, counted
//	backend.go     answers status, and says what this host does not provide; ping.go; doctor.go; explain.go;
//	               forward.go; metrics.go
//	neighbours.go  other networks on this host; relay.go: this node as a relay, and the secret that others ask for
//	upkeep.go      records of pods' addresses, and events in Kubernetes
//	lock.go        one agent per state directory; the next waits for its end, unless it could not start
//	cleanup.go     removes everything
//
// Order of locks: membership.mu, kernel.applying, lanPaths.mu, the LAN service's own; every
// other mutex is a leaf.
//
// When a relay or any path dies: p2p chooses another path and notifies (join, in
// underlay.go) the tunnel, which moves its lanes there. When a LAN path does not answer,
// p2p probes the path below it immediately (suspect, in lan.go). Nothing else here takes
// part; the packages p2p and ladder have the rest.
//
// What it sets up in the kernel stays when it stops: pods, bridge, routes and rules. A
// blackhole route drops packets to the rest of the cluster's range until it is back.
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
	"edgemesh/agent/control"
	"edgemesh/agent/deputy"
	"edgemesh/agent/host"
	"edgemesh/agent/observe"
	"edgemesh/cni/upkeep"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/memory"
	"edgemesh/internal/processors"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/base/proxy"
	"edgemesh/tunnel/p2p/base/wan"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/tun"
)

// addressFile, in the state directory, is where p2p remembers members' addresses.
const addressFile = "addresses.json"

// queuesPart is which part of a cgroup's memory packets may wait in; without a limit it is the tunnel's default.
const queuesPart = 8

// daemon is the wiring of one running agent.
type daemon struct {
	cfg     config.Config
	opts    Options
	id      peer.ID
	log     *slog.Logger
	source  source.Source
	force   *inForce
	saved   *snapshot.Keeper // of the membership
	node    *p2p.Node
	device  *lastingTUN
	tunnel  *tunnel.Tunnel
	lan     *lanPaths
	kernel  *kernel
	counts  *counts
	memory  int64          // bytes that the cgroup allows, 0: any amount
	deputy  *deputy.Deputy // nil: the membership is a file
	metrics net.Listener   // nil when metricsAddress is ""
}

// Options are what the command line adds to the configuration.
type Options struct {
	Version     string
	PortableTUN bool   // do not use the kernel's offloads
	Wait        bool   // stand by while another agent runs here, instead of ErrLocked
	Revision    string // of the DaemonSet that this agent's pod is of; "": of none
	Log         *slog.Logger
	Level       *slog.LevelVar // of Log; nil: it cannot be changed
}

// level is that of the log; changing it has no effect where there is none.
func (o Options) level() *slog.LevelVar {
	if o.Level == nil {
		return new(slog.LevelVar)
	}
	return o.Level
}

// Run runs an agent: it returns nil once ctx has ended and everything of this process has
// stopped. A *ConfigError is the operator's to fix, ErrLocked and ErrHostTaken say that
// another agent runs here, and any other error is the system's.
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
	lock, err := LockStateDir(cfg.StateDir)
	if o.Wait && errors.Is(err, ErrLocked) {
		lock, err = standBy(ctx, cfg, preflight, o)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while standing by
		}
		return err
	}
	defer lock.Release()
	if err := version.CheckState(cfg.StateDir); err != nil {
		return configError(err)
	}
	if err := refuseRival(cfg); err != nil {
		return err
	}
	if err := version.MarkState(cfg.StateDir); err != nil {
		o.Log.Warn("the state directory does not take a file", "err", err)
	}
	key, err := identity.LoadOrCreate(cfg.StateDir)
	if err != nil {
		return keyError(err)
	}
	identity.LogLibrary(o.Log)
	d := &daemon{cfg: cfg, opts: o, log: o.Log, force: &inForce{watched: wake.NewOne()}, saved: &snapshot.Keeper{Dir: cfg.StateDir}, memory: memory.Limit(), counts: newCounts(o.Version, relayLimits(cfg.Relay))}
	memory.AfterStart()
	if d.id, err = peer.IDFromPrivateKey(key); err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	way, err := proxyOf(cfg, d.force.inside)
	if err != nil {
		return configError(err)
	}
	d.deputy = deputyOf(cfg, key, way, o.Log)
	w := &firstStart{dir: cfg.RuntimeDir, level: o.level(), node: cfg.NodeName, peerID: d.id.String(), log: o.Log}
	d.source, err = source.New(cfg.Membership, kube.Config{
		NodeName: cfg.NodeName, PeerID: mesh.PeerID(d.id.String()), AgentVersion: o.Version, Waits: w.because, Deputy: d.deputy,
		StateDir: cfg.StateDir, Keep: cfg.CNIMode == config.CNIKeep, Proxy: way.Request, Log: o.Log.With("part", "kube"),
	})
	if err != nil {
		return configError(err)
	}
	w.source = d.source.String()
	state, err := d.loadMembership(ctx)
	if err := w.end(); err != nil {
		d.log.Warn("the control socket of the first start did not close", "err", err)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while the API had no answer yet
		}
		return err
	}
	if err := d.start(ctx, key, state); err != nil {
		return err
	}
	return d.serve(ctx)
}

// deputyOf writes to the API what this node's own access may not, where the membership comes from there.
func deputyOf(cfg config.Config, key crypto.PrivKey, way *proxy.Way, log *slog.Logger) *deputy.Deputy {
	k := cfg.Membership.Kubernetes
	if k == nil {
		return nil
	}
	return deputy.New(deputy.Config{Key: key, Certificate: k.NodeCertificate, CertificateKey: k.NodeKey, JoinSecretFile: cfg.JoinSecretFile, Proxy: way, Log: log})
}

// loadMembership finds the state to start with.
func (d *daemon) loadMembership(ctx context.Context) (mesh.State, error) {
	s, warning, err := d.source.Start(ctx)
	if errors.Is(err, source.ErrUnusable) {
		return s, configError(err)
	}
	if err != nil {
		return s, err
	}
	p, err := planFor(s, d.cfg, d.id)
	if err != nil {
		return s, configError(errors.Join(warning, fmt.Errorf("%s: %w", d.source, err)))
	}
	if err := config.OutsideOf(s.PodCIDRs, d.cfg.Key("listen"), d.cfg.Listen); err != nil {
		return s, configError(err)
	}
	if warning != nil {
		d.log.Warn("the membership's source or its saved copy is unusable, so the agent started with the other one;"+
			" fix what err names, it is read again automatically", "source", d.source, "err", warning)
	}
	d.tellForward(p)
	_, _, _ = d.force.set(s.WANCIDRs, p, warning) // nothing was in force before
	return s, nil
}

// start makes all parts. Directories and ports come first: a missing one must not leave
// half a data plane behind.
func (d *daemon) start(ctx context.Context, key crypto.PrivKey, state mesh.State) (err error) {
	p, _ := d.force.plan()
	d.kernel = &kernel{cni: installer(d.cfg, d.log), log: d.log, force: d.force, changed: wake.NewOne(), confirmed: d.source.Confirmed()}
	if err := d.prepareCNI(); err != nil {
		return configError(err)
	}
	if err := refuseLAN(p.Host); err != nil {
		return err
	}
	if err := d.cfg.ResolveListen(); err != nil {
		return err
	}
	if ignored := wan.TreatAsPublic(state.WANCIDRs); len(ignored) > 0 {
		d.log.Warn("some wanCIDRs are ignored: they cannot be treated as public", "wanCIDRs", ignored)
	}
	all, err := p.since(plan{})
	if err != nil {
		return configError(err)
	}
	if err := d.openNode(key, all.members.Membership); err != nil {
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
	if err := d.openDevice(p.Host.MTU); err != nil {
		return err
	}
	processors.Limit()
	d.kernel.host = host.New(host.Config{StateDir: d.cfg.StateDir, Log: d.log.With("part", "host")})
	d.lan = newLANPaths(lanConfig{
		self: p.Self.PeerID, lan: d.cfg.LAN, keep: p.Host.Keep, host: d.kernel.host,
		peers: lanPeers{d.node, d.force.plan}, log: d.log.With("part", "lan"),
	})
	d.kernel.canHold = d.lan.setCapabilities
	p.Plan = d.lan.complete(p.Plan)
	d.force.setPlan(p)
	d.tunnel = tunnel.New(overNode(d.node, d.lan.used, tunnel.Config{
		Device: d.device, Limits: tunnel.Limits{TotalBytes: int(min(d.memory/queuesPart, 64<<20))}, Log: d.log.With("part", "tunnel"),
	}))
	d.tunnel.SetRoutes(all.routes.Come)
	if err := d.kernel.apply(ctx); err != nil {
		d.tunnel.Close()
		d.lan.close()
		return err
	}
	join(d.node, d.tunnel, d.lan.used, d.counts, d.log)
	d.lan.join(d.node)
	if err := d.saved.Save(state); err != nil {
		d.log.Error("could not save the membership; an offline start would use an older one", "err", err)
	}
	all.trim()
	return nil
}

// openDevice opens the TUN.
func (d *daemon) openDevice(mtu int) (err error) {
	d.device, err = openTUN(tun.Config{Name: host.TUNName, MTU: mtu, Persist: true, Portable: d.opts.PortableTUN, Log: d.log})
	if errors.Is(err, tun.ErrBusy) {
		return hostTaken(err)
	}
	if err == nil && d.cfg.TUNQueues > 0 {
		d.log.Warn("tunQueues has no effect: the TUN has one queue; remove the key", "value", d.cfg.TUNQueues)
	}
	return err
}

// openNode opens the ports to the other members.
func (d *daemon) openNode(key crypto.PrivKey, m members.Membership) (err error) {
	secrets, err := joinSecrets(d.cfg)
	if err != nil {
		return configError(err)
	}
	if d.cfg.Punch.Former != "" {
		d.log.Warn("punch.birthday is replaced by punch.guess, and the next release refuses it", "key", d.cfg.Key("punch"), "remedy", d.cfg.Punch.Former)
	}
	way, err := proxyOf(d.cfg, d.force.inside)
	if err != nil {
		return configError(err)
	}
	d.node, err = p2p.New(p2p.Config{
		Key: key, Listen: d.cfg.Listen, Membership: m, Relay: relayLimits(d.cfg.Relay), RelayMetrics: d.counts.relay, MDNS: d.cfg.Discovery.MDNS, PortMapping: d.cfg.Discovery.PortMapping,
		PortGuessing: d.cfg.Punch.Guess == config.GuessAuto, JoinSecrets: secrets, Proxy: way,
		Probed: d.counts.probed, Queued: d.counts.queued, Punched: d.counts.punched,
		SocketMark: host.Mark, AddressFile: filepath.Join(d.cfg.StateDir, addressFile), Log: d.log.With("part", "p2p"),
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

// prepareCNI checks what pods are made with, and makes the directories for it.
func (d *daemon) prepareCNI() (err error) {
	if d.kernel.pods, err = d.kernel.cni.NetConf(); err != nil {
		return fmt.Errorf("cni: %w", err)
	}
	if d.cfg.CNIMode == config.CNIOwn {
		return d.kernel.cni.MakeDirs()
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
	b := d.backend(ctx)
	followMesh, stopMetrics := d.serveMetrics(b)
	defer stopMetrics()
	answerMembers(ctx, b)
	ctl, err := control.Serve(d.cfg.RuntimeDir, b, d.log)
	if err != nil {
		return err
	}
	defer ctl.Close()
	answerer := b.Serve(ctx)
	if err := control.KeepFailure(d.cfg.RuntimeDir, nil); err != nil {
		d.log.Warn("an earlier failure stays on record, so status and doctor show it whenever no agent runs; remove the file",
			"file", filepath.Join(d.cfg.RuntimeDir, control.FailureFile), "err", err)
	}

	m := &membership{daemon: d}
	var wg sync.WaitGroup
	defer m.close()
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { d.source.Watch(ctx, func(s mesh.State) { m.onState(ctx, s) }, m.onBroken) })
	if d.cfg.JoinSecretFile != "" {
		wg.Go(func() { d.followJoinSecrets(ctx) })
	}
	wg.Go(func() { m.onConfirmed(ctx) })
	wg.Go(func() { d.repair(ctx, ctl, followMesh) })
	wg.Go(func() { d.lan.run(ctx, m.replan) })
	wg.Go(func() { reconcile(ctx, d.kernel.pods, d.log) })
	wg.Go(func() { notice(ctx, b) })
	if d.deputy != nil {
		wg.Go(func() { d.visits(answerer).Run(ctx) })
	}
	if w, err := d.kernel.host.NewWatcher(); err != nil {
		d.log.Warn("no kernel change events; checking every "+repairEvery.String(), "err", err)
	} else {
		wg.Go(func() { w.Run(ctx, d.kernel.changed.Wake) })
	}
	why := d.kernel.serving(nil)
	d.source.SetServing(why)
	if why != nil {
		d.kernel.changed.Wake() // look again soon
	}

	d.log.Info("agent is running", "node", d.cfg.NodeName, "peerID", d.id, "listen", d.node.ListenAddrs(),
		"tun", d.device.Kind(), "offloads", d.device.Offloads().String())
	p, _ := d.force.plan()
	b.reportRelay(p)
	if err := d.tunnel.Run(ctx); err != nil {
		return err
	}
	d.log.Info("agent stops; pods, routes and rules stay")
	return nil
}

// backend makes what answers the operator. It logs what blocks the pod network.
func (d *daemon) backend(ctx context.Context) *backend {
	b := &backend{daemon: d, started: time.Now(), degraded: degradations(d.device, socket.Fallbacks())}
	b.Node = observe.Node{Plan: func() mesh.Plan { p, _ := d.force.plan(); return p.Plan }, Status: b.observed, P2P: d.node, Tunnel: d.tunnel, Log: d.log}
	reportDegraded(d.log, b.degraded)
	p, _ := d.force.plan()
	b.warnNeighbours(p)
	d.kernel.warn(ctx, p.Host)
	return b
}

// ErrLANInside means that the host would lose its own LAN to the pod network.
var ErrLANInside = errors.New("this node's LAN is inside the pod range and would become unreachable; give the cluster other podCIDRs, or the LAN other addresses")

// ErrNoTarget means that a ping names neither a member nor an address of one.
var ErrNoTarget = errors.New("no such member")

// ConfigError is an error that the operator fixes in a file; the agent exits with 2. Every
// other error of Run is the system's (exit code 1).
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

func configError(err error) error { return &ConfigError{err} }

// keyError says why the agent cannot read its key: the operator fixes that, unless the
// disk is full or fails.
func keyError(err error) error {
	for _, system := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO} {
		if errors.Is(err, system) {
			return err
		}
	}
	return configError(err)
}
