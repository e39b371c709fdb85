package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/cri"
	"edgemesh/agent/diagnose"
	"edgemesh/agent/host"
	"edgemesh/agent/netcheck"
	"edgemesh/cni/conf"
	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

// doctorTimeout bounds all active probes of one doctor together.
const doctorTimeout = 8 * time.Second

// Doctor implements control.Backend: it looks at every part again, actively. What is broken comes first; the checks are in
// the order in which one depends on another, so that the first finding is the cause.
func (b *backend) Doctor(ctx context.Context) []control.Finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	plan, problem := b.force.plan()
	var relays, network []control.Finding
	var wg sync.WaitGroup
	wg.Go(func() { relays, network = b.checkNetwork(ctx, plan) })
	out := []control.Finding{b.checkKey(), b.checkMembership(plan, problem), b.checkOffloads()}
	out = append(out, b.kernel.host.Check(ctx, plan.Host)...)
	out = append(out, checkForward(plan.Host, b.cfg.Key("forward"))...)
	out = append(out, b.kernel.overlaps(plan.Host), b.checkOtherCNI(plan))
	if !plan.Host.Keep {
		out = append(out, b.checkCNI(), b.kernel.strays(plan.Host))
		out = append(out, checkRuntime("/", b.cfg.CNIConfDir, b.cfg.CNIBinDir)...)
		out = append(out, diagnose.Pools(pools(b.kernel.pods, b.log))...)
	}
	if b.cfg.Membership.Kubernetes != nil {
		out = append(out, diagnose.NodeIP(plan.Plan, b.cfg.StateDir)...)
		if diagnose.NodeIPReported(plan.Plan) {
			out = append(out, b.kernel.host.CheckInput(ctx, plan.Host)...)
		}
	}
	out = append(out, b.lan.check()...)
	out = append(out, b.checkOwnRelay(plan)...)
	wg.Wait()
	out = append(append(out, network...), relays...)
	out = append(out, b.checkNAT())
	used, _ := b.peers(false)
	out = append(out, checkPeers(used)...)
	out = append(out, diagnose.MTU(used)...)
	out = append(out, b.checkRefused(plan)...)
	return diagnose.Ordered(oneLined(out))
}

// checkNetwork measures what the network lets through to the relays, beside the connections that there are.
func (b *backend) checkNetwork(ctx context.Context, plan plan) (relays, network []control.Finding) {
	way, err := proxyOf(b.cfg, b.force.inside)
	if err != nil {
		network = append(network, control.Warningf("proxy", "correct it, and restart the agent", "%v", err))
	}
	c := netcheck.Config{Proxy: way, Mark: host.Mark, Log: b.log}
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
	relays = b.checkRelays(ctx, plan)
	wg.Wait()
	broken := slices.ContainsFunc(relays, func(f control.Finding) bool { return f.Severity == control.Broken })
	network = append(network, diagnose.Clock(clock, broken)...)
	return relays, append(network, diagnose.UDP(answers)...)
}

func (b *backend) checkKey() control.Finding {
	path := filepath.Join(b.cfg.StateDir, identity.KeyFile)
	key, err := identity.Load(path)
	if err != nil {
		return control.Brokenf("key", "restore the file now: the running agent still has its key, but the next start will fail", "%v", err)
	}
	if !b.id.MatchesPrivateKey(key) {
		return control.Brokenf("key", "restore the previous key, or put the new peer ID into the membership and restart the agent",
			"%s was replaced: the running agent is %s", path, b.id)
	}
	return control.Okayf("key", "%s, mode 0600, peer ID %s", path, b.id)
}

func (b *backend) checkMembership(plan plan, problem error) control.Finding {
	if problem != nil {
		return control.Warningf("membership", membershipRemedy(b.source.String()), "the last good membership is in force: %v", problem)
	}
	return control.Okayf("membership", "%s: %d members, this node owns %v", b.source, len(plan.Nodes), plan.Self.PodCIDRs)
}

func (b *backend) checkOffloads() control.Finding {
	if b.device.Kind() != "fast" {
		return control.Warningf("offloads", "use a kernel of 5.4 or later with CONFIG_TUN", "%s is the portable device without offloads, which is slower", b.device.Name())
	}
	return control.Okayf("offloads", "%s has %s", b.device.Name(), b.device.Offloads())
}

// checkCNI looks at what the container runtime and the plugin need.
func (b *backend) checkCNI() control.Finding {
	const remedy = "wait 30 s for the agent to write it again; if it does not, its log says why"
	if _, err := os.Stat(filepath.Join(b.cfg.RuntimeDir, conf.SubnetFile)); err != nil {
		return control.Brokenf("cni", remedy, "%v", err)
	}
	err, waits := b.kernel.state()
	if err != nil {
		return control.Brokenf("cni", "fix the cause; the agent retries every 2 s", "the last repair failed: %v", err)
	}
	if err := b.kernel.serving(nil); err != nil {
		return control.Brokenf("cni", "fix the cause; until then the plugin refuses pods, and the Node is marked NetworkUnavailable", "%v", err)
	}
	if waits != nil {
		return control.Brokenf("cni", "fix the cause; the agent checks again every 30 s", "%v", waits)
	}
	present := []string{filepath.Join(b.cfg.RuntimeDir, conf.SubnetFile)}
	for _, f := range []struct{ dir, name string }{{b.cfg.CNIConfDir, cniconf.ConflistName}, {b.cfg.CNIBinDir, cniconf.PluginName}} {
		if f.dir == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(f.dir, f.name)); err != nil {
			return control.Brokenf("cni", remedy, "%v", err)
		}
		present = append(present, filepath.Join(f.dir, f.name))
	}
	if b.kernel.cni.Stale() {
		return control.Warningf("cni", "restart this agent's pod: its init container installs the plugin; where the agent installs it, wait 30 s",
			"%s is not of the agent's release", filepath.Join(b.cfg.CNIBinDir, cniconf.PluginName))
	}
	return control.Okayf("cni", "present: %s", strings.Join(present, ", "))
}

// checkRuntime compares the agent's CNI directories with those in which the host's container runtime
// looks. The agent's pod does not see the runtime's files; then there is no finding.
func checkRuntime(root, confDir, binDir string) []control.Finding {
	c, err := cri.Find(root)
	switch {
	case errors.Is(err, cri.ErrNone):
		return nil
	case err != nil:
		return []control.Finding{control.Warningf("runtime", "fix the cause, or make sure yourself that cniConfDir and cniBinDir in the agent's configuration "+
			"are where the runtime looks", "%v", err)}
	}
	var out []control.Finding
	for _, d := range c.Differences(confDir, binDir) {
		out = append(out, control.Brokenf("runtime", fmt.Sprintf("set %s: %s in the agent's configuration and restart the agent", d.Key, d.Want), "%v", d))
	}
	if len(out) == 0 {
		out = append(out, control.Okayf("runtime", "%v looks in %s and %s", c, c.ConfDir, strings.Join(c.BinDirs, ", ")))
	}
	return out
}

// checkRelays dials every relay now. One of several may be unreachable; without any, no
// node behind a NAT can reach this one.
func (b *backend) checkRelays(ctx context.Context, plan plan) []control.Finding {
	relays := b.node.CheckRelays(ctx)
	if len(relays) == 0 && b.cfg.Relay.Enabled && listedAsRelay(plan, b.id) {
		return nil // the others come here
	}
	if len(relays) == 0 {
		return []control.Finding{control.Warningf("relays", "list at least one under relays in the membership",
			"the membership has no relays: only nodes that can dial each other directly are connected")}
	}
	reserved := 0
	for _, r := range relays {
		if r.Reserved {
			reserved++
		}
	}
	var out []control.Finding
	for _, r := range relays {
		name := fmt.Sprintf("%s at %s", r.ID, r.Addr)
		remedy := "check that edgemesh-relay runs there, that its port is open for TCP and UDP, and that the membership has its peer ID"
		if r.Connected && !r.Reserved {
			remedy = "the relay refuses this node: check that the relay's membership lists it"
		}
		switch {
		case r.Reserved:
			out = append(out, control.Okayf("relays", "%s: connected, reserved, %v away", name, r.RTT.Round(100*time.Microsecond)))
		case r.Spare:
			out = append(out, control.Okayf("relays", "%s: not needed now, %v away", name, r.RTT.Round(100*time.Microsecond)))
		case r.Refusal != "":
			out = append(out, diagnose.Proxy(name, r.Error, r.Refusal, reserved > 0))
		case reserved > 0:
			out = append(out, control.Warningf("relays", remedy, "%s: %s", name, r.Error))
		default:
			out = append(out, control.Brokenf("relays", remedy, "%s: %s", name, r.Error))
		}
	}
	return out
}

// checkNAT reports what is between this node and the others. None of it is a fault: that
// is what relays are for.
func (b *backend) checkNAT() control.Finding {
	st := b.node.Status()
	if st.Router == "" {
		return control.Okayf("nat", "%s", st.NAT)
	}
	return control.Okayf("nat", "%s; %s", st.NAT, st.Router)
}

// checkPeers reports members that packets wait for.
func checkPeers(used []control.PeerStatus) []control.Finding {
	var out []control.Finding
	for _, p := range used {
		if p.Path == string(paths.KindNone) {
			out = append(out, control.Warningf("peers", "check that the agent there is running and has a reservation at a relay: run doctor there",
				"no path to %s: %s", p.Node, p.Reason))
		}
	}
	if len(out) == 0 {
		out = append(out, control.Okayf("peers", "%d peers in use, all of them with a path", len(used)))
	}
	return out
}

// checkRefused looks at who was refused here.
func (b *backend) checkRefused(plan plan) []control.Finding {
	at := func(a netip.Addr) string {
		for m := range plan.Members() {
			if a.IsValid() && b.node.Seen(admit.ID(m.PeerID), a) {
				return m.Name
			}
		}
		return ""
	}
	return diagnose.Refused(b.node.Refusals(), b.node.MemberName, at)
}
