package lan

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

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

// TestOfferKeepsVXLANsPair: the round of an offer is that of the pair in use.
func TestOfferKeepsVXLANsPair(t *testing.T) {
	s := newService(t, &countingKernel{})
	p := withPeers(t, s, 1)[0]
	offers := make(chan Offer, 1)
	s.cfg.Open = func(context.Context, mesh.PeerID) (Stream, error) {
		here, there := newStream()
		go func() {
			defer there.Reset()
			if o, err := readOffer(there); err == nil {
				offers <- o
			}
		}()
		return here, nil
	}
	way := newTrack(candidate{kind: mesh.VXLAN, slot: vxlanSlot, local: p.us.Addrs[0].Addr, via: p.them.Addrs[0].Addr}, time.Now())
	way.enter(up, time.Now())
	p.tracks[vxlan4], p.round, p.stale, p.nextOffer = way, 7, true, time.Time{}
	s.tick()
	if o := <-offers; o.Round != 0 { // there is one pair
		t.Errorf("round %d", o.Round)
	}
	s.wg.Wait()
}
