// Package lantest is a LAN for tests of the package lan: nodes whose services send their
// probes to each other, with kernels that only remember.
package lantest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"edgemesh/agent/lan"
	"edgemesh/agent/lan/decide"
	"edgemesh/internal/membership/mesh"
)

const (
	probePort = 5211
	vxlanSlot = mesh.ProbeSlots - 1
	vxlanName = "vx"
	tunName   = "tun"
)

// Probe is one packet on the LAN.
type Probe struct {
	From, To *Node
	Slot     int
	Answer   bool
	Payload  []byte
	Link     string // on which it comes in
	Hops     int    // its hop limit
}

// LAN carries probes and streams between its nodes without delay. Its services run in the
// caller's testing/synctest bubble.
type LAN struct {
	T *testing.T
	// Pass changes a probe on its way, and says whether it arrives; nil passes all.
	Pass func(p *Probe) bool
	// Forward says whether a forwarded probe arrives, by the interface on which it comes in; nil passes all.
	Forward func(from, to *Node, link string, packet []byte) bool
	// Broken breaks the stream that one node opens to another; nil breaks none.
	Broken func(from *Node, s *Stream)

	mu    sync.Mutex
	nodes []*Node
	away  map[string]bool // nodes to which there is no connection
}

// Node is one node with its service.
type Node struct {
	*lan.Service
	Member mesh.Node
	Kernel *Kernel
	Uplink mesh.Uplink

	lan      *LAN
	gateway  netip.Addr
	receive  func(b []byte, a lan.Arrival)
	caught   chan caught
	closed   chan struct{}
	stop     func()
	mu       sync.Mutex
	suspects []mesh.PeerID
}

// Add adds a node whose service runs until the test ends; SetMembers informs the others.
func (l *LAN) Add() *Node {
	l.T.Helper()
	i := len(l.nodes)
	host := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i) + 1})
	n := &Node{
		lan: l, Kernel: &Kernel{}, closed: make(chan struct{}), caught: make(chan caught, 1000),
		Uplink: mesh.Uplink{Link: "eth0", Addr: host, Bits: 16, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}},
		Member: mesh.Node{Name: fmt.Sprintf("n%d", i), PeerID: mesh.PeerID(fmt.Sprintf("N%d", i)),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244 + byte(i>>8), byte(i), 0}), 24)}},
	}
	n.gateway = mesh.Gateway(n.Member.PodCIDRs[0])
	n.Kernel.SetUplinks(n.Uplink)
	n.Kernel.SetProbeAddrs([2]netip.Addr{mesh.LastAddr(n.Member.PodCIDRs[0]).Prev()})
	s, err := lan.New(lan.Config{
		Config:   decide.Config{Self: n.Member.PeerID, ProbePort: probePort, VXLANName: vxlanName, TUNName: tunName, Inside: []string{"br"}},
		Gateways: [2]netip.Addr{n.gateway}, Kernel: kernel{n.Kernel, n},
		Listen:    func(netip.Addr, uint16) (lan.Socket, error) { return socket{n}, nil },
		Open:      n.open,
		Connected: func(to mesh.PeerID) bool { p := l.find(to); return p != nil && l.connected(n, p) },
		Suspect:   n.suspect,
		Mark:      func(slot int) int { return slot }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		l.T.Fatal(err)
	}
	n.Service = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	l.T.Cleanup(n.stop)
	synctest.Wait() // it knows its uplinks
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = append(l.nodes, n)
	return n
}

// Plan is what n should hold with these members beside it.
func (n *Node) Plan(members ...*Node) mesh.Plan {
	p := mesh.Plan{Self: n.Member}
	for _, m := range members {
		if m != n {
			p.Nodes = append(p.Nodes, m.Member)
		}
	}
	p.Host.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/14")}
	p.Host.LAN = mesh.LAN{Native: true, VXLAN: true, ProbePort: probePort, VXLANPort: mesh.VXLANPort}
	return p
}

// Meet gives all nodes a plan with all others, and traffic to them.
func (l *LAN) Meet(off decide.Off) {
	for _, n := range l.nodes {
		n.SetPlan(n.Plan(l.nodes...), off)
	}
	for _, n := range l.nodes {
		n.UseAll()
	}
}

// UseAll says that packets go to every other node.
func (n *Node) UseAll() {
	for _, m := range n.lan.nodes {
		if m != n {
			n.Used(m.Member.PeerID)
		}
	}
}

// Kind is the path from n to m, "" for the tunnel.
func (n *Node) Kind(m *Node) mesh.PathKind {
	st, _ := n.Status(m.Member.PeerID)
	return st.Kind
}

// Why is what n's status says of the path to m.
func (n *Node) Why(m *Node) string {
	st, _ := n.Status(m.Member.PeerID)
	return st.Reason
}

// Suspects are the members whose path did not answer, as reported to the tunnel.
func (n *Node) Suspects() []mesh.PeerID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.suspects)
}

func (n *Node) suspect(id mesh.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suspects = append(n.suspects, id)
}

// Disconnect takes away all connections to n, and Connect gives them back.
func (l *LAN) Disconnect(n *Node) { l.setAway(n, true) }

// Connect gives n its connections back.
func (l *LAN) Connect(n *Node) { l.setAway(n, false) }

func (l *LAN) setAway(n *Node, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		l.away = map[string]bool{}
	}
	l.away[n.Member.Name] = away
}

func (l *LAN) connected(a, b *Node) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.away[a.Member.Name] && !l.away[b.Member.Name]
}

func (l *LAN) find(id mesh.PeerID) *Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		if n.Member.PeerID == id {
			return n
		}
	}
	return nil
}

func (n *Node) open(_ context.Context, to mesh.PeerID) (lan.Stream, error) {
	peer := n.lan.find(to)
	if peer == nil || !n.lan.connected(n, peer) {
		return nil, errors.New("no connection")
	}
	mine, theirs := NewStream()
	if n.lan.Broken != nil {
		n.lan.Broken(n, mine)
	}
	go func() { _ = peer.Answer(n.Member.PeerID, theirs) }()
	return mine, nil
}

// socket is a node's lan.Socket.
type socket struct{ n *Node }

func (s socket) Port() uint16 { return probePort }
func (s socket) Renamed()     {}
func (s socket) Close()       { close(s.n.closed) }

func (s socket) Run(f func(b []byte, a lan.Arrival)) {
	s.n.mu.Lock()
	s.n.receive = f
	s.n.mu.Unlock()
	<-s.n.closed
}

// Send checks what holds for every probe and answer: the kernel held its path before.
func (s socket) Send(slot, hops int, to netip.AddrPort, b []byte) error {
	l, paths := s.n.lan, s.n.Kernel.Paths()
	if !slices.ContainsFunc(paths.Probes, func(p mesh.ProbeRoute) bool { return p.Slot == slot && p.Target == to.Addr() }) {
		l.T.Errorf("%s: a probe to %s leaves, and the kernel has no route for it", s.n.Member.Name, to)
	}
	p := &Probe{From: s.n, Slot: slot, Answer: b[4] == 2, Payload: b, Link: "eth0", Hops: hops}
	if slot == vxlanSlot {
		p.Link = vxlanName
	}
	l.mu.Lock()
	for _, n := range l.nodes {
		if n.gateway == to.Addr() {
			p.To = n
		}
	}
	pass := l.Pass
	l.mu.Unlock()
	if p.To == nil {
		return nil
	}
	if p.Answer && !slices.ContainsFunc(paths.Senders, func(x mesh.Sender) bool { return x.Pods && x.Block.Contains(to.Addr()) }) {
		l.T.Errorf("%s answers %s, and the kernel does not let it in", s.n.Member.Name, p.To.Member.Name)
	}
	if pass == nil || pass(p) {
		p.To.Receive(p.Payload, lan.Arrival{From: s.n.gateway, Link: p.Link, Hops: p.Hops})
	}
	return nil
}

// caught is a forwarded probe that arrived.
type caught struct {
	packet []byte
	link   string
}

// kernel is a node's lan.Kernel.
type kernel struct {
	*Kernel
	n *Node
}

// TakeForwarded implements lan.Kernel.
func (k kernel) TakeForwarded(f func(b []byte, link string)) {
	for {
		select {
		case k := <-k.n.caught:
			f(k.packet, k.link)
		default:
			return
		}
	}
}

// SendForwarded implements lan.Kernel.
func (k kernel) SendForwarded(packets [][]byte) error {
	for _, b := range packets {
		k.n.forward(b)
	}
	return nil
}

// Leads is where the kernel sends a forwarded probe: by the route for these, that of pods, or the tunnel.
func (n *Node) Leads(dst netip.Addr) string {
	paths, link := n.Kernel.Paths(), tunName
	links := map[mesh.PathKind]string{mesh.Native: "eth0", mesh.VXLAN: vxlanName, "": tunName}
	for _, r := range paths.Routes {
		if r.Block.Contains(dst) {
			link = links[r.Kind]
		}
	}
	for _, r := range paths.Probes {
		if r.Slot == mesh.ProbeSlots && r.Target == dst {
			link = links[r.Kind]
		}
	}
	return link
}

func (n *Node) forward(b []byte) {
	dst, _ := netip.AddrFromSlice(b[16:20])
	src, _ := netip.AddrFromSlice(b[12:16])
	l, link := n.lan, n.Leads(dst)
	l.mu.Lock()
	forward, to := l.Forward, (*Node)(nil)
	for _, m := range l.nodes {
		if m.Member.PodCIDRs[0].Contains(dst) {
			to = m
		}
	}
	l.mu.Unlock()
	if to == nil || !slices.Contains(to.Kernel.Paths().Probers, src) || forward != nil && !forward(n, to, link, b) {
		return
	}
	to.Catch(b, link)
}

// Catch has a packet come in for n's probe address.
func (n *Node) Catch(b []byte, link string) {
	select {
	case n.caught <- caught{b, link}:
	default:
	}
}

// Receive has a packet come in.
func (n *Node) Receive(b []byte, a lan.Arrival) {
	n.mu.Lock()
	f := n.receive
	n.mu.Unlock()
	if f != nil {
		f(b, a)
	}
}

// Gateway is n's address among its pods.
func (n *Node) Gateway() netip.Addr { return n.gateway }
