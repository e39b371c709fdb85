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
	"edgemesh/agent/diagnose"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/netcheck"
	"edgemesh/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/tun"
)

// doctorTimeout bounds all active probes of one doctor together.
const doctorTimeout = 8 * time.Second

// doctor checks this node for the operator. It changes nothing.
type doctor struct {
	cfg    config.Config
	id     peer.ID // of this node
	force  *inForce
	source interface {
		String() string
		Annotations() map[string]string
	}
	node   *p2p.Node
	device tun.Device
	kernel *kernel
	lan    *lanPaths
	reach  reach
	dog    *watchdog.Watchdog
	log    *slog.Logger
}

// Doctor looks at every part again, actively. What is broken comes first; the checks are in
// the order in which one depends on another, so that the first finding is the cause.
func (d *doctor) Doctor(ctx context.Context) []findings.Finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	plan, problem := d.force.plan()
	var relays, network []findings.Finding
	var wg sync.WaitGroup
	wg.Go(func() { relays, network = d.checkNetwork(ctx, plan) })
	out := []findings.Finding{d.checkKey(), checkMembership(plan, problem, d.source.String()), d.checkOffloads()}
	out = append(out, d.kernel.host.Check(ctx, plan.Host)...)
	out = append(out, checkForward(plan.Host, d.cfg.Key("forward"))...)
	out = append(out, overlaps(d.kernel.pods, plan.Host), checkOtherCNI(d.cfg.CNIConfDir, d.source.Annotations(), plan))
	if !plan.Host.Keep {
		out = append(out, d.checkCNI(), strays(d.kernel.pods, plan.Host))
		out = append(out, checkRuntime("/", d.cfg.CNIConfDir, d.cfg.CNIBinDir)...)
		out = append(out, diagnose.Pools(pools(d.kernel.pods, d.log))...)
	}
	if d.cfg.Membership.Kubernetes != nil {
		out = append(out, diagnose.NodeIP(plan.Plan, d.cfg.StateDir)...)
		if diagnose.NodeIPReported(plan.Plan) {
			out = append(out, d.kernel.host.CheckInput(ctx, plan.Host)...)
		}
	}
	out = append(out, d.lan.check()...)
	out = append(out, d.checkOwnRelay(plan)...)
	wg.Wait()
	out = append(append(out, network...), relays...)
	out = append(out, d.checkNAT())
	used, _ := d.reach.peers(false)
	out = append(out, checkPeers(used)...)
	out = append(out, diagnose.MTU(used)...)
	out = append(out, d.checkRefused()...)
	return findings.Causes(oneLined(out))
}

// checkNetwork measures what the network lets through to the relays, beside the connections that there are.
func (d *doctor) checkNetwork(ctx context.Context, plan plan) (relays, network []findings.Finding) {
	via, err := proxyOf(d.cfg, d.force.inside)
	if err != nil {
		network = append(network, findings.Warningf("proxy", "correct it, and restart the agent", "%v", err))
	}
	c := netcheck.Config{Proxy: via, Mark: host.Mark, Log: d.log}
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
	relays = d.checkRelays(ctx, plan)
	wg.Wait()
	broken := slices.ContainsFunc(relays, func(f findings.Finding) bool { return f.Severity == findings.Broken })
	network = append(network, diagnose.Clock(clock, broken)...)
	return relays, append(network, diagnose.UDP(answers)...)
}

func (d *doctor) checkKey() findings.Finding {
	path := filepath.Join(d.cfg.StateDir, identity.KeyFile)
	key, err := identity.Load(path)
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
	if _, err := os.Stat(filepath.Join(d.cfg.RuntimeDir, conf.SubnetFile)); err != nil {
		return findings.Brokenf("cni", remedy, "%v", err)
	}
	err, waits := d.kernel.state()
	if err != nil {
		return findings.Brokenf("cni", "fix the cause; the agent retries every 2 s", "the last repair failed: %v", err)
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
	if d.kernel.cni.Stale() {
		return findings.Warningf("cni", "restart this agent's pod: its init container installs the plugin; where the agent installs it, wait 30 s",
			"%s is not of the agent's release", filepath.Join(d.cfg.CNIBinDir, cniconf.PluginName))
	}
	return findings.Okayf("cni", "present: %s", strings.Join(present, ", "))
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

// checkRelays dials every relay now. One of several may be unreachable; without any, no
// node behind a NAT can reach this one.
func (d *doctor) checkRelays(ctx context.Context, plan plan) []findings.Finding {
	relays := d.node.CheckRelays(ctx)
	if len(relays) == 0 && d.cfg.Relay.Enabled && plan.hasRelay(d.id) {
		return nil // the others come here
	}
	if len(relays) == 0 {
		return []findings.Finding{findings.Warningf("no-relays", "list at least one under relays in the membership",
			"the membership has no relays: only nodes that can dial each other directly are connected")}
	}
	reserved := 0
	for _, r := range relays {
		if r.Reserved {
			reserved++
		}
	}
	var out []findings.Finding
	for _, r := range relays {
		name := fmt.Sprintf("%s at %s", r.ID, r.Addr)
		id, remedy := "relay-unreachable", "check that edgemesh-relay runs there, that its port is open for TCP and UDP, and that the membership has its peer ID"
		if r.Connected && !r.Reserved {
			id, remedy = "relay-refuses", "the relay refuses this node: check that the relay's membership lists it"
		}
		switch {
		case r.Reserved:
			out = append(out, findings.Okayf("relays", "%s: connected, reserved, %v away", name, r.RTT.Round(100*time.Microsecond)))
		case r.Spare:
			out = append(out, findings.Okayf("relays", "%s: not needed now, %v away", name, r.RTT.Round(100*time.Microsecond)))
		case r.Refusal != "":
			out = append(out, diagnose.Proxy(name, r.Error, r.Refusal, reserved > 0))
		case reserved > 0:
			out = append(out, findings.Warningf(id, remedy, "%s: %s", name, r.Error).About(r.ID.String()))
		default:
			out = append(out, findings.Brokenf(id, remedy, "%s: %s", name, r.Error).About(r.ID.String()))
		}
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

// checkPeers reports members that packets wait for.
func checkPeers(used []control.PeerStatus) []findings.Finding {
	var out []findings.Finding
	for _, p := range used {
		if p.Path == string(paths.KindNone) {
			out = append(out, findings.Warningf("peer-unreachable", "check that the agent there is running and has a reservation at a relay: run doctor there",
				"no path to %s: %s", p.Node, p.Reason).About(p.Node))
		}
	}
	if len(out) == 0 {
		out = append(out, findings.Okayf("peers", "%d peers in use, all of them with a path", len(used)))
	}
	return out
}

// checkRefused looks at who was refused here.
func (d *doctor) checkRefused() []findings.Finding {
	return diagnose.Refused(d.node.Refusals(), d.node.MemberName, d.reach.seenAt)
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
	load := fmt.Sprintf("%d reservations, %d circuits", st.Reservations, st.Circuits)
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

// problems are what status reports about this host: why the membership is outdated, and
// the kernel's findings.
func (d *doctor) problems() []findings.Finding {
	plan, problem := d.force.plan()
	var out []findings.Finding
	if f := checkMembership(plan, problem, d.source.String()); f.Severity != findings.OK {
		out = append(out, f)
	}
	for _, f := range d.checkRefused() {
		if f.ID == "key-mismatch" || f.ID == "handshakes" {
			out = append(out, f)
		}
	}
	if d.cfg.Membership.Kubernetes != nil {
		out = append(out, diagnose.NodeIPMissing(plan.Plan)...)
	}
	return oneLined(slices.Concat(out, hungLoops(d.dog), d.kernel.findings(plan.Host)))
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
	if f := overlaps(d.kernel.pods, p.Host); f.Severity != findings.OK {
		d.log.Warn("another network on this node uses the cluster's addresses", "found", f.Text, "remedy", f.Remedy)
	}
	switch f := checkOtherCNI(d.cfg.CNIConfDir, d.source.Annotations(), p); {
	case f.Severity != findings.OK:
		d.log.Warn("the network plugins on this node do not fit its cniMode", "found", f.Text, "remedy", f.Remedy)
	case p.Host.Keep:
		d.log.Info("the pods stay with another network plugin", "found", f.Text)
	}
}

// noticeEvery is how often the agent looks for something that is worth an event.
const noticeEvery = time.Minute

// notice records events about what has been wrong for long, where the membership comes from a cluster.
func (d *doctor) notice(ctx context.Context, warn func(reason, message string)) {
	var n diagnose.Notices
	for wake.Sleep(ctx, noticeEvery) {
		for _, x := range n.Due(time.Now(), d.worthNotice(time.Now())) {
			warn(x.Reason, x.Message)
		}
	}
}

// worthNotice are the findings that become events if they last.
func (d *doctor) worthNotice(now time.Time) []findings.Finding {
	plan, problem := d.force.plan()
	used, _ := d.reach.peers(false)
	found := append(checkPeers(used), d.checkRefused()...)
	found = append(found, diagnose.Relayed(now, used)...)
	if !plan.Host.Keep {
		found = append(found, diagnose.Pools(pools(d.kernel.pods, d.log))...)
	}
	return oneLined(append(found, checkMembership(plan, problem, d.source.String())))
}
