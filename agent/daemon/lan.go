package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/agent/lan"
	"edgemesh/agent/lan/decide"
	"edgemesh/agent/mesh"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/identity"
)

const (
	// probePort is where probes of native and VXLAN paths come in; another one is
	// taken where it is in use.
	probePort = 5211
	// uplinkSettle is how long changes of links and addresses are gathered.
	uplinkSettle = 200 * time.Millisecond
	// underlaySettle is how long after a node's first private address another one may still
	// decide which IP version VXLAN's outer packets have: while a host boots, IPv6
	// addresses come by advertisements before IPv4's do by DHCP.
	underlaySettle = time.Minute
)

// lanPaths joins the search for native and VXLAN paths to the rest of the agent.
// The service is made anew when the node gets other blocks.
type lanPaths struct {
	d   *daemon
	log *slog.Logger

	mu       sync.Mutex
	v6       bool      // VXLAN's outer packets are IPv6
	first    time.Time // when there were private addresses for the first time
	gateways [2]netip.Addr
	plan     mesh.Plan         // as the service was told last
	can      host.Capabilities // of the last Set
	service  *lan.Service      // nil when this node takes no part at all
	failed   string            // why there is none
	ctx      context.Context   //nolint:containedctx // of run; nil before
	stop     context.CancelFunc
	done     chan struct{}
}

// newLANPaths opens the sockets for probes where the configuration wants paths.
func newLANPaths(d *daemon) *lanPaths {
	l := &lanPaths{d: d, log: d.log.With("part", "lan")}
	l.mu.Lock()
	defer l.mu.Unlock()
	if uplinks, err := d.host.Uplinks(); err == nil {
		l.chooseUnderlay(uplinks, time.Now())
	}
	l.make(gatewaysOf(d.plan))
	return l
}

// chooseUnderlay decides on the IP version of VXLAN's outer packets: IPv6 where there is
// nothing else. It reports whether the decision is another one now; what comes up late, a
// modem say, changes nothing. The caller holds mu.
func (l *lanPaths) chooseUnderlay(uplinks []mesh.Uplink, now time.Time) bool {
	if len(uplinks) == 0 {
		return false
	}
	before := l.v6
	only6 := !slices.ContainsFunc(uplinks, func(u mesh.Uplink) bool { return u.Addr.Is4() })
	switch {
	case l.first.IsZero():
		l.first, l.v6 = now, only6
	case now.Sub(l.first) < underlaySettle:
		l.v6 = l.v6 && only6
	}
	return l.v6 != before
}

// gatewaysOf are this node's addresses among its pods, IPv4 and IPv6.
func gatewaysOf(p mesh.Plan) (out [2]netip.Addr) {
	for i := len(p.Self.PodCIDRs) - 1; i >= 0; i-- {
		b := p.Self.PodCIDRs[i]
		v := 0
		if b.Addr().Is6() {
			v = 1
		}
		out[v] = mesh.Gateway(b)
	}
	return out
}

// make opens a service for the gateways. The caller holds mu.
func (l *lanPaths) make(gateways [2]netip.Addr) {
	l.gateways, l.service, l.failed = gateways, nil, ""
	if why, _ := l.off(l.d.plan); why != "" && l.d.cfg.CNIMode == config.CNIKeep {
		return // for good
	}
	c := lan.Config{
		Self: mesh.PeerID(l.d.id.String()), Gateways: gateways, ProbePort: probePort, Listen: lan.Listen, Kernel: l.d.host,
		Open: l.open, Connected: l.connected, Suspect: l.failing, Mark: host.SlotMark, VXLANName: host.VXLANName, Inside: []string{host.BridgeName, host.TUNName}, Log: l.log,
	}
	s, err := lan.New(c)
	if err != nil && gateways[0].IsValid() && gateways[1].IsValid() { // a host without IPv6
		l.log.Debug("no probes for IPv6", "err", err)
		c.Gateways[1] = netip.Addr{}
		s, err = lan.New(c)
	}
	if err != nil {
		l.failed = err.Error()
		l.log.Warn("no native or vxlan paths", "err", err)
		return
	}
	l.service = s
}

// off says why this node takes no part in native and in VXLAN paths, whatever the
// kernel can do; "" when it does.
func (l *lanPaths) off(p mesh.Plan) (noNative, noVXLAN string) {
	both := ""
	switch {
	case p.Encrypted:
		both = "encryption: always"
	case l.d.cfg.CNIMode == config.CNIKeep:
		both = "cniMode: keep"
	case l.failed != "":
		both = l.failed
	}
	if both != "" {
		return both, both
	}
	if !l.d.cfg.LAN.Native {
		noNative = "lan.native is false"
	}
	if !l.d.cfg.LAN.VXLAN {
		noVXLAN = "lan.vxlan is false"
	}
	return noNative, noVXLAN
}

// complete adds this node's part in native and VXLAN paths to a plan.
func (l *lanPaths) complete(p mesh.Plan) mesh.Plan {
	l.mu.Lock()
	defer l.mu.Unlock()
	noNative, noVXLAN := l.off(p)
	p.Host.LAN = mesh.LAN{}
	if l.service == nil || noNative != "" && noVXLAN != "" {
		return p
	}
	p.Host.LAN = mesh.LAN{
		Native: noNative == "", VXLAN: noVXLAN == "", ProbePort: l.service.ProbePort(),
		VXLANPort: l.d.cfg.LAN.VXLANPort, IPv6Underlay: l.v6, MAC: mesh.VTEPAddr(p.Self.PeerID), Bits: p.BlockBits(),
	}
	return p
}

// setPlan takes a plan into force; it comes from complete.
func (l *lanPaths) setPlan(p mesh.Plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.service == nil {
		return
	}
	if g := gatewaysOf(p); g != l.gateways {
		l.log.Info("other gateways: LAN paths are found anew")
		l.end()
		l.make(g)
		l.begin()
	}
	l.tell(p)
}

// setCapabilities notes what the kernel can hold, and tells the service where that changed.
func (l *lanPaths) setCapabilities(can host.Capabilities) {
	l.mu.Lock()
	defer l.mu.Unlock()
	other := can.NoNative != l.can.NoNative || can.NoVXLAN != l.can.NoVXLAN
	l.can = can
	if other && l.ctx != nil {
		l.tell(l.plan)
	}
}

// tell gives the service a plan and the reasons to take no part. The caller holds
// mu.
func (l *lanPaths) tell(p mesh.Plan) {
	l.plan = p
	if l.service == nil {
		return
	}
	noNative, noVXLAN := l.off(p)
	l.service.SetPlan(p, decide.Off{Native: cmp.Or(noNative, l.can.NoNative), VXLAN: cmp.Or(noVXLAN, l.can.NoVXLAN)})
}

// check is doctor's finding, where there is something to find. What the kernel cannot
// hold, the host's own check tells.
func (l *lanPaths) check() []control.Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == "" {
		return nil
	}
	return []control.Finding{control.Warningf("lan", "the tunnel carries everything; mend the cause and restart the agent", "no native or vxlan paths: %s", l.failed)}
}

// join serves members' offers.
func (l *lanPaths) join(n *p2p.Node) {
	n.SetStreamHandler(identity.LANProtocol, func(id peer.ID, s *p2p.Stream) {
		l.mu.Lock()
		service := l.service
		l.mu.Unlock()
		if service == nil {
			s.Reset()
			return
		}
		if err := service.Answer(mesh.PeerID(id.String()), s); err != nil {
			l.log.Debug("offer of LAN addresses refused", "peer", id, "err", err)
		}
	})
}

// run probes until ctx ends.
func (l *lanPaths) run(ctx context.Context) {
	plan, _ := l.d.current()
	l.mu.Lock()
	l.ctx = ctx
	l.begin()
	l.tell(plan)
	l.mu.Unlock()

	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-changed:
				l.uplinksChanged(ctx)
				select { // a change brings many messages
				case <-ctx.Done():
				case <-time.After(uplinkSettle):
				}
			case <-time.After(repairEvery):
				l.uplinksChanged(ctx)
			}
		}
	})
	if err := l.d.host.WatchUplinks(ctx, func() { signal(changed) }); err != nil {
		l.log.Warn("the kernel does not tell of changed uplinks; they are looked for", "every", repairEvery, "err", err)
	}
	<-ctx.Done()
	wg.Wait()
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
}

func (l *lanPaths) uplinksChanged(ctx context.Context) {
	l.mu.Lock()
	service := l.service
	l.mu.Unlock()
	if service == nil {
		return
	}
	l.mu.Lock()
	other := l.chooseUnderlay(service.UplinksChanged(), time.Now())
	v6 := l.v6
	l.mu.Unlock()
	if other {
		l.log.Info("other addresses came up: VXLAN takes them", "IPv6", v6)
		l.d.replan(ctx)
	}
}

// begin runs the service in the background. The caller holds mu.
func (l *lanPaths) begin() {
	if l.service == nil || l.ctx == nil {
		return
	}
	ctx, stop := context.WithCancel(l.ctx)
	done, service := make(chan struct{}), l.service
	l.stop, l.done = stop, done
	go func() {
		defer close(done)
		service.Run(ctx)
	}()
}

// end stops the service and waits for it. The caller holds mu.
func (l *lanPaths) end() {
	if l.stop != nil {
		l.stop()
		<-l.done
		l.stop = nil
	}
	l.service = nil
}

// close frees what newLANPaths took, where run was never called.
func (l *lanPaths) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.service != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		l.service.Run(ctx)
		l.service = nil
	}
}

// used says that the tunnel has a connection to a peer.
func (l *lanPaths) used(id peer.ID) {
	l.mu.Lock()
	service := l.service
	l.mu.Unlock()
	if service != nil {
		service.Used(mesh.PeerID(id.String()))
	}
}

// rawID is a member's peer ID as connections have it, "" for one that has left.
func (l *lanPaths) rawID(id mesh.PeerID) peer.ID {
	plan, _ := l.d.current()
	return peer.ID(plan.IDs[id])
}

func (l *lanPaths) open(ctx context.Context, to mesh.PeerID) (lan.Stream, error) {
	s, err := l.d.node.OpenStream(ctx, l.rawID(to), identity.LANProtocol)
	if err != nil {
		return nil, err // not a typed nil in the interface
	}
	return s, nil
}

func (l *lanPaths) failing(to mesh.PeerID) {
	l.d.node.Doubt(l.rawID(to))
}

func (l *lanPaths) connected(to mesh.PeerID) bool {
	p, _ := l.d.node.PeerStatus(l.rawID(to))
	return p.Path.Kind != p2p.KindNone
}

// status is what the service says of a member.
func (l *lanPaths) status(id mesh.PeerID) (decide.Status, bool) {
	l.mu.Lock()
	service := l.service
	l.mu.Unlock()
	if service == nil {
		return decide.Status{}, false
	}
	return service.Status(id)
}

// describe lets a native or VXLAN path stand before the tunnel's in a member's
// status, and adds why there is none.
func (l *lanPaths) describe(m mesh.Node, s control.PeerStatus) control.PeerStatus {
	st, ok := l.status(m.PeerID)
	if !ok {
		return s
	}
	if st.Kind == "" {
		if s.Path != pathIdle && st.Reason != "" {
			s.Reason = joinReasons(s.Reason, st.Reason)
		}
		return s
	}
	s.Path, s.Transport, s.Reason = string(st.Kind), string(st.Kind), st.Reason
	if st.Kind == mesh.Native {
		s.Transport = "ip"
	}
	s.Since, s.RTTMs, s.Relay = &st.Since, nil, ""
	if st.RTT > 0 {
		s.RTTMs = millis(st.RTT)
	}
	return s
}

func joinReasons(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// gateway is a member's address among its pods, if a native or VXLAN path leads
// there.
func (l *lanPaths) gateway(m mesh.Node) netip.Addr {
	st, _ := l.status(m.PeerID)
	if st.Kind == "" {
		return netip.Addr{}
	}
	for v, own := range l.ownGateways() {
		for _, b := range m.PodCIDRs {
			if own.IsValid() && b.Addr().Is6() == (v == 1) {
				return mesh.Gateway(b)
			}
		}
	}
	return netip.Addr{}
}

func (l *lanPaths) ownGateways() [2]netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gateways
}
