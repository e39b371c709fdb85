package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/cri"
	"edgemesh/agent/describe"
	"edgemesh/agent/diagnose"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/netcheck"
	"edgemesh/agent/plugins"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/passon"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/tun"
)

// doctorTimeout bounds all active probes of one doctor together.
const doctorTimeout = 8 * time.Second

// doctor checks this node, continuously with what the agent knows and for the operator with probes. It changes nothing.
type doctor struct {
	cfg    config.Config
	id     peer.ID // of this node
	force  *inForce
	source interface {
		String() string
		Annotations() map[string]string
		Leaderless() string
	}
	names   *resolve.Names
	upkeep  *upkeep.Budget
	metered *metered
	node    *p2p.Node
	device  tun.Device
	kernel  *kernel
	lan     *lanPaths
	reach   reach
	passes  *passon.Exchanger // nil: nothing is signed
	dog     *watchdog.Watchdog
	noted   []findings.Finding // what the start found, and did without
	log     *slog.Logger

	common, known, probes *findings.Judge // what both judge, the running agent, and doctor
	tracker               findings.Tracker
}

const (
	// hostEvery is how long what is read from the kernel and from files is reused, reportEvery that where nobody waits for it, and
	// checkPatience how long a check of the running agent may take.
	hostEvery     = 5 * time.Second
	reportEvery   = 30 * time.Second
	checkPatience = 2 * time.Second
)

// judges makes the judges, once d is complete. The order of checks is that of causes.
func (d *doctor) judges() {
	check := func(name string, every time.Duration, look func(plan) []findings.Finding) findings.Check {
		return findings.Check{Name: name, Every: every, Look: func(context.Context) []findings.Finding {
			p, _ := d.force.plan()
			return look(p)
		}}
	}
	own := func(f func(plan) []findings.Finding) func(plan) []findings.Finding { // not where another plugin has the pods
		return func(p plan) []findings.Finding {
			if p.Host.Keep {
				return nil
			}
			return f(p)
		}
	}
	inUse := func(f func([]control.PeerStatus) []findings.Finding) func(plan) []findings.Finding {
		return func(plan) []findings.Finding {
			used, _ := d.reach.peers(false)
			return f(used)
		}
	}
	d.common = findings.NewJudge(d.log,
		check("loops", 0, func(plan) []findings.Finding { return hungLoops(d.dog) }),
		check("start", 0, func(plan) []findings.Finding { return d.noted }),
		check("key", hostEvery, func(plan) []findings.Finding { return []findings.Finding{d.checkKey()} }),
		check("clone", 0, func(plan) []findings.Finding { return checkClones(d.node, d.cfg) }),
		check("secrets", hostEvery, func(plan) []findings.Finding { return checkSecrets(d.cfg) }),
		check("resolver", hostEvery, func(plan) []findings.Finding { return checkResolver(d.names) }),
		check("membership", 0, func(p plan) []findings.Finding {
			_, problem := d.force.plan()
			return []findings.Finding{checkMembership(p, problem, d.source.String())}
		}),
		check("controller", 0, func(plan) []findings.Finding { return checkController(d.source.Leaderless()) }),
		check("host", 0, func(plan) []findings.Finding { return d.kernel.repairs() }),
		check("conntrack", hostEvery, func(plan) []findings.Finding { return host.Conntrack() }),
		check("uplink", 0, func(p plan) []findings.Finding {
			used, _ := d.reach.peers(false)
			via, _ := proxyOf(d.cfg, d.force.inside) // an error is the check's of the network
			return diagnose.Uplink(cutOff(d.node.Uplinks(), p.Subnet.ClusterCIDRs, p.relays, via.For), d.node.Status().Relays, used)
		}),
		check("forward", 0, func(p plan) []findings.Finding { return checkForward(p.Host, d.cfg.Key("forward")) }),
		check("addresses", hostEvery, func(p plan) []findings.Finding {
			return append(checkRefused(d.force.whyRefused()), overlaps(d.kernel.pods, p.Host))
		}),
		check("cni", hostEvery, own(func(plan) []findings.Finding { return []findings.Finding{d.checkCNI()} })),
		check("host-ports", 0, func(plan) []findings.Finding { return d.kernel.hostPorts() }),
		check("network-policy", 0, own(func(plan) []findings.Finding { return d.kernel.checkPolicies() })),
		check("pods", hostEvery, own(func(p plan) []findings.Finding {
			return append(aside(d.kernel.pods, p.Host), strays(d.kernel.pods, p.Host))
		})),
		check("pool", hostEvery, own(func(plan) []findings.Finding { return diagnose.Pools(pools(d.kernel.pods, d.log)) })),
		check("lan", hostEvery, func(plan) []findings.Finding { return slices.Concat(d.lan.check(), d.lan.notes()) }),
		check("relay", 0, d.checkOwnRelay),
		check("relay-service", 0, func(p plan) []findings.Finding {
			return diagnose.RelayService(d.relays(d.node.Status().Relays), d.served(p), time.Now())
		}),
		check("upkeep", 0, func(plan) []findings.Finding {
			return checkUpkeep(upkeepOf(d.upkeep, d.metered, time.Now()))
		}),
		check("peers", 0, inUse(func(used []control.PeerStatus) []findings.Finding {
			return diagnose.Peers(used, d.node.Status().Relays)
		})),
		check("mtu", 0, inUse(diagnose.MTU)),
		check("relayed", 0, inUse(func(used []control.PeerStatus) []findings.Finding { return diagnose.Relayed(time.Now(), used) })),
		check("refused", 0, func(plan) []findings.Finding {
			return diagnose.Refused(d.node.Refusals(), d.node.MemberName, d.reach.seenAt)
		}),
	)
	d.known = findings.NewJudge(d.log,
		check("obstacles", 0, func(plan) []findings.Finding { return d.kernel.obstacles() }),
		check("relays", 0, func(p plan) []findings.Finding { return diagnose.Relays(d.node.Status().Relays, d.served(p)) }),
		check("node-ip", 0, func(p plan) []findings.Finding {
			if d.cfg.Membership.Kubernetes == nil {
				return nil
			}
			return diagnose.NodeIPMissing(p.Plan)
		}),
	)
	probe := func(name string, look func(context.Context, plan) []findings.Finding) findings.Check {
		return findings.Check{Name: name, Look: func(ctx context.Context) []findings.Finding {
			p, _ := d.force.plan()
			return look(ctx, p)
		}}
	}
	d.probes = findings.NewJudge(d.log,
		probe("kernel state", func(ctx context.Context, p plan) []findings.Finding { return d.kernel.host.Check(ctx, p.Host) }),
		probe("network", d.checkNetwork),
		check("offloads", 0, func(plan) []findings.Finding { return []findings.Finding{d.checkOffloads()} }),
		check("cniMode", 0, func(p plan) []findings.Finding {
			return append(moving(p, d.cfg.StateDir), checkOtherCNI(d.cfg.CNIConfDir, d.source.Annotations(), p))
		}),
		check("runtime", 0, own(func(plan) []findings.Finding { return checkRuntime("/", d.cfg.CNIConfDir, d.cfg.CNIBinDir) })),
		probe("node-ip", func(ctx context.Context, p plan) (out []findings.Finding) {
			if d.cfg.Membership.Kubernetes != nil {
				out = diagnose.NodeIP(p.Plan, d.cfg.StateDir)
			}
			if out != nil && diagnose.NodeIPReported(p.Plan) {
				out = append(out, d.kernel.host.CheckInput(ctx, p.Host)...)
			}
			return out
		}),
		check("nat", 0, func(plan) []findings.Finding { return []findings.Finding{d.checkNAT()} }),
	)
}

// served reports whether this node is a relay of the membership itself.
func (d *doctor) served(p plan) bool { return d.cfg.Relay.Enabled && p.hasRelay(d.id) }

// close ends all checks.
func (d *doctor) close() {
	for _, j := range []*findings.Judge{d.common, d.known, d.probes} {
		j.Close()
	}
}

// seen is what the running agent sees by itself, notes and checks that are well among it. What was read from the kernel and from
// files within reuse need not be read again.
func (d *doctor) seen(reuse time.Duration) []findings.Finding {
	ctx := context.Background()
	return append(d.common.Look(ctx, checkPatience, reuse), d.known.Look(ctx, checkPatience, reuse)...)
}

// now are the findings of this moment: what the agent sees, and what doctor saw within the last minutes.
func (d *doctor) now() []findings.Finding { return d.within(0) }

func (d *doctor) within(reuse time.Duration) []findings.Finding {
	at := time.Now()
	return d.tracker.Now(at, d.seen(reuse))
}

// Doctor looks at every part again, actively. What is broken comes first, causes before what follows from them.
func (d *doctor) Doctor(ctx context.Context) []findings.Finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout+checkPatience)
	defer cancel()
	var probed []findings.Finding
	var wg sync.WaitGroup
	wg.Go(func() { probed = d.probes.Look(ctx, doctorTimeout, findings.Afresh) })
	all := d.common.Look(ctx, doctorTimeout, findings.Afresh)
	wg.Wait()
	now := time.Now()
	all = append(all, probed...)
	d.tracker.Probed(now, all)
	return d.tracker.Checked(now, all)
}

// checkNetwork measures what the network lets through to the relays, beside the connections that there are.
func (d *doctor) checkNetwork(ctx context.Context, plan plan) (out []findings.Finding) {
	via, err := proxyOf(d.cfg, d.force.inside) // its files may have changed
	if err != nil {
		out = append(out, findings.Warningf("proxy", "correct it, and restart the agent", "%v", err))
	}
	c := netcheck.Config{Proxy: via, Names: d.names, Mark: host.Mark, Log: d.log}
	for _, r := range plan.relays {
		one := mesh.Relay{PeerID: mesh.PeerID(r.ID.String())}
		for _, a := range r.Addrs {
			one.Addrs = append(one.Addrs, a.String())
		}
		c.Relays = append(c.Relays, one)
	}
	var answers []netcheck.Relay
	var clock *netcheck.Clock
	var wg sync.WaitGroup
	wg.Go(func() { answers, clock = netcheck.Relays(ctx, c) })
	relays := diagnose.Relays(d.node.CheckRelays(ctx), d.served(plan))
	wg.Wait()
	quic, tcp := d.reach.past()
	out = append(out, netcheck.Portal(answers)...)
	out = append(out, diagnose.Clock(clock, findings.Has(relays, findings.Broken))...)
	return append(append(append(out, diagnose.UDP(answers, quic, tcp)...), netcheck.Versions(answers)...), diagnose.Remedies(relays, answers)...)
}

// relays are those in use, with what they know of what is signed.
func (d *doctor) relays(all []relays.Status) []control.RelayStatus {
	out := describe.Relays(all)
	if d.passes == nil {
		return out
	}
	for i := range out {
		since, lacks, some, known := d.passes.Behind(all[i].ID)
		if out[i].Knows = known && since.IsZero(); known && !out[i].Knows {
			out[i].Behind, out[i].Lacks, out[i].Lacking = &since, lacks, some
		}
	}
	return out
}

func (d *doctor) checkKey() findings.Finding {
	path := filepath.Join(d.cfg.StateDir, keyfile.Name)
	key, err := keyfile.Load(path)
	if err != nil {
		return findings.Brokenf("key", "restore the file now: the running agent still has its key, but the next start will fail", "%v", err)
	}
	if !d.id.MatchesPrivateKey(key) {
		return findings.Brokenf("key", "restore the previous key, or put the new peer ID into the membership and restart the agent",
			"%s was replaced: the running agent is %s", path, d.id)
	}
	return findings.Okayf("key", "%s, mode 0600, peer ID %s", path, d.id)
}

func (d *doctor) checkOffloads() findings.Finding {
	if d.device.Kind() != "fast" {
		return findings.Warningf("offloads", "use a kernel of 5.4 or later with CONFIG_TUN", "%s is the portable device without offloads, which is slower", d.device.Name())
	}
	return findings.Okayf("offloads", "%s has %s", d.device.Name(), d.device.Offloads())
}

// checkCNI looks at what the container runtime and the plugin need.
func (d *doctor) checkCNI() findings.Finding {
	const remedy = "wait 30 s for the agent to write it again; if it does not, its log says why"
	_, waits := d.kernel.state()
	if errors.Is(waits, host.ErrNoIPv6) {
		return findings.Brokenf("cni", "enable IPv6 on this host, or give the node an IPv4 block, too; the agent checks again every 30 s", "%v", waits)
	}
	if _, err := os.Stat(filepath.Join(d.cfg.RuntimeDir, conf.SubnetFile)); err != nil {
		return findings.Brokenf("cni", remedy, "%v", err)
	}
	if err := d.kernel.serving(nil); err != nil {
		return findings.Brokenf("cni", "fix the cause; until then the plugin refuses pods, and the Node is marked NetworkUnavailable", "%v", err)
	}
	if waits != nil {
		return findings.Brokenf("cni", "fix the cause; the agent checks again every 30 s", "%v", waits)
	}
	present := []string{filepath.Join(d.cfg.RuntimeDir, conf.SubnetFile)}
	for _, f := range []struct{ dir, name string }{{d.cfg.CNIConfDir, cniconf.ConflistName}, {d.cfg.CNIBinDir, cniconf.PluginName}} {
		if f.dir == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(f.dir, f.name)); err != nil {
			return findings.Brokenf("cni", remedy, "%v", err)
		}
		present = append(present, filepath.Join(f.dir, f.name))
	}
	if unfit := d.kernel.cni.Unfit(); len(unfit) > 0 {
		return findings.Brokenf("cni", fmt.Sprintf("install it again, or remove its entry from %s", filepath.Join(d.cfg.CNIConfDir, cniconf.ConflistName)),
			"no pod can be made with the entries that another program has added behind ours: %s", strings.Join(unfit, "; "))
	}
	if f := checkDirectory("/", d.cfg.CNIConfDir); f != nil {
		return *f
	}
	if x := d.kernel.cni.Displaced(); x != nil && time.Since(x.At) < time.Hour {
		f := findings.Notef("cni", "%s stood before ours in %s, where it would make pods' network in our place, and was taken out",
			strings.Join(x.Plugins, ", "), filepath.Join(d.cfg.CNIConfDir, cniconf.ConflistName))
		f.Since, f.Remedy = &x.At, "have the program that wrote it add its entry behind ours; or `cniMode: keep`, for a network of its own"
		return f
	}
	untried := ""
	switch err := d.kernel.cni.Runs(); {
	case errors.Is(err, cniconf.ErrUntried):
		untried = "; " + err.Error()
	case err != nil:
		return findings.Brokenf("cni", "as it says; the agent tries again every 30 s", "%v", err)
	}
	if d.kernel.cni.Stale() {
		return findings.Warningf("cni", "restart this agent's pod: its init container installs the plugin; where the agent installs it, wait 30 s",
			"%s is not of the agent's release", filepath.Join(d.cfg.CNIBinDir, cniconf.PluginName))
	}
	return findings.Okayf("cni", "present: %s%s", strings.Join(present, ", "), untried)
}

// checkDirectory finds a file before ours that the runtime cannot read. Which runtime that is an agent in a pod does not see.
func checkDirectory(root, confDir string) *findings.Finding {
	file, err := plugins.Broken(confDir)
	if err == nil || confDir == "" {
		return nil
	}
	remedy := fmt.Sprintf("delete %s, or have the program that it belongs to write it again", file)
	f := findings.Brokenf("cni", remedy, "%s cannot be read: containerd stops there, has no network for any pod and keeps the node NotReady (CRI-O takes the next file): %v", file, err)
	if c, err := cri.Find(root); err == nil && c.Runtime == cri.CRIO {
		f.Severity = findings.Warning
	}
	return &f
}

// checkRuntime compares the agent's CNI directories with those in which the host's container runtime
// looks. The agent's pod does not see the runtime's files; then there is no finding.
func checkRuntime(root, confDir, binDir string) []findings.Finding {
	c, err := cri.Find(root)
	switch {
	case errors.Is(err, cri.ErrNone):
		return nil
	case err != nil:
		return []findings.Finding{findings.Warningf("runtime", "fix the cause, or make sure yourself that cniConfDir and cniBinDir in the agent's configuration "+
			"are where the runtime looks", "%v", err)}
	}
	var out []findings.Finding
	for _, d := range c.Differences(confDir, binDir) {
		out = append(out, findings.Brokenf("runtime", fmt.Sprintf("set %s: %s in the agent's configuration and restart the agent", d.Key, d.Want), "%v", d))
	}
	if len(out) == 0 {
		out = append(out, findings.Okayf("runtime", "%v looks in %s and %s", c, c.ConfDir, strings.Join(c.BinDirs, ", ")))
	}
	return out
}

// checkNAT reports what is between this node and the others. None of it is a fault: that
// is what relays are for.
func (d *doctor) checkNAT() findings.Finding {
	st := d.node.Status()
	if st.Router == "" {
		return findings.Okayf("nat", "%s", st.NAT)
	}
	return findings.Okayf("nat", "%s; %s", st.NAT, st.Router)
}

// checkOwnRelay is doctor's look at this node as a relay.
func (d *doctor) checkOwnRelay(p plan) []findings.Finding {
	listed := p.hasRelay(d.id)
	switch {
	case !d.cfg.Relay.Enabled && listed:
		return []findings.Finding{findings.Brokenf("relay", "set relay: {enabled: true} in the agent's configuration and restart it, or take the addresses out of the membership's relays",
			"the membership lists this node as a relay, but it is not one")}
	case !d.cfg.Relay.Enabled:
		return nil
	}
	st := d.node.Status()
	load := wording.Count(st.Reservations, "reservation") + ", " + wording.Count(st.Circuits, "circuit")
	if !listed {
		return []findings.Finding{findings.Warningf("relay", fmt.Sprintf("add its addresses to the membership's relays: %v (in Kubernetes: set memberRelays: true in the PodNetwork)", relayAddrs(d.node.RelayAddrs(d.cfg.Relay.Announce), d.id)),
			"this node is a relay, but the membership does not list it: %s", load)}
	}
	return []findings.Finding{findings.Okayf("relay", "this node is a relay: %s", load)}
}

// oneLined has each finding's detail on one line.
func oneLined(all []findings.Finding) []findings.Finding {
	for i := range all {
		all[i].Text = wording.OneLine(all[i].Text)
	}
	return all
}

// warnNeighbours logs, at the start, which other networks on this node block the pod
// network, and a container runtime that looks for its network elsewhere.
func (d *doctor) warnNeighbours() {
	p, _ := d.force.plan()
	if !p.Host.Keep {
		for _, f := range checkRuntime("/", d.cfg.CNIConfDir, d.cfg.CNIBinDir) {
			if f.Severity != findings.OK {
				d.log.Warn("the container runtime may not find the pod network", "found", f.Text, "remedy", f.Remedy)
			}
		}
	}
	if f := overlaps(d.kernel.pods, p.Host); f.Severity.Wrong() {
		d.log.Warn("another network on this node uses the cluster's addresses", "found", f.Text, "remedy", f.Remedy)
	}
	switch f := checkOtherCNI(d.cfg.CNIConfDir, d.source.Annotations(), p); {
	case f.Severity != findings.OK:
		d.log.Warn("the network plugins on this node do not fit its cniMode", "found", f.Text, "remedy", f.Remedy)
	case p.Host.Keep:
		d.log.Info("the pods stay with another network plugin", "found", f.Text)
	}
}

const (
	// noticeEvery is how often the agent looks for something that is worth an event, and the least time between two writes of its
	// MeshNode's condition; healthEvery is how often it looks for what has changed of that.
	noticeEvery = time.Minute
	healthEvery = 20 * time.Second
)

// report maintains the condition Healthy of this node's MeshNode. It changes with what is broken, not with the words for it.
func (d *doctor) report(ctx context.Context, set func(reason, message string)) {
	var said time.Time
	last := "nothing yet"
	for wake.Sleep(ctx, healthEvery) {
		broken := findings.Only(d.within(reportEvery), findings.Broken)
		now := ""
		for _, f := range broken {
			now += f.ID + " " + f.Subject + "; "
		}
		if now == last || time.Since(said) < noticeEvery {
			continue
		}
		said, last = time.Now(), now
		if len(broken) == 0 {
			set("", "")
			continue
		}
		f := broken[0]
		set(f.Reason(), fmt.Sprintf("%s; %s", f.Text, f.Remedy))
	}
}

// notice records events about what has been wrong for long, where the membership comes from a cluster.
func (d *doctor) notice(ctx context.Context, warn func(reason, message string)) {
	var n diagnose.Notices
	for wake.Sleep(ctx, noticeEvery) {
		for _, x := range n.Due(time.Now(), findings.Causes(d.seen(reportEvery))) {
			warn(x.Reason, x.Message)
		}
	}
}
