package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

// byKey is cfg for the member whose key is id's. Where only the host's name says who this node is, as after a boot without DHCP, the
// key goes before it, and the finding says so.
func byKey(cfg config.Config, id mesh.PeerID) (config.Config, []findings.Finding, error) {
	if !cfg.HostNamed {
		return cfg, nil, nil
	}
	named := calledBy(cfg.NodeName)
	m, ok := memberOf(cfg, id)
	switch {
	case ok && m.Name != cfg.NodeName:
		cfg, err := cfg.As(m.Name)
		return cfg, []findings.Finding{findings.Warningf("key", fmt.Sprintf("set nodeName: %s, or the host's name; if this machine is to be another node, remove identity.key and membership.json from %s", m.Name, cfg.StateDir),
			"%s, but its key is that of the member %s, which it is", named, m.Name).About("nodeName")}, err
	case !ok && cfg.NodeName == "":
		return cfg, nil, &config.KeyError{Key: "nodeName", Err: fmt.Errorf("not set, no member has this node's key (%s), and %s; set it", id, named)}
	}
	return cfg, nil, nil
}

func calledBy(name string) string {
	if name == "" {
		return "the host has no name that a node can have"
	}
	return "the host is called " + name
}

// memberOf is the member that has a key, as the file says or, where that is unusable or an API is the source, the snapshot.
func memberOf(cfg config.Config, id mesh.PeerID) (mesh.Node, bool) {
	var s mesh.State
	err := errors.New("no file")
	if cfg.Membership.File != "" {
		s, err = file.Load(cfg.Membership.File)
	}
	if err != nil {
		s, err = snapshot.Load(cfg.StateDir)
	}
	if err != nil {
		return mesh.Node{}, false
	}
	return ofKey(s, id)
}

// ofKey is the member of s that has a key.
func ofKey(s mesh.State, id mesh.PeerID) (mesh.Node, bool) {
	i := slices.IndexFunc(s.Nodes, func(n mesh.Node) bool { return n.PeerID == id })
	if i < 0 {
		return mesh.Node{}, false
	}
	return s.Nodes[i], true
}

// otherKeyError says that the membership has another key for this node.
type otherKeyError struct {
	listed mesh.PeerID
	error
}

// badKeyError is a key that cannot be read.
type badKeyError struct{ error }

func (e badKeyError) Unwrap() error { return e.error }

// localPods keeps this node's own pods connected, as the snapshot has its blocks, while its key does not let it join the others.
type localPods struct {
	cfg      config.Config
	id       mesh.PeerID // "" while the key cannot be read
	held     *heldTUN
	portable bool // as Options.PortableTUN
	log      *slog.Logger
	waiting  *firstStart
	ready    func(string)

	said string
	stop func()
}

// keep says after how long an attempt to start that failed with err is worth another one, 0 for never. It is where it failed for want of
// the key, and this node's own pods have their network meanwhile; or for a LAN inside of ranges that were in force before, as after a
// move: nothing is set then, and the next attempt refuses it again. So it is where a node of IPv6 blocks alone has no IPv6.
func (l *localPods) keep(ctx context.Context, err error) time.Duration {
	why := wording.OneLine(err.Error())
	if _, unknown := l.plan(""); errors.Is(err, ErrLANInside) && unknown == nil {
		l.says("waiting for other addresses: "+why, findings.Brokenf("addresses", "give the cluster other podCIDRs, or this host's network other addresses; the agent tries again every 5 s",
			"this node has no pod network: %s", why).About("podCIDRs"))
		return statusEvery
	}
	if errors.Is(err, host.ErrNoIPv6) {
		if err := installer(l.cfg, l.log).WithdrawSubnet(); err != nil {
			l.log.Error("the CNI plugin may give pods addresses that lead nowhere", "err", err)
		}
		l.says("waiting for IPv6: "+why, findings.Brokenf("ipv6", "enable IPv6 on this host, install ip6tables, or give the node an IPv4 block, too; the agent tries again every 5 s",
			"this node has no pod network: %s", why))
		return statusEvery
	}
	var other otherKeyError
	if !errors.As(err, &other) && !errors.As(err, new(badKeyError)) || !l.begin(ctx, other.listed) {
		return 0
	}
	l.says("this node's own pods are connected; waiting for its key: "+why,
		findings.Brokenf("key", "restore identity.key from a backup; or remove it and give the membership the peer ID that `edgemesh-agent id` prints then; the agent tries again every 2 s",
			"this node reaches no other: %s; its own pods have their network", why))
	return retryEvery
}

// says passes on, and logs when it changes, what keeps the agent from its work.
func (l *localPods) says(status string, f findings.Finding) {
	if l.ready(status); l.said != f.Text {
		l.said = f.Text
		l.log.Error("running degraded: "+f.Text, "remedy", f.Remedy)
	}
	l.waiting.says(f)
}

// begin connects this node's pods, if the snapshot has this node, with that key if one is given.
func (l *localPods) begin(ctx context.Context, listed mesh.PeerID) bool {
	if l.stop != nil {
		return true
	}
	p, err := l.plan(listed)
	if err != nil {
		return false
	}
	if err := refuseLAN(p.Host); err != nil {
		l.log.Error("this node's own pods have no network", "err", err)
		return false
	}
	k, device, err := l.kernel(p)
	if err == nil {
		err = k.apply(ctx)
	}
	if err != nil {
		l.log.Error("this node's own pods have no network: the snapshot could not be applied", "err", err)
		if device != nil {
			_ = device.Close()
		}
		return false
	}
	l.log.Warn("this node's own pods are connected as the last membership says; nothing else works yet", "blocks", p.Self.PodCIDRs)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	k.watch(ctx, &wg)
	wg.Go(func() { k.policies.Run(ctx) })
	wg.Go(func() {
		var done pace
		for wait := repairEvery; k.due(ctx, wait, done.next()); done.repaired(time.Now()) {
			wait = repairEvery
			if err := k.apply(ctx); err != nil && ctx.Err() == nil {
				wait = retryEvery
				l.log.Error("could not set kernel state; retrying", "every", wait, "err", err)
			}
			k.flushed(len(k.hostPorts()) > 0)
		}
	})
	l.stop = func() {
		cancel()
		wg.Wait()
		_ = device.Close() // the TUN stays
	}
	return true
}

// plan is what the snapshot says of this node, if nothing says that its key is another member's.
func (l *localPods) plan(listed mesh.PeerID) (plan, error) {
	s, err := snapshot.Load(l.cfg.StateDir)
	if err != nil {
		return plan{}, err
	}
	p, err := mesh.NewPlan(s, l.cfg.NodeName)
	if err != nil {
		return plan{}, err
	}
	if m, ok := ofKey(s, l.id); ok && m.Name != p.Self.Name || listed != "" && listed != p.Self.PeerID {
		return plan{}, fmt.Errorf("%s has another key there", p.Self.Name)
	}
	p.Host.Keep, p.Host.Promisc, p.Host.Forward = l.cfg.CNIMode == config.CNIKeep, l.cfg.CNI.PromiscMode, l.cfg.Forward
	return plan{Plan: p}, nil
}

func (l *localPods) kernel(p plan) (*kernel, *lastingTUN, error) {
	known := make(chan struct{})
	close(known)
	k := &kernel{cni: installer(l.cfg, l.log), log: l.log, force: &inForce{now: p}, canHold: func(host.Capabilities) {}, changed: wake.NewOne(), gone: wake.NewOne(), confirmed: known}
	pods, err := prepareCNI(k.cni, l.cfg.CNIMode)
	if err != nil {
		return k, nil, err
	}
	k.pods, k.policies = pods, newPolicies(l.cfg, pods.DataDir, source.None{}, l.log)
	s, err := snapshot.Load(l.cfg.StateDir)
	if err != nil {
		return k, nil, err
	}
	k.policies.SetOff(s.NetworkPolicy == mesh.PolicyOff || l.cfg.CNIMode == config.CNIKeep) // else those that are saved hold
	device, err := openDevice(l.cfg, l.held, l.portable, p.Host.MTU, l.log)
	if err != nil {
		return k, nil, err
	}
	k.host = host.New(host.Config{StateDir: l.cfg.StateDir, ToTUN: device.toKernel, Log: l.log.With("part", "host")})
	return k, device, nil
}

// end leaves the kernel's state as it is.
func (l *localPods) end() {
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
}

// openPorts opens the ports to the other members and that of the metrics. Where another program has one that nobody has configured,
// another is used until the next start, and a finding says so.
func (d *daemon) openPorts(n nodeConfig) (err error) {
	defer func() {
		if errors.Is(err, unix.EADDRINUSE) {
			err = configError(err)
		}
	}()
	chosen := len(n.cfg.Listen) == 0
	if err = n.cfg.ResolveListen(); err != nil {
		if len(n.cfg.Listen) == 0 {
			return err
		}
		d.degraded("listen", fmt.Sprintf("make room in %s, or set listen", n.cfg.StateDir), "the agent listens on %v until the next start, which chooses another port: %v", n.cfg.Listen[0], err)
	}
	d.node, err = openNode(n)
	if chosen && errors.Is(err, unix.EADDRINUSE) {
		taken := n.cfg.Listen
		if n.cfg.Listen, err = config.AnyListen(); err != nil {
			return err
		}
		if d.node, err = openNode(n); err == nil {
			d.degraded("listen", fmt.Sprintf("stop the other program and restart the agent, or set listen, or remove %s/%s to have another port chosen", n.cfg.StateDir, config.PortFile),
				"another program has %s; until the next start the agent listens on %v", taken[0], n.cfg.Listen[0])
		}
	}
	if err != nil {
		return err
	}
	d.cfg.Listen = n.cfg.Listen
	d.metrics, err = listenMetrics(n.cfg.MetricsAddress)
	if n.cfg.MetricsUnset && errors.Is(err, unix.EADDRINUSE) {
		if d.metrics, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			d.degraded("metricsAddress", "stop the other program and restart the agent, or set metricsAddress",
				"another program has %s; until the next start metrics and probes are at %s", config.DefaultMetricsAddress, d.metrics.Addr())
		}
	}
	return err
}

// degraded notes what the agent does without until the next start.
func (d *daemon) degraded(key, remedy, format string, args ...any) {
	f := findings.Warningf("ports", remedy, format, args...).About(key)
	d.log.Warn("running degraded: "+f.Text, "key", key, "remedy", remedy)
	d.noted = append(d.noted, f)
}
