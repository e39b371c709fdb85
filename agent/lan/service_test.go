package lan

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// countingKernel counts how often it is given paths, and keeps the last ones.
type countingKernel struct {
	uplinks []mesh.Uplink
	doubt   bool
	sets    int
	paths   mesh.Paths
	during  func() // called meanwhile, if not nil
}

func (k *countingKernel) SetPaths(_ context.Context, p mesh.Paths) error {
	k.sets++
	k.doubt, k.paths = false, p
	if k.during != nil {
		k.during()
	}
	return nil
}

func (k *countingKernel) PathsInDoubt() bool                      { return k.doubt }
func (k *countingKernel) Uplinks() ([]mesh.Uplink, error)         { return k.uplinks, nil }
func (k *countingKernel) Traffic() (map[mesh.Inlet]uint64, error) { return nil, nil }

// letIn counts the blocks of which pods' packets may come in.
func letIn(p mesh.Paths) int {
	n := 0
	for _, s := range p.Senders {
		if s.Pods {
			n++
		}
	}
	return n
}

// newService is a service whose Run is not called.
func newService(t *testing.T, k Kernel) *Service {
	t.Helper()
	s, err := New(Config{
		Self: "self", Gateways: [2]netip.Addr{netip.MustParseAddr("127.0.0.1")}, Kernel: k,
		Open:      func(context.Context, mesh.PeerID) (Stream, error) { return nil, context.Canceled },
		Connected: func(mesh.PeerID) bool { return true },
		Failing:   func(mesh.PeerID) {}, Mark: func(int) int { return 0 }, VXLANName: "vx", Inside: []string{"br"}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// TestUplinksAsBeforeInDoubt: an uplink was away so shortly that the same addresses are
// found again. The kernel is given its paths again, and only then.
func TestUplinksAsBeforeInDoubt(t *testing.T) {
	k := &countingKernel{uplinks: []mesh.Uplink{{Link: "eth0", Addr: netip.MustParseAddr("192.168.1.2"), Bits: 24, MTU: 1500}}}
	s := newService(t, k)
	s.UplinksChanged()
	before := k.sets
	s.UplinksChanged()
	if k.sets != before {
		t.Errorf("paths were set %d times more though nothing has changed", k.sets-before)
	}
	k.doubt = true
	s.UplinksChanged()
	if k.sets != before+1 {
		t.Errorf("paths in doubt were set %d times, want once", k.sets-before)
	}
}

// withPeers gives a service that many members, with whom offers are exchanged: each has a
// native way on eth0, whose number is 7.
func withPeers(t *testing.T, s *Service, n int) []*peer {
	t.Helper()
	s.cfg.Kernel.(*countingKernel).uplinks = []mesh.Uplink{{Link: "eth0", Addr: netip.MustParseAddr("10.1.0.1"), Bits: 16, MTU: 1500, MAC: MAC{2, 0, 0, 0, 0, 1}}}
	s.UplinksChanged()
	plan := mesh.Plan{Self: mesh.Node{Name: "self", PeerID: "self", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}}
	plan.Host.LAN = mesh.LAN{Native: true, ProbePort: s.ProbePort()}
	for i := range n {
		plan.Members = append(plan.Members, mesh.Node{
			Name: fmt.Sprint("m", i), PeerID: mesh.PeerID(fmt.Sprint("M", i)),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245 + byte(i>>8), byte(i), 0}), 24)},
		})
	}
	s.SetPlan(plan, "", "lan.vxlan is false")
	var out []*peer
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[7] = "eth0"
	for i, m := range plan.Members {
		p := s.peer(m.PeerID)
		us, them := s.ownOffer(0), goodOffer(Address{netip.AddrFrom4([4]byte{10, 1, byte(1 + i>>8), byte(i)}), 16, 1500, MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}})
		s.begin(p, us, them, 0, true)
		out = append(out, p)
	}
	s.tell()
	return out
}

// hear has a peer's probe come in.
func hear(s *Service, p *peer, typ byte, seq uint64) {
	b := message{typ: typ, session: p.sess.id, seq: seq}.seal(p.sess.in, payload(1500, false))
	s.receive(b, arrival{from: p.gateways[0], link: 7})
}

// TestThousandPeersAtOnce: a thousand members find this node at the same time. The kernel is
// told of what all of them change at once, or it would be busy with it for half a minute and
// those in use would be lost meanwhile.
func TestThousandPeersAtOnce(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	s.sockets[0].close() // nothing is sent
	peers := withPeers(t, s, 1000)
	s.sockets[0] = nil
	s.tick()
	before := k.sets
	for _, p := range peers {
		hear(s, p, typeRequest, 1)
	}
	s.takeIn()
	if k.sets != before+1 || letIn(k.paths) != len(peers) {
		t.Errorf("requests: the kernel is told %d times of %d that are let in; want once, of %d", k.sets-before, letIn(k.paths), len(peers))
	}
	before = k.sets
	for range 2 * proveGood { // one of four probes is small
		s.mu.Lock()
		for _, p := range peers {
			p.tracks[native4].next = time.Time{}
		}
		s.mu.Unlock()
		s.tick()
		for _, p := range peers {
			hear(s, p, typeAnswer, p.tracks[native4].sent)
		}
		s.takeIn()
	}
	if k.sets > before+1 || len(k.paths.Routes) != len(peers) {
		t.Errorf("answers: the kernel is told %d times of %d paths; want once, of %d", k.sets-before, len(k.paths.Routes), len(peers))
	}
}

// TestAnswerComesAfterTheKernel: who sees an answer may send, so the kernel lets its packets
// in before.
func TestAnswerComesAfterTheKernel(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	p := withPeers(t, s, 1)[0]
	there, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	p.gateways[0], p.them.ProbePort = netip.MustParseAddr("127.0.0.1"), there.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	b, accepts := make([]byte, 2000), 0
	k.during = func() {
		_ = there.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := there.ReadFrom(b); err == nil {
			t.Error("a packet left before the kernel was told")
		}
		accepts = letIn(k.paths)
	}
	hear(s, p, typeRequest, 1)
	s.takeIn()
	_ = there.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, _, err := there.ReadFrom(b)
	if err != nil || accepts != 1 {
		t.Fatalf("%d accepted, answer: %v", accepts, err)
	}
	if m, err := open(b[:n]); err != nil || m.typ != typeAnswer || m.seq != 1 || n != payload(1500, false) {
		t.Errorf("%d bytes, %+v: %v", n, m, err)
	}
}

// TestProbesHaveTheirRoute: no probe leaves before the kernel has been told of its way.
func TestProbesHaveTheirRoute(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	p := withPeers(t, s, 1)[0]
	told := k.sets
	s.mu.Lock()
	s.begin(p, p.us, goodOffer(Address{netip.MustParseAddr("10.1.0.77"), 16, 1500, MAC{2, 0, 0, 1, 0, 77}}), 0, true)
	s.mu.Unlock()
	k.during = func() {
		if told++; p.tracks[native4].sent > 0 {
			t.Error("a probe left before the kernel was told")
		}
	}
	s.tick()
	if told != k.sets || len(k.paths.Probes) != 1 || k.paths.Probes[0].Via.String() != "10.1.0.77" || p.tracks[native4].sent != 1 {
		t.Errorf("told %d times of %v; %d probes", k.sets, k.paths.Probes, p.tracks[native4].sent)
	}
}

// TestStrangersProbes: what is not exactly the peer's own packet, on exactly the candidate's
// way, proves nothing and opens nothing.
func TestStrangersProbes(t *testing.T) {
	const request, answer = typeRequest, typeAnswer
	for name, change := range map[string]func(s *Service, p *peer, m *message, a *arrival, key *[]byte){
		"another source":                func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.from = a.from.Next() },
		"an interface of pods":          func(s *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link, s.links[8] = 8, "br" },
		"the other kind's interface":    func(s *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link, s.links[8] = 8, "vx" },
		"an interface that is gone":     func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.link = 1 << 30 },
		"another key":                   func(_ *Service, _ *peer, _ *message, _ *arrival, key *[]byte) { *key = make([]byte, 32) },
		"our own, reflected":            func(_ *Service, p *peer, _ *message, _ *arrival, key *[]byte) { *key = p.sess.out },
		"another session":               func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.session++ },
		"another member's session":      func(s *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.session = s.peers["M1"].sess.id },
		"another way":                   func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.slot++ },
		"the other IP version":          func(_ *Service, _ *peer, _ *message, a *arrival, _ *[]byte) { a.v6 = true },
		"a number that was never asked": func(_ *Service, _ *peer, m *message, _ *arrival, _ *[]byte) { m.seq += 1 << 40 },
		"":                              nil, // the peer's own
	} {
		for _, typ := range []byte{request, answer} {
			if typ == request && name == "a number that was never asked" {
				continue // fresh numbers are what requests have
			}
			k := &countingKernel{}
			s := newService(t, k)
			s.sockets[0].close()
			p := withPeers(t, s, 2)[0]
			s.sockets[0] = nil
			track := p.tracks[native4]
			for range 2 * proveGood {
				track.next = time.Time{}
				s.tick()
				m, a, key := message{typ: typ, session: p.sess.id, seq: track.sent}, arrival{from: p.gateways[0], link: 7}, p.sess.in
				if change != nil {
					change(s, p, &m, &a, &key)
				}
				s.receive(m.seal(key, payload(1500, false)), a)
				s.takeIn()
			}
			accepted, used := letIn(k.paths) > 0, len(k.paths.Routes) > 0
			if name == "" && (!accepted || used != (typ == answer)) {
				t.Errorf("the peer's own, type %d: accepted %v, used %v", typ, accepted, used)
			}
			if name != "" && (accepted || used) {
				t.Errorf("%s, type %d: accepted %v, used %v", name, typ, accepted, used)
			}
		}
	}
}

// TestAnotherUplink: the peer's packets come in by another uplink than ours leave by, as ARP
// pleases; its pods' packets are let in there.
func TestAnotherUplink(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	s.sockets[0].close()
	p := withPeers(t, s, 1)[0]
	s.sockets[0] = nil
	track := p.tracks[native4]
	s.links[8] = "eth1"
	for seq := range uint64(2) {
		track.next = time.Time{}
		s.tick()
		m := message{typ: typeRequest, session: p.sess.id, seq: seq + 1}
		s.receive(m.seal(p.sess.in, payload(1500, false)), arrival{from: p.gateways[0], link: 7 + int(seq)})
		s.takeIn()
		want := []string{s.links[7], "eth1"}[seq]
		if len(k.paths.Senders) != 1 || !k.paths.Senders[0].Pods || k.paths.Senders[0].Link != want {
			t.Errorf("let in: %+v, want by %s", k.paths.Senders, want)
		}
		if len(k.paths.Probes) != 1 || k.paths.Probes[0].Link != track.c.link {
			t.Errorf("probes: %+v, want by %s", k.paths.Probes, track.c.link)
		}
	}
}

// TestRepeatedRequest: a request that somebody sends again keeps nothing open.
func TestRepeatedRequest(t *testing.T) {
	s := newService(t, &countingKernel{})
	p := withPeers(t, s, 1)[0]
	s.sockets[0].close()
	s.sockets[0] = nil
	hear(s, p, typeRequest, 7)
	s.takeIn()
	heard := p.tracks[native4].heard
	for _, seq := range []uint64{7, 6, 1} {
		hear(s, p, typeRequest, seq)
		s.takeIn()
	}
	if now := p.tracks[native4].heard; heard.IsZero() || !now.Equal(heard) {
		t.Errorf("heard at %v, then at %v", heard, now)
	}
}

// native takes the peers' native ways into use.
func native(s *Service, peers []*peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, p := range peers {
		t := p.tracks[native4]
		t.enter(up, now)
		t.upAt, t.answered, t.next = now, now, now.Add(time.Hour)
		s.settle(p, now)
	}
	s.tell()
}

// TestPathsEndWithThePlan: a member that is removed, an opt-out and `encryption: always` end
// paths in use with the same call that brings the news.
func TestPathsEndWithThePlan(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(s *Service, plan mesh.Plan)
		left int // of two
	}{
		"removed": {func(s *Service, plan mesh.Plan) { plan.Members = plan.Members[1:]; s.SetPlan(plan, "", s.noVXLAN) }, 1},
		"opt-out": {func(s *Service, plan mesh.Plan) { s.SetPlan(plan, "lan.native is false", s.noVXLAN) }, 0},
		"always": {func(s *Service, plan mesh.Plan) {
			plan.Encrypted, plan.Host.LAN = true, mesh.LAN{}
			s.SetPlan(plan, "encryption: always", "encryption: always")
		}, 0},
		"another gateway": {func(s *Service, plan mesh.Plan) {
			plan.Members = slices.Clone(plan.Members)
			plan.Members[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.250.0.0/24")}
			s.SetPlan(plan, "", s.noVXLAN)
		}, 1},
	} {
		k := &countingKernel{}
		s := newService(t, k)
		peers := withPeers(t, s, 2)
		native(s, peers)
		if len(k.paths.Routes) != 2 || letIn(k.paths) != 2 {
			t.Fatalf("%s: %+v before", name, k.paths)
		}
		c.set(s, s.plan)
		if len(k.paths.Routes) != c.left || letIn(k.paths) != c.left || len(k.paths.Probes) != c.left || len(k.paths.Senders) != c.left {
			t.Errorf("%s: left %+v", name, k.paths)
		}
		if name == "removed" {
			if _, ok := s.Status("M0"); ok {
				t.Error("removed: there is still a status")
			}
			if err := s.Answer("M0", breaksAtOnce{}); err == nil {
				t.Error("removed: its offer is answered")
			}
		}
	}
}

// breaksAtOnce is a stream with an offer and no reader.
type breaksAtOnce struct{ Stream }

func (breaksAtOnce) SetReadDeadline(time.Time) error  { return nil }
func (breaksAtOnce) SetWriteDeadline(time.Time) error { return nil }
func (breaksAtOnce) Read([]byte) (int, error)         { return 0, io.EOF }
func (breaksAtOnce) Reset()                           {}

// TestOtherUnderlayOfVXLAN: when VXLAN's outer packets get another IP version, its paths end
// and every peer is told.
func TestOtherUnderlayOfVXLAN(t *testing.T) {
	s := newService(t, &countingKernel{})
	p := withPeers(t, s, 1)[0]
	p.tracks[vxlan4] = newTrack(candidate{kind: mesh.VXLAN, slot: vxlanSlot}, time.Now())
	plan := s.plan
	s.noVXLAN = ""
	plan.Host.LAN.IPv6Underlay = true
	s.SetPlan(plan, "", "")
	if p.tracks[vxlan4] != nil || p.tracks[native4] == nil || !p.wantsOffer(time.Now()) {
		t.Errorf("tracks %v, wants an offer: %v", p.tracks, p.wantsOffer(time.Now()))
	}
}

// TestSilentPeerIsLetInNoMore: who has not been heard for a while is not let in, and when there
// is no connection either, nothing of it is left.
func TestSilentPeerIsLetInNoMore(t *testing.T) {
	k := &countingKernel{}
	s := newService(t, k)
	p := withPeers(t, s, 1)[0]
	hear(s, p, typeRequest, 1)
	s.takeIn()
	if letIn(k.paths) != 1 {
		t.Fatal("not let in")
	}
	track := p.tracks[native4]
	track.enter(down, time.Now())
	track.next, track.heard = time.Now().Add(time.Hour), time.Now().Add(-2*acceptFor)
	s.settled = time.Time{}
	s.tick()
	if letIn(k.paths) != 0 || len(k.paths.Probes) != 1 {
		t.Errorf("%+v", k.paths)
	}
	s.cfg.Connected = func(mesh.PeerID) bool { return false }
	p.nextOffer = time.Time{}
	s.tick()
	if len(k.paths.Probes) != 0 || p.sess != nil || len(s.sessions) != 0 {
		t.Errorf("without a connection: %+v", k.paths)
	}
}

// TestTunnelHearsOfSilence: the tunnel's own way is doubted as soon as a path in use does not
// answer.
func TestTunnelHearsOfSilence(t *testing.T) {
	s := newService(t, &countingKernel{})
	peers := withPeers(t, s, 2)
	var told []mesh.PeerID
	s.cfg.Failing = func(id mesh.PeerID) { told = append(told, id) }
	native(s, peers)
	for range 4 { // the first is a probe, the second finds that no answer has come
		peers[0].tracks[native4].next = time.Now()
		s.tick()
	}
	if len(told) != 1 || told[0] != peers[0].id {
		t.Errorf("told of %v, want once of %s", told, peers[0].id)
	}
}

// TestProbesAreNeitherRoutedNorCut: one hop, and no fragments.
func TestProbesAreNeitherRoutedNorCut(t *testing.T) {
	for _, c := range []struct {
		at   string
		want [][3]int // level, option, value
	}{
		{"127.0.0.1", [][3]int{{unix.SOL_IP, unix.IP_TTL, 1}, {unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}},
		{"::1", [][3]int{{unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 1}, {unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE}}},
	} {
		s, err := listen(netip.MustParseAddr(c.at), 0)
		if err != nil {
			t.Skip(err) // no IPv6 here
		}
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if err := raw.Control(func(fd uintptr) {
				if v, err := unix.GetsockoptInt(int(fd), w[0], w[1]); err != nil || v != w[2] {
					t.Errorf("%s: option %d of level %d is %d, want %d: %v", c.at, w[1], w[0], v, w[2], err)
				}
			}); err != nil {
				t.Error(err)
			}
		}
		s.close()
	}
}
