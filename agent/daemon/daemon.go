// Package daemon is a running agent: it joins membership, decisions, kernel state, tunnel
// and libp2p, and answers the control socket.
//
//	daemon.go      Run: which parts are made, in which order, and what runs then
//	standby.go     waits until the agent before it ends, unless it could not start itself; lock.go: one agent per state directory; handover.go: the TUN of the one before
//	backend.go     answers the control socket, with doctor.go, ping.go, explain.go and reach.go; firststart.go: before there is a membership
//	metrics.go     what Prometheus reads, and a pod's probes; counts.go: what happens to paths
//	membership.go  how a changed membership gets to all parts; plan.go: the plan in force, and what a new one changes
//	kernel.go      plan ──▶ kernel and CNI files, again whenever they differ, and what blocks the pod network there
//	lan.go         the search for LAN paths, and which IP version VXLAN takes
//	underlay.go    the tunnel over p2p's paths; device.go: a TUN that is recreated, and what this host does not provide
//	passon.go      signed statements to and from other members; hung.go: loops that hang
//	ranges.go      ranges that the host itself needs stay out of force
//	policies.go    NetworkPolicy, with agent/policy/enforce
//	neighbours.go  other networks on this host; upkeep.go: records of pods' addresses; forward.go; uplink.go
//	clones.go      another machine with this node's key, or a peer's
//	metered.go     whether bytes are paid for; cost.go: what the node takes of them by itself
//	known.go       who this node is by its key, and its own pods while that does not let it join; ports that are taken
//	open.go        the node's ports, the TUN, the CNI directories; translate.go: configuration for other packages
//	cleanup.go     removes everything; errors.go: what callers can expect
//
// DESIGN.md draws which of them may use which.
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
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"

	"edgemesh/agent/cnicalls"
	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/observe"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/memory"
	"edgemesh/internal/processors"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/version"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
)

// packetsPart is which part of a cgroup's memory packets may wait in, and as large a part those may fill that are under way.
const packetsPart = 8

// packets is that part, bytes; 0 without a limit: tunnel and node have a default.
func (d *daemon) packets() int { return int(min(d.memory/packetsPart, 64<<20)) }

// drainTime bounds how long what was read may take to leave when the agent ends.
const drainTime = 100 * time.Millisecond

// running is what the service manager shows of an agent whose pods have their network.
const running = "running; `edgemesh-agent status` says more"

// daemon is the wiring of one running agent.
type daemon struct {
	cfg        config.Config
	opts       Options
	dog        *watchdog.Watchdog
	id         peer.ID
	machine    clones.Machine
	log        *slog.Logger
	source     source.Source
	book       func() *signed.Book // nil: neither is a key pinned, nor do controllers sign
	force      *inForce
	ranges     *rangeCheck
	saved      *snapshot.Keeper // of the membership
	names      *resolve.Names
	node       *p2p.Node
	held       *heldTUN
	device     *lastingTUN
	tunnel     *tunnel.Tunnel
	lan        *lanPaths
	kernel     *kernel
	counts     *counts
	upkeep     *upkeep.Budget
	metered    *metered
	memory     int64        // bytes that the cgroup allows, 0: any amount
	metrics    net.Listener // nil when metricsAddress is ""
	membership *membership
	noted      []findings.Finding // what the start found, and did without
}

// Run runs an agent: it returns nil once ctx has ended and everything of this process has
// stopped. A *ConfigError is the operator's to fix, ErrLocked and ErrHostTaken say that
// another agent runs here, and any other error is the system's.
func Run(ctx context.Context, cfg config.Config, o Options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): the agent makes interfaces, routes and firewall rules; run it as root, or privileged in a container", os.Geteuid())
	}
	dog := watchdog.New(watchdog.Config{Log: o.Log.With("part", "watchdog"), Block: o.Block})
	defer dog.Start(ctx)()
	for _, dir := range []struct {
		key, path string
		mode      os.FileMode
	}{{"stateDir", cfg.StateDir, 0o700}, {"runtimeDir", cfg.RuntimeDir, 0o755}} {
		if err := config.MakeDir(dir.key, dir.path, dir.mode); err != nil {
			return configError(err)
		}
	}
	held := &heldTUN{}
	defer held.drop()
	lock, err := LockStateDir(cfg.StateDir)
	if o.Wait && errors.Is(err, ErrLocked) {
		dog.Ready("standing by for the agent that runs")
		lock, err = standBy(ctx, cfg, preflight, dog.Healthy, held, o)
		dog.Ready("starting")
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while standing by
		}
		return err
	}
	defer lock.Release()
	held.attach()
	dog.Remember(cfg.RuntimeDir)
	if err := version.CheckState(cfg.StateDir); err != nil {
		return configError(err)
	}
	if err := refuseRival(cfg); err != nil {
		return err
	}
	if err := version.MarkState(cfg.StateDir); err != nil {
		o.Log.Warn("could not note this release in the state directory: an older one would not refuse to start with newer state", "err", err)
	}
	identity.LogLibrary(o.Log)
	for _, f := range checkSecrets(cfg) {
		o.Log.Warn(f.Text, "remedy", f.Remedy)
	}
	w := &firstStart{dir: cfg.RuntimeDir, level: o.level(), node: cfg.NodeName, log: o.Log}
	local := &localPods{cfg: cfg, held: held, portable: o.PortableTUN, log: o.Log, waiting: w, ready: dog.Ready}
	defer func() {
		local.end()
		if err := w.end(); err != nil {
			o.Log.Warn("the control socket of the first start did not close", "err", err)
		}
	}()
	for {
		err := attempt(ctx, cfg, o, dog, w, local)
		if err == nil || ctx.Err() != nil {
			return err
		}
		again := local.keep(ctx, err)
		if again == 0 {
			return err
		}
		held.drop() // for long, perhaps
		if !wake.Sleep(ctx, again) {
			return nil
		}
	}
}

// attempt runs an agent that has the state directory. The error is a badKeyError or an otherKeyError, wrapped, where it is for want of
// this node's key, and ErrLANInside, wrapped, where the host would lose its LAN;
// or host.ErrNoIPv6, wrapped.
func attempt(ctx context.Context, cfg config.Config, o Options, dog *watchdog.Watchdog, w *firstStart, local *localPods) error {
	local.id = ""
	key, err := keyfile.LoadOrCreate(cfg.StateDir)
	if err != nil {
		return badKeyError{keyError(err)}
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return fmt.Errorf("derive peer ID: %w", err)
	}
	machine, err := clones.Remember(cfg.StateDir, "/", id)
	if err != nil {
		o.Log.Warn("if this machine is copied, its hardware does not tell which one keeps the node's traffic", "err", err)
	}
	cfg, noted, err := byKey(cfg, mesh.PeerID(id.String()))
	if err != nil {
		return configError(err)
	}
	d := &daemon{cfg: cfg, opts: o, held: local.held, dog: dog, id: id, noted: noted, log: o.Log, force: &inForce{}, saved: &snapshot.Keeper{Dir: cfg.StateDir}, memory: memory.Limit(), counts: newCounts(relayLimits(cfg.Relay)), upkeep: upkeep.New(), machine: machine}
	memory.AfterStart()
	via, err := proxyOf(cfg, d.force.inside)
	if err != nil {
		return configError(err)
	}
	d.names = resolve.New(resolve.Config{Root: resolve.Mounted, File: filepath.Join(cfg.StateDir, namesFile), Log: o.Log})
	defer d.names.Close()
	local.cfg, local.id = cfg, mesh.PeerID(id.String())
	waits := func(err error) {
		dog.Ready("waiting for the first membership: " + wording.OneLine(err.Error()))
		w.because(err, local.begin(ctx, "")) // a new key
		local.held.drop()                    // for long, perhaps
	}
	d.source, err = source.New(cfg.Membership, kube.Config{
		Access:   client.Access{Names: d.names, Upkeep: d.upkeep},
		NodeName: cfg.NodeName, PeerID: mesh.PeerID(d.id.String()), AgentVersion: o.Version, Waits: waits, Deputy: deputyOf(cfg, key, via, d.names, o.Log),
		StateDir: cfg.StateDir, Keep: cfg.CNIMode == config.CNIKeep, Proxy: via.Request, Log: o.Log.With("part", "kube"),
	})
	if err != nil {
		return configError(err)
	}
	if len(cfg.Signers) > 0 {
		book := signed.NewBook(cfg.Signers)
		d.book = func() *signed.Book { return book }
		d.source = source.Pin(d.source, book, cfg.Membership, key, cfg.StateDir, cfg.NodeName, o.Log.With("part", "signed"))
	} else if cfg.Membership.Kubernetes != nil {
		c := source.Carry(d.source, key, cfg.StateDir, o.Log.With("part", "signed"))
		d.source, d.book = c, c.Book
	}
	w.is(cfg.NodeName, d.id.String(), d.source.String())
	state, err := d.loadMembership(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while the API had no answer yet
		}
		return err
	}
	p, _ := d.force.plan()
	if err := errors.Join(refuseLAN(p.Host), host.Holds(p.Host)); err != nil {
		return err
	}
	for _, f := range noted {
		o.Log.Warn(f.Text, "remedy", f.Remedy)
	}
	local.end()
	if err := w.end(); err != nil {
		d.log.Warn("the control socket of the first start did not close", "err", err)
	}
	if err := d.start(ctx, key, state); err != nil {
		return err
	}
	return d.serve(ctx)
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
	if err == nil {
		var refused error
		if s, refused, err = d.checkRanges(s); err != nil {
			return s, err
		}
		warning = errors.Join(warning, refused)
		p, err = planFor(s, d.cfg, d.id)
	}
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
	logForward(p.Host, d.cfg.Key("forward"), d.log)
	_, _, _ = d.force.set(s.WANCIDRs, p, warning) // nothing was in force before
	return s, nil
}

// checkRanges keeps ranges out that the host needs and that were not in force before. Where nothing is left, what was
// in force stays, with a warning. A first start brings all into force, or none; a host that is set up and has no snapshot keeps what
// it has.
func (d *daemon) checkRanges(s mesh.State) (admitted mesh.State, warning, err error) {
	d.ranges = &rangeCheck{cfg: d.cfg, names: d.names, source: d.source, force: d.force, log: d.log, given: s}
	if before, err := snapshot.Load(d.cfg.StateDir); err == nil {
		was, former := planFor(before, d.cfg, d.id)
		was.Host.ClusterCIDRs = before.PodCIDRs // also where the name or the key was another
		out, err := d.ranges.admit(s, was)
		if err != nil && former == nil {
			return before, err, nil
		}
		return out, nil, err
	}
	if present, err := host.Present(); err != nil || present {
		return s, nil, err
	}
	s, err = d.ranges.admit(s, plan{})
	return s, nil, err
}

// start makes all parts. Directories and ports come first: a missing one must not leave
// half a data plane behind.
func (d *daemon) start(ctx context.Context, key crypto.PrivKey, state mesh.State) (err error) {
	p, _ := d.force.plan()
	d.kernel = &kernel{cni: installer(d.cfg, d.log), log: d.log, force: d.force, changed: wake.NewOne(), gone: wake.NewOne(), confirmed: d.source.Confirmed()}
	if d.kernel.pods, err = prepareCNI(d.kernel.cni, d.cfg.CNIMode); err != nil {
		return configError(err)
	}
	d.kernel.policies = newPolicies(d.cfg, d.kernel.pods.DataDir, d.source, d.log)
	d.kernel.policies.SetOff(state.NetworkPolicy == mesh.PolicyOff)
	d.kernel.compiler = policiesOf(d.cfg, d.kernel.policies, d.source, d.log.With("part", "policy"))
	if _, err := os.Stat(filepath.Join(d.cfg.StateDir, snapshot.File)); errors.Is(err, fs.ErrNotExist) {
		d.kernel.expectPolicies(state)
	}
	d.kernel.setPolicies(state)
	if ignored := endpoint.TreatAsPublic(state.WANCIDRs); len(ignored) > 0 {
		d.log.Warn("some wanCIDRs are ignored: they cannot be treated as public", "wanCIDRs", ignored)
	}
	all, err := p.since(plan{})
	if err != nil {
		return configError(err)
	}
	d.metered = newMetered(d.cfg.Uplink.Metered, d.source.Annotations)
	defer func() {
		if err == nil {
			return
		}
		if d.node != nil {
			d.node.Close()
		}
		if d.metrics != nil {
			d.metrics.Close()
		}
	}()
	if err := d.openPorts(nodeConfig{
		cfg: d.cfg, key: key, members: all.members.Membership, names: d.names, inside: d.force.inside, counts: d.counts, upkeep: d.upkeep, metered: d.metered.Paid, machine: d.machine,
		sealed: d.cfg.Carrier.UsesSealed(state.Carrier), inFlight: d.packets(), log: d.log,
	}); err != nil {
		return err
	}
	if d.device, err = openDevice(d.cfg, d.held, d.opts.PortableTUN, p.Host.MTU, d.log); err != nil {
		return err
	}
	processors.Limit()
	d.kernel.host = host.New(host.Config{StateDir: d.cfg.StateDir, ToTUN: d.device.toKernel, Log: d.log.With("part", "host")})
	d.lan = newLANPaths(lanConfig{
		self: p.Self.PeerID, lan: d.cfg.LAN, keep: p.Host.Keep, standsBy: d.node.StandsBy, host: d.kernel.host,
		peers: lanPeers{d.node, d.force.current}, log: d.log.With("part", "lan"),
	})
	d.kernel.canHold = d.lan.setCapabilities
	p.Plan = d.lan.complete(p.Plan)
	d.force.setPlan(p)
	var device tunnel.Device = d.device
	if d.opts.Device != nil {
		device = d.opts.Device(device)
	}
	over := overNode(d.node, d.lan.used, tunnel.Config{
		Device: device, Limits: tunnel.Limits{TotalBytes: d.packets()}, Log: d.log.With("part", "tunnel"),
	})
	if d.opts.Underlay != nil {
		over.Underlay = d.opts.Underlay(over.Underlay)
	}
	d.tunnel = tunnel.New(over)
	d.tunnel.SetRoutes(all.routes.Come)
	warnLiving(p.Host, d.log)
	if err := d.kernel.apply(ctx); err != nil {
		d.tunnel.Close()
		d.lan.close()
		return err
	}
	join(d.node, d.tunnel, d.lan.used, d.counts, d.log)
	d.lan.join(d.node)
	who := source.Reporter{Log: d.log}
	who.Restarted(d.cfg.StateDir, state)
	if err := d.saved.Save(state); err != nil {
		d.log.Error("could not save the membership; an offline start would use an older one", "err", err)
	}
	d.membership = &membership{
		cfg: d.cfg, id: d.id, from: d.source.String(), force: d.force, ranges: d.ranges, saved: d.saved,
		node: d.node, tunnel: d.tunnel, lan: d.lan, kernel: d.kernel, loop: d.dog.Loop("membership"), log: d.log, who: who,
	}
	d.membership.trim(all)
	return nil
}

// serve runs until ctx ends or a part fails, and stops everything.
func (d *daemon) serve(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	cancel := func() { fail(nil) }
	defer cancel()
	defer d.node.Close()
	defer d.tunnel.Close()
	b := d.backend(ctx)
	defer b.doctor.close()
	followMesh, stopMetrics := d.metricsServer(b).start()
	defer stopMetrics()
	b.explainer.answerMembers(ctx)
	ctl, err := control.Serve(d.cfg.RuntimeDir, b, d.log)
	if err != nil {
		return err
	}
	defer ctl.Close()
	b.observer.Serve(ctx)
	if err := control.KeepFailure(d.cfg.RuntimeDir, nil); err != nil {
		d.log.Warn("an earlier failure stays on record, so status and doctor show it whenever no agent runs; remove the file",
			"file", filepath.Join(d.cfg.RuntimeDir, control.FailureFile), "err", err)
	}

	m := d.membership
	var wg sync.WaitGroup
	defer m.close()
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { d.source.Watch(ctx, func(s mesh.State) { m.onState(ctx, s) }, m.onBroken) })
	if x := b.doctor.passes; x != nil {
		d.passOn(ctx, x, &wg)
	}
	if d.cfg.JoinSecretFile != "" {
		wg.Go(func() { followJoinSecrets(ctx, d.cfg.JoinSecretFile, d.node, d.log) })
	}
	wg.Go(func() { m.onConfirmed(ctx) })
	wg.Go(func() { m.retryRefused(ctx) })
	wg.Go(func() { m.followStandby(ctx) })
	repair := repairer{kernel: d.kernel, node: d.node, relay: d.cfg.Relay, source: d.source, socket: ctl, followMesh: followMesh,
		loop: d.dog.Loop("kernel repair"), ready: d.dog.Ready, fail: fail, log: d.log}
	d.dog.Watch("tunnel", d.tunnel.Watch)
	wg.Go(func() { repair.run(ctx) })
	wg.Go(func() { d.metered.run(ctx) })
	wg.Go(func() { d.lan.run(ctx, m.replan) })
	wg.Go(func() { d.kernel.policies.Run(ctx) })
	if d.kernel.compiler != nil {
		wg.Go(func() { d.kernel.compiler.Run(ctx) })
	}
	wg.Go(func() { reconcile(ctx, d.kernel.pods, d.log) })
	if d.cfg.Membership.Kubernetes != nil { // otherwise nobody is there to notify
		wg.Go(func() { b.doctor.notice(ctx, d.source.Warn) })
		wg.Go(func() { b.doctor.report(ctx, d.source.SetHealthy) })
	}
	d.kernel.watch(ctx, &wg)
	why := d.kernel.serving(nil)
	d.source.SetServing(why)
	if why != nil {
		d.kernel.changed.Wake() // look again soon
	} else {
		d.dog.Ready(running)
	}

	d.log.Info("agent is running", "node", d.cfg.NodeName, "peerID", d.id, "listen", d.node.ListenAddrs(),
		"tun", d.device.Kind(), "offloads", d.device.Offloads().String())
	p, _ := d.force.plan()
	reportRelay(d.cfg.Relay.Enabled, p.hasRelay(d.id), relayAddrs(d.node.RelayAddrs(d.cfg.Relay.Announce), d.id), d.log)
	defer offerTUN(d.cfg.StateDir, d.device, d.log)()
	// The end in this order loses no packet: what pods send stays in the TUN, what was read leaves, members are told, and what they sent until
	// then arrives.
	defer context.AfterFunc(ctx, func() {
		_ = d.device.Pause() // or it is read until it is closed
		d.tunnel.Drain(drainTime)
		_ = d.node.Close() // deferred above, where its error does not count either
		_ = d.tunnel.Close()
	})()
	if err := d.tunnel.Run(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, cniconf.ErrReplaced) {
		return fmt.Errorf("%w; the agent ends, so that it starts again with the new one", err)
	}
	d.log.Info("agent stops; pods, routes and rules stay")
	return nil
}

// backend makes what answers the operator. It logs what blocks the pod network.
func (d *daemon) backend(ctx context.Context) *backend {
	r := reach{plan: d.force.current, node: d.node, tunnel: d.tunnel, lan: d.lan}
	b := &backend{
		version: d.opts.Version, name: d.cfg.NodeName, started: time.Now(), level: d.opts.level(), degraded: degradations(d.device, socket.Fallbacks()), calls: d.dog.Loop("control socket"),
		doctor: &doctor{cfg: d.cfg, id: d.id, force: d.force, source: d.source, names: d.names, upkeep: d.upkeep, metered: d.metered, node: d.node, device: d.device,
			kernel: d.kernel, lan: d.lan, reach: r, dog: d.dog, noted: d.noted, log: d.log},
		pinger:    pinger{r},
		explainer: explainer{force: d.force, source: d.source.String(), node: d.node, kernel: d.kernel, reach: r, log: d.log},
	}
	if d.book != nil {
		b.doctor.passes = d.exchanger()
	}
	b.doctor.judges()
	b.observer = observe.Node{Plan: d.force.current, Status: b.observed, P2P: d.node, Tunnel: d.tunnel, Log: d.log}
	reportDegraded(d.log, b.degraded)
	b.doctor.warnNeighbours()
	d.kernel.warn(ctx)
	return b
}

// metricsServer serves what is counted, and what b knows.
func (d *daemon) metricsServer(b *backend) metricsServer {
	own := &collector{
		tunnel: d.tunnel, node: d.node, lan: d.lan, reach: b.doctor.reach, source: d.source,
		pools: func() []control.Pool { return pools(d.kernel.pods, d.log) },
		good:  func() bool { _, problem := d.force.plan(); return problem == nil },
		found: b.doctor.now, upkeep: d.upkeep, others: d.kernel.host.Removed, policy: d.kernel.policies.Dropped,
	}
	all := append([]prometheus.Collector{own}, d.counts.collectors()...)
	if d.cfg.CNIMode == config.CNIOwn {
		all = append(all, cnicalls.New(d.cfg.RuntimeDir, d.log))
	}
	return metricsServer{listener: d.metrics, version: d.opts.Version, address: d.cfg.MetricsAddress, collectors: all, healthy: d.dog.Healthy, ready: func() error { return d.kernel.serving(nil) }, log: d.log}
}

// reportRelay logs whether this node is a relay, and whether others know that.
func reportRelay(enabled, listed bool, addrs []string, log *slog.Logger) {
	switch {
	case enabled && listed:
		log.Info("this node is a relay", "addresses", addrs)
	case enabled:
		log.Warn("this node is a relay, but the membership does not list it: add these addresses to its relays, or set memberRelays in the PodNetwork", "addresses", addrs)
	case listed:
		log.Warn("the membership lists this node as a relay, but it is not one: set relay.enabled in its configuration")
	}
}
