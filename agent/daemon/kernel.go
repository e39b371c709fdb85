package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/chained"
	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/policy/enforce"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
)

// kernel applies the plan to the kernel and to the files that the CNI plugin reads, and
// keeps the outcome. The first nine fields are set once, before it is used.
type kernel struct {
	host     *host.Host
	cni      *cniconf.Installer
	pods     *conf.NetConf // as the plugin has it
	policies *enforce.Owner
	compiler compiler // nil: another plugin has the pods, and no policies are enforced
	log      *slog.Logger
	force    *inForce
	canHold  func(host.Capabilities) // called with what the kernel can hold
	changed  wake.One                // wakes the repair
	gone     wake.One                // wakes keepHostPorts
	// confirmed is closed once pods may be given addresses of the blocks in force.
	confirmed <-chan struct{}

	flushes atomic.Uint64 // host.Flushed, as flushed saw it

	applying sync.Mutex // one apply at a time; locked before mu

	mu      sync.Mutex         // nothing else is locked while it is held
	failure error              // of the last repair
	waits   error              // why the conflist is not in place, nil when it is
	inWay   []findings.Finding // what on the host blocks the pod network, as of the last repair
	probed  []findings.Finding // what its firewall does, as of the last probes
	lost    []chained.Again    // pods whose hostPorts lead nowhere, as of the last look
}

// apply sets kernel state and the plugin's files; the repair calls it, too. The plan is
// the one in force when it has got the lock.
func (k *kernel) apply(ctx context.Context) error {
	k.applying.Lock()
	defer k.applying.Unlock()
	p, _ := k.force.plan()
	if p.Host.Keep {
		// First, so that no new pod gets the bridge that is removed.
		if err := k.cni.Withdraw(); err != nil {
			return err
		}
	}
	can, err := k.host.Set(ctx, p.Host)
	k.canHold(can)
	if errors.Is(err, host.ErrNoIPv6) { // a finding says so
		k.setWaits(err)
		return k.cni.WithdrawSubnet()
	}
	if !p.Host.Keep {
		err = errors.Join(err, k.policies.Apply()) // before any new pod
	}
	if err != nil || p.Host.Keep || !k.isConfirmed() {
		return err // an existing subnet.json stays
	}
	subnet := p.Subnet
	if can.NoIPv6 != "" { // the plugin would give pods addresses that lead nowhere
		if subnet.PodCIDRs = mesh.OfVersion(subnet.PodCIDRs, false); len(subnet.PodCIDRs) == 0 {
			k.setWaits(fmt.Errorf("%w: %s", host.ErrNoIPv6, can.NoIPv6))
			return k.cni.WithdrawSubnet()
		}
	}
	err = k.cni.Write(subnet)
	if errors.Is(err, cniconf.ErrWaits) || errors.Is(err, cniconf.ErrFormer) {
		k.setWaits(err)
		return nil
	}
	k.setWaits(nil)
	return err
}

// watch wakes the repair when the kernel's state changes, and keeps hostPorts, until ctx ends; wg waits for it.
func (k *kernel) watch(ctx context.Context, wg *sync.WaitGroup) {
	if w, err := k.host.NewWatcher(); err != nil {
		k.log.Warn("no kernel change events; checking every "+repairEvery.String(), "err", err)
	} else {
		wg.Go(func() {
			w.Run(ctx, func() {
				k.host.Stand()
				k.flushed(false) // plugins behind ours need not wait for the repair
				k.changed.Wake()
				k.policies.Stand()
			})
		})
		k.changed.Wake() // for what changed before
	}
	wg.Go(func() { k.keepHostPorts(ctx) })
}

// due waits until the next repair: for so long, or until something has changed. It reports false once ctx has ended.
func (k *kernel) due(ctx context.Context, wait time.Duration, rested time.Time) bool {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	case <-k.changed:
		wake.Sleep(ctx, max(repairDebounce, time.Until(rested)))
	}
	return ctx.Err() == nil
}

// flushed wakes keepHostPorts if other programs have removed rules since the last call, or may have.
func (k *kernel) flushed(mayHave bool) {
	n := k.host.Flushed()
	if before := k.flushes.Swap(n); n != before || mayHave {
		k.gone.Wake()
	}
}

// keepHostPorts has the plugins behind ours make their rules again whenever another program may have removed them from the firewall,
// until ctx ends. It is no part of the repair: plugins may wait long for the firewall's lock, and our own rules must not.
func (k *kernel) keepHostPorts(ctx context.Context) {
	made := map[string]chained.Again{} // by attachment
	var waited <-chan time.Time
	k.gone.Wake() // what was flushed while no agent ran
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.gone:
			for _, x := range k.restore(ctx) {
				made[x.ID] = x
			}
		case <-waited:
			left, err := k.network().Forget(ctx, slices.Collect(maps.Values(made)))
			if err != nil && ctx.Err() == nil {
				k.log.Warn("rules for hostPorts of pods that are gone could not be removed; trying again", "err", err)
			}
			clear(made)
			for _, x := range left {
				made[x.ID] = x
			}
		}
		if waited = nil; len(made) > 0 {
			waited = time.After(podGoes)
		}
	}
}

// programsDir, in the runtime directory, has the iptables that plugins behind ours are to use.
const programsDir = "iptables"

// network is the one that the plugins behind ours serve.
func (k *kernel) network() chained.Network {
	cache := libcni.CacheDir
	if dir := filepath.Dir(k.pods.DataDir); filepath.Base(dir) == "networks" { // the runtime's cache is beside it
		cache = filepath.Dir(dir)
	}
	n := chained.Network{Name: k.pods.Name, BinDir: k.cni.PluginDir(), CacheDir: cache, Living: podlink.Host{Store: k.pods.DataDir}.Living, Unhooked: k.host.Unhooked}
	if _, err := os.Stat(filepath.Join(resolve.Mounted, "etc")); err == nil { // in a container: the runtime calls them with the host's
		if n.Programs, err = k.host.Programs(filepath.Join(k.pods.RuntimeDir, programsDir)); err != nil {
			k.log.Warn("plugins behind ours are called with this container's iptables, which may have another backend than the host's", "err", err)
		}
	}
	return n
}

// restore has the plugins behind ours make their rules again that another program has removed from the firewall.
func (k *kernel) restore(ctx context.Context) []chained.Again {
	if p, _ := k.force.plan(); p.Host.Keep {
		return nil
	}
	again, err := k.network().Restore(ctx)
	var back []string
	var lost []chained.Again
	for _, x := range again {
		if x.Err == nil {
			back = append(back, x.Pod)
		} else {
			lost = append(lost, x)
		}
	}
	if len(back) > 0 {
		k.log.Info("rules for hostPorts were gone from the host's firewall, and are back", "pods", back)
	}
	if err != nil { // what was lost before still is
		if ctx.Err() == nil {
			k.log.Error("could not look for hostPorts whose firewall rules are gone; trying again at the next look", "err", err)
		}
		return again
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = lost
	return again
}

// hostPorts are those that restore could not bring back.
func (k *kernel) hostPorts() []findings.Finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []findings.Finding
	for _, x := range k.lost {
		out = append(out, findings.Brokenf("host-ports", "fix the cause; the agent tries again every 30 s; or delete the pod",
			"the firewall rules for this pod's hostPorts are gone, and its CNI plugin does not make them again: %v", x.Err).About(x.Pod))
	}
	return out
}

// addresses are this node's mesh addresses. Where another plugin has the pods, or the host has no IPv6, it may lack them.
func (k *kernel) addresses() []netip.Addr {
	p, _ := k.force.plan()
	addrs, err := nodeip.Present(mesh.Addresses(p.Self.PodCIDRs))
	if err != nil {
		k.log.Error("cannot read this host's addresses, so its mesh addresses are not reported", "err", err)
	}
	return addrs
}

func (k *kernel) isConfirmed() bool {
	select {
	case <-k.confirmed:
		return true
	default:
		return false
	}
}

// setWaits notes, and logs when it changes, why the runtime does not have our CNI
// configuration, or an older one. The agent has not failed: what runs keeps its network.
func (k *kernel) setWaits(why error) {
	k.mu.Lock()
	before := k.waits
	k.waits = why
	k.mu.Unlock()
	switch {
	case why != nil && (before == nil || before.Error() != why.Error()):
		k.log.Warn("CNI configuration is not in place", "err", why)
	case why == nil && before != nil:
		k.log.Info("CNI configuration is in place")
	}
}

// repaired notes the outcome of a repair.
func (k *kernel) repaired(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failure = err
}

// state returns the last repair's failure, and why the conflist is not in place.
func (k *kernel) state() (failure, waits error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure, k.waits
}

// serving says why this node's pods, or new ones, have no network: failure, or what the
// plugin's STATUS would say. Runtimes call STATUS only from specification 1.1.0 on.
func (k *kernel) serving(failure error) error {
	if p, _ := k.force.plan(); failure != nil || p.Host.Keep {
		return failure
	}
	_, err := k.state()
	if !errors.Is(err, cniconf.ErrWaits) {
		err = upkeep.Status(k.pods)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("new pods get no network: %w", err)
}

// look looks for what on this host blocks the pod network, and keeps it for findings. Its firewall is probed where that is due.
func (k *kernel) look(ctx context.Context, probe bool) []findings.Finding {
	w := k.force.current().Host
	inWay := k.host.InTheWay(w)
	var probed []findings.Finding
	if probe {
		probed = k.host.Probe(ctx, w)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inWay = inWay
	if probe {
		k.probed = probed
	}
	return slices.Concat(inWay, probed)
}

// warn logs, at the start, what on this host blocks the pod network.
func (k *kernel) warn(ctx context.Context) {
	for _, f := range k.look(ctx, true) {
		switch {
		case f.Severity == findings.Note:
			k.log.Info("about this host", "check", f.ID, "found", wording.OneLine(f.Text))
		case f.ID != "ipv6" && f.ID != "lan": // logged by the host itself
			k.log.Warn("something on this host blocks the pod network", "check", f.ID, "found", wording.OneLine(f.Text), "remedy", f.Remedy)
		}
	}
}

// repairs is whether the last repair of kernel state failed, and which ones do not last.
func (k *kernel) repairs() []findings.Finding {
	out := slices.Concat(k.host.Undone(), k.host.Others())
	if err, _ := k.state(); err != nil {
		out = append(out, findings.Brokenf("host", "fix the cause; the agent retries every 2 s", "the last repair failed: %v", err))
	}
	return out
}

// obstacles are what on the host blocked the pod network at the last look.
func (k *kernel) obstacles() []findings.Finding {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Concat(k.inWay, k.probed)
}

const (
	repairEvery    = 30 * time.Second       // how often kernel state is compared with the plan
	retryEvery     = 2 * time.Second        // the same after an error
	probeEvery     = 5 * time.Minute        // how often the host's firewall is probed, for status
	probeDebounce  = 3 * time.Second        // how long a change of it may be one of several
	probeRest      = 10 * time.Second       // least time between two probes: some programs change it all the time
	statusEvery    = 5 * time.Second        // the same while new pods get no network
	repairDebounce = 200 * time.Millisecond // from the first sign of a change to the repair
	podGoes        = 5 * time.Second        // how long a pod's removal takes, from its plugins' DEL to ours
	repairRest     = 2 * time.Second        // least time between two repairs, on average: other programs change the firewall often
	repairBurst    = 5                      // so many may follow each other immediately
)

// pace is when all repairs so far would be over if each took repairRest, or the last one's end.
type pace struct{ time.Time }

func (p *pace) repaired(now time.Time) {
	if p.Before(now) {
		p.Time = now
	}
	p.Time = p.Add(repairRest)
}

// next is when the next repair may begin.
func (p *pace) next() time.Time { return p.Add(-(repairBurst - 1) * repairRest) }

// nextLook says when to probe the host's firewall again: some seconds after another program has changed it.
type nextLook struct {
	last    time.Time
	changed time.Time // when a change was noticed; zero for none since last
}

// wait is how long to wait until then, or until it can be said; 0 means now. suspect reports whether another program has changed the
// firewall since last.
func (n *nextLook) wait(now time.Time, suspect func() bool) time.Duration {
	if rest := n.last.Add(probeRest).Sub(now); rest > 0 {
		return rest
	}
	if n.changed.IsZero() && suspect() {
		n.changed = now
	}
	next := n.last.Add(probeEvery)
	if !n.changed.IsZero() {
		next = n.changed.Add(probeDebounce)
	}
	return max(next.Sub(now), 0)
}

// repairer compares kernel state and the plugin's files with the plan whenever the kernel
// reports a change, and periodically, so that a flushed firewall, a deleted bridge or a
// removed runtime directory is restored. It also reports the addresses of a node that is
// a relay, and its mesh addresses, which change with the kernel's.
type repairer struct {
	kernel *kernel
	node   *p2p.Node
	relay  config.Relay
	source interface {
		SetRelay(addrs []string)
		SetPlace(api.Place)
		SetServing(error)
	}
	socket     *control.Server
	followMesh func([]netip.Addr)
	loop       *watchdog.Loop
	ready      func(status string) // notifies the service manager
	fail       func(error)         // ends the agent
	log        *slog.Logger
}

// run repairs until ctx ends.
func (r repairer) run(ctx context.Context) {
	wait := repairEvery
	var done pace
	look := nextLook{last: time.Now()}
	relay := relayReporter{reporter{set: r.source.SetRelay}}
	_, end := r.loop.Begin(ctx)
	own := reporter{set: func(now []string) { r.source.SetPlace(api.Place{NAT: now[0], Addresses: now[1:]}) }}
	for {
		addrs := r.kernel.addresses()
		own.report(append([]string{r.node.Status().Kind.String()}, wording.Texts(addrs)...))
		r.followMesh(addrs)
		relay.report(r.relay.Enabled, r.node.RelayAddrs(r.relay.Announce))
		end()
		if !r.kernel.due(ctx, wait, done.next()) {
			return
		}
		var work context.Context
		work, end = r.loop.Begin(ctx)
		err := r.kernel.apply(work)
		watchdog.Step(work)
		if err != nil && ctx.Err() == nil {
			r.log.Error("could not set kernel state; retrying", "every", retryEvery, "err", err)
		}
		if err := r.kernel.cni.Replaced(); err != nil {
			r.fail(err)
		}
		if err := r.socket.Renew(); err != nil {
			r.log.Error("control socket unavailable: status, ping and doctor cannot reach this agent", "err", err)
		}
		r.kernel.repaired(err)
		known := !look.changed.IsZero()
		untilLook := look.wait(time.Now(), r.kernel.host.Suspect)
		r.kernel.flushed(untilLook == 0 || !known && !look.changed.IsZero() || len(r.kernel.hostPorts()) > 0)
		r.kernel.look(work, untilLook == 0)
		watchdog.Step(work)
		if untilLook == 0 {
			look = nextLook{last: time.Now()}
			untilLook = probeEvery
		}
		why := r.kernel.serving(err)
		r.source.SetServing(why)
		switch {
		case err != nil:
			wait = retryEvery
		case why != nil:
			wait = statusEvery
		default:
			wait = repairEvery
			r.ready(running)
		}
		wait = min(wait, untilLook)
		done.repaired(time.Now())
	}
}

// reporter passes a list of addresses to the membership's source when it has changed.
type reporter struct {
	set    func([]string)
	begun  bool
	latest []string
}

func (r *reporter) report(now []string) {
	if r.begun && slices.Equal(r.latest, now) {
		return
	}
	r.begun, r.latest = true, now
	r.set(slices.Clone(now))
}

// relayReporter reports at which addresses this node is a relay.
type relayReporter struct{ reporter }

// report reports addrs when they have changed. A relay without any address only has no
// uplink now; it stays a relay.
func (r *relayReporter) report(enabled bool, addrs []ma.Multiaddr) {
	switch {
	case !enabled:
		r.reporter.report(nil)
	case len(addrs) > 0:
		r.reporter.report(wording.Texts(addrs))
	}
}
