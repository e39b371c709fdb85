package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/lan"
	"edgemesh/agent/lan/decide"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// probePort is where probes of native and VXLAN paths come in; another one is
	// taken where it is in use.
	probePort = 5211
	// uplinkDebounce is how long changes of links and addresses are gathered.
	uplinkDebounce = 200 * time.Millisecond
	// uplinksEvery is how often links and addresses are looked at without an event.
	uplinksEvery = 30 * time.Second
)

// lanConfig is what the search for LAN paths needs of the agent.
type lanConfig struct {
	self     mesh.PeerID
	lan      config.LAN
	standsBy func() bool // another machine has this node's key and keeps its traffic
	keep     bool        // another plugin has the pods: no LAN paths, for good
	host     *host.Host
	peers    lanPeers
	log      *slog.Logger
}

// lanPaths joins the search for native and VXLAN paths to the rest of the agent. When the
// node gets other blocks, another service takes over.
type lanPaths struct {
	lanConfig

	mu       sync.Mutex // locked after membership's and kernel's, before the service's own
	outer    outerVersion
	gateways [2]netip.Addr
	plan     mesh.Plan         // that the service has
	can      host.Capabilities // of the last Set
	service  *lan.Service      // nil when this node takes no part at all
	failed   string            // why there is none
	ctx      context.Context   //nolint:containedctx // of run; nil before
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// newLANPaths opens the sockets for probes where the configuration wants paths.
func newLANPaths(c lanConfig) *lanPaths {
	l := &lanPaths{lanConfig: c}
	l.mu.Lock()
	defer l.mu.Unlock()
	if uplinks, err := l.host.Uplinks(); err == nil {
		l.outer.choose(uplinks, time.Now())
	}
	l.open(gatewaysOf(l.peers.plan()))
	return l
}

// gatewaysOf are this node's addresses among its pods, IPv4 and IPv6.
func gatewaysOf(p mesh.Plan) (out [2]netip.Addr) {
	for v := range out {
		if blocks := mesh.OfVersion(p.Self.PodCIDRs, v == 1); len(blocks) > 0 {
			out[v] = mesh.Gateway(blocks[0])
		}
	}
	return out
}

// open opens a service for the gateways. The caller holds mu.
func (l *lanPaths) open(gateways [2]netip.Addr) {
	l.gateways, l.service, l.failed = gateways, nil, ""
	if l.keep {
		return // for good
	}
	c := lan.Config{
		Config:   decide.Config{Self: l.self, ProbePort: probePort, VXLANName: host.VXLANName, TUNName: host.TUNName, Inside: []string{host.BridgeName, host.TUNName}},
		Gateways: gateways, Listen: lan.Listen, Kernel: l.host, Mark: host.SlotMark, Log: l.log,
		Open: l.peers.openStream, Connected: l.peers.connected, Suspect: l.peers.suspect,
	}
	s, err := lan.New(c)
	if err != nil && gateways[0].IsValid() && gateways[1].IsValid() { // a host without IPv6
		l.log.Debug("no probes for IPv6", "err", err)
		c.Gateways[1] = netip.Addr{}
		s, err = lan.New(c)
	}
	if err != nil {
		l.failed = err.Error()
		l.log.Warn("no native or vxlan paths; the tunnel carries everything", "err", err)
		return
	}
	l.service = s
}

// off says why this node takes no part in native and in VXLAN paths, whatever the
// kernel can do; "" when it does.
func (l *lanPaths) off(p mesh.Plan) (noNative, noVXLAN string) {
	both := ""
	switch {
	case l.standsBy():
		both = "another machine has this node's key and keeps its traffic"
	case p.Encrypted:
		both = "encryption: always"
	case l.keep:
		both = "cniMode: keep"
	case l.failed != "":
		both = l.failed
	}
	if both != "" {
		return both, both
	}
	if !l.lan.Native {
		noNative = "lan.native is false"
	}
	if !l.lan.VXLAN {
		noVXLAN = "lan.vxlan is false"
	}
	return noNative, noVXLAN
}

// complete adds this node's part in native and VXLAN paths to a plan. Other gateways get
// another service first: its port is part of the plan.
func (l *lanPaths) complete(p mesh.Plan) mesh.Plan {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := gatewaysOf(p); l.service != nil && g != l.gateways {
		l.log.Info("this node's gateways changed; LAN paths are searched again")
		l.end()
		l.open(g)
		l.begin()
	}
	noNative, noVXLAN := l.off(p)
	p.Host.LAN = mesh.LAN{}
	if l.service == nil || noNative != "" && noVXLAN != "" {
		return p
	}
	p.Host.LAN = mesh.LAN{
		Native: noNative == "", VXLAN: noVXLAN == "", ProbePort: l.service.ProbePort(),
		VXLANPort: uint16(l.lan.VXLANPort), IPv6Underlay: l.outer.v6, MAC: mesh.VTEPAddr(p.Self.PeerID), Bits: p.BlockBits(),
	}
	return p
}

// setPlan brings a plan that complete has made into force.
func (l *lanPaths) setPlan(p mesh.Plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inform(p)
}

// setCapabilities notes what the kernel can hold, and informs the service of a change. It is called after a repair, so that what other
// programs changed may stop forwarded packets.
func (l *lanPaths) setCapabilities(can host.Capabilities) {
	l.mu.Lock()
	defer l.mu.Unlock()
	other := can.NoNative != l.can.NoNative || can.NoVXLAN != l.can.NoVXLAN
	l.can = can
	if other && l.ctx != nil {
		l.inform(l.plan)
	}
	if l.service != nil {
		l.service.Recheck()
	}
}

// inform gives the service a plan and the reasons to take no part. The caller holds mu.
func (l *lanPaths) inform(p mesh.Plan) {
	l.plan = p
	if l.service == nil {
		return
	}
	noNative, noVXLAN := l.off(p)
	l.service.SetPlan(p, decide.Off{Native: cmp.Or(noNative, l.can.NoNative), VXLAN: cmp.Or(noVXLAN, l.can.NoVXLAN)})
}

// check is doctor's finding, if there is one. The host's own check reports what the kernel
// cannot hold.
func (l *lanPaths) check() []findings.Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == "" {
		return nil
	}
	return []findings.Finding{findings.Warningf("lan", "fix the cause and restart the agent; until then the tunnel carries everything", "no native or vxlan paths: %s", l.failed)}
}

// notes say in plain words what the LAN paths in use do not give, and which ones there may not be because the membership
// trusts no network with both ends.
func (l *lanPaths) notes() (out []findings.Finding) {
	var plain, left, global, cut []string
	var missing, on []netip.Prefix
	for m := range l.peers.plan().Members() {
		st, _ := l.status(m.PeerID)
		if st.Kind != "" {
			plain = append(plain, m.Name)
		}
		if len(st.Cut) > 0 {
			by := cmp.Or(st.Answers, "a rule for forwarded packets of one of the two, or forwarding that is off")
			cut = append(cut, fmt.Sprintf("%s (%s, by %s)", m.Name, wording.List(st.Cut), by))
		}
		if n := st.Global; n.On.IsValid() {
			global = append(global, m.Name)
			if !slices.Contains(on, n.On) && len(on) < mostNamed {
				on = append(on, n.On)
			}
		}
		if p, ok := common(st.Untrusted); ok {
			left = append(left, m.Name)
			if !slices.Contains(missing, p) && len(missing) < mostNamed {
				missing = append(missing, p)
			}
		}
	}
	if len(cut) > 0 {
		out = append(out, findings.Brokenf("lan-forward", "on both nodes accept packets from and to the pod ranges before the rule that drops them, and switch forwarding on", "packets of pods are dropped between two hosts that reach each other, and no other path passes them: to %s",
			wording.Most(cut, mostNamed)))
	}
	if len(plain) > 0 {
		out = append(out, findings.Notef("plaintext", "packets from and to %s take native or vxlan paths, which are neither encrypted nor authenticated: whoever is on that LAN can read and forge them",
			wording.Most(plain, mostNamed)))
	}
	if len(left) > 0 {
		f := findings.Notef("lan-trusted", "no vxlan to %s, whose packets take the tunnel: across routers, and where something on the link puts its own MAC into packets (a repeater, a cloud's subnet), it needs an entry of lan.trusted; releases up to 0.2 needed none", wording.Most(left, mostNamed))
		f.Remedy = fmt.Sprintf("nothing; or, if nobody on the way reads or forges packets, add to the membership lan: {trusted: %v} (cluster.yaml; spec.lan.trusted of PodNetwork cluster; podNetwork.lan.trusted of the chart)", missing)
		out = append(out, f)
	}
	if len(global) > 0 {
		f := findings.Notef("lan-global", "packets to %s take the tunnel: it seems to be on one link with this node, but by global IPv6 addresses alone", wording.Most(global, mostNamed))
		f.Remedy = fmt.Sprintf("nothing; or add a ULA to these nodes; or, if nobody on that link reads or forges packets, add to the membership lan: {trusted: %v} (cluster.yaml; spec.lan.trusted of PodNetwork cluster; podNetwork.lan.trusted of the chart)", on)
		out = append(out, f)
	}
	return out
}

// mostNamed is how many names a note has.
const mostNamed = 3

// common is the smallest private prefix with both addresses; there is none if no private range has both.
func common(of [2]netip.Addr) (netip.Prefix, bool) {
	a, b := of[0], of[1]
	if !a.IsValid() || a.BitLen() != b.BitLen() {
		return netip.Prefix{}, false
	}
	for bits := a.BitLen(); bits > 0; bits-- {
		if p, err := a.Prefix(bits); err == nil && p.Contains(b) {
			return p, mesh.Trust{Trusted: []netip.Prefix{p}}.Check() == nil
		}
	}
	return netip.Prefix{}, false
}

// join serves members' offers. Where probes have come back from, members may be dialed.
func (l *lanPaths) join(n *p2p.Node) {
	n.SetProved(l.proved)
	n.SetStreamHandler(identity.LANProtocol, func(id peer.ID, s *paths.Stream) {
		service := l.current()
		if service == nil {
			s.Reset()
			return
		}
		if err := service.Answer(mesh.PeerID(id.String()), s); err != nil {
			l.log.Debug("offer of LAN addresses refused", "peer", id, "err", err)
		}
	})
}

// run probes until ctx ends. replan is called when this node's part in the plan changes.
func (l *lanPaths) run(ctx context.Context, replan func(context.Context)) {
	l.mu.Lock()
	p := l.peers.plan() // not before mu is held: setPlan may bring a newer one
	l.ctx = ctx
	l.begin()
	l.inform(p)
	l.mu.Unlock()

	changed := wake.NewOne()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-changed:
				l.uplinksChanged(ctx, replan)
				wake.Sleep(ctx, uplinkDebounce) // a change brings many messages
			case <-time.After(uplinksEvery):
				l.uplinksChanged(ctx, replan)
			}
		}
	})
	if err := l.host.WatchUplinks(ctx, changed.Wake); err != nil {
		l.log.Warn("no kernel events for uplinks; checking them every "+uplinksEvery.String(), "err", err)
	}
	<-ctx.Done()
	wg.Wait()
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
}

func (l *lanPaths) uplinksChanged(ctx context.Context, replan func(context.Context)) {
	service := l.current()
	if service == nil {
		return
	}
	uplinks := service.UplinksChanged()
	l.mu.Lock()
	other := l.outer.choose(uplinks, time.Now())
	v6 := l.outer.v6
	l.mu.Unlock()
	if other {
		l.log.Info("VXLAN uses addresses of the other IP version, which came up later", "IPv6", v6)
		replan(ctx)
	}
}

// current is the service, nil where there is none.
func (l *lanPaths) current() *lan.Service {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.service
}

// begin runs the service in the background. The caller holds mu.
func (l *lanPaths) begin() {
	if l.service == nil || l.ctx == nil {
		return
	}
	ctx, stop := context.WithCancel(l.ctx)
	service := l.service
	l.stop = stop
	l.running.Go(func() { service.Run(ctx) })
}

// end stops the service and waits for it. The caller holds mu.
func (l *lanPaths) end() {
	if l.stop != nil {
		l.stop()
		l.running.Wait()
		l.stop = nil
	}
	l.service = nil
}

// close releases what newLANPaths opened, if run was never called.
func (l *lanPaths) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.service != nil {
		l.service.Close()
		l.service = nil
	}
}

// used says that the tunnel has a connection to a peer.
func (l *lanPaths) used(id peer.ID) {
	if service := l.current(); service != nil {
		service.Used(mesh.PeerID(id.String()))
	}
}

// proved returns the addresses from which a member's probes have come back.
func (l *lanPaths) proved(id peer.ID) []netip.Addr {
	st, _ := l.status(mesh.PeerID(id.String()))
	return st.Proved
}

// status is what the service says of a member.
func (l *lanPaths) status(id mesh.PeerID) (decide.Status, bool) {
	service := l.current()
	if service == nil {
		return decide.Status{}, false
	}
	return service.Status(id)
}

// received is how many bytes have come in past the tunnel, by kind of path.
func (l *lanPaths) received() map[mesh.PathKind]uint64 {
	if service := l.current(); service != nil {
		return service.Received()
	}
	return nil
}

// gateway is a member's address among its pods, if a native or VXLAN path leads
// there.
func (l *lanPaths) gateway(m mesh.Node) netip.Addr {
	st, _ := l.status(m.PeerID)
	if st.Kind == "" {
		return netip.Addr{}
	}
	l.mu.Lock()
	gateways := l.gateways
	l.mu.Unlock()
	for v, own := range gateways {
		if blocks := mesh.OfVersion(m.PodCIDRs, v == 1); own.IsValid() && len(blocks) > 0 {
			return mesh.Gateway(blocks[0])
		}
	}
	return netip.Addr{}
}

// lanPeers reaches members for the LAN service, over the tunnel's connections.
type lanPeers struct {
	node *p2p.Node
	plan func() mesh.Plan // the one in force
}

func (l lanPeers) openStream(ctx context.Context, to mesh.PeerID) (lan.Stream, error) {
	s, err := l.node.OpenStream(ctx, admit.ID(to), identity.LANProtocol)
	if err != nil {
		return nil, err // not a typed nil in the interface
	}
	return s, nil
}

// suspect probes the tunnel's path immediately: the LAN path does not answer.
func (l lanPeers) suspect(to mesh.PeerID) { l.node.Suspect(admit.ID(to)) }

func (l lanPeers) connected(to mesh.PeerID) bool {
	p, _ := l.node.PeerStatus(admit.ID(to))
	return p.Path.Kind != paths.KindNone
}

// underlayDebounce is how long after a node's first private address another one may still
// decide which IP version VXLAN's outer packets have: while a host boots, IPv6
// addresses come by advertisements before IPv4's do by DHCP.
const underlayDebounce = time.Minute

// outerVersion is the IP version of VXLAN's outer packets.
type outerVersion struct {
	v6    bool
	first time.Time // when there were private addresses for the first time
}

// choose decides on it: IPv6 if there is nothing else. It reports whether the decision has
// changed; an uplink that comes up late, such as a modem, does not change it.
func (o *outerVersion) choose(uplinks []mesh.Uplink, now time.Time) bool {
	uplinks = slices.DeleteFunc(slices.Clone(uplinks), func(u mesh.Uplink) bool { return !mesh.PrivateUnderlay(u.Addr) })
	if len(uplinks) == 0 {
		return false
	}
	before := o.v6
	only6 := !slices.ContainsFunc(uplinks, func(u mesh.Uplink) bool { return u.Addr.Is4() })
	switch {
	case o.first.IsZero():
		o.first, o.v6 = now, only6
	case now.Sub(o.first) < underlayDebounce:
		o.v6 = o.v6 && only6
	}
	return o.v6 != before
}
