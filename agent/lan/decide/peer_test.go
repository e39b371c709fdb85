package decide

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
)

// podPeer is a peer with these blocks, on a node with pods of both IP versions.
func podPeer(blocks ...string) *peer {
	n := mesh.Node{}
	for _, b := range blocks {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(b))
	}
	p := newPeer("A", "B")
	p.describe(n.PodCIDRs, [2]bool{true, true})
	return p
}

// newTestPeer is a peer with IPv4 and IPv6 pods after offers of one LAN.
func newTestPeer(now time.Time) (*peer, Offer, Offer) {
	p := podPeer("10.244.2.0/24", "fd00:2::/64")
	us, them := goodOffer(addr("192.168.1.11", 24)), goodOffer(addr("192.168.1.12", 24))
	p.offerEnded(now, p.offered(now), nil)
	p.begin(us, them, now)
	return p, us, them
}

func (p *peer) begin(us, them Offer, now time.Time) {
	s := newSession(us, them, "A", "B", true)
	p.install(s, us, them, 0, candidates(us, them, uplinksOf(us), true, 0, p.pods[0], p.pods[1]), now)
	p.choose()
	p.plan(now)
}

// bring makes a track usable, or fails it.
func (p *peer) bring(key trackKey, works bool, now time.Time) []int {
	t := p.tracks[key]
	if works {
		t.enter(up, now)
		t.upAt = now
	} else {
		t.fail(now, "lost")
	}
	return p.choose()
}

func use(p *peer, v6 bool) mesh.PathKind {
	for _, w := range p.wanted {
		if w.Use && w.V6 == v6 {
			return w.Kind
		}
	}
	return ""
}

var (
	native4 = trackKey{false, 0}
	vxlan4  = trackKey{false, vxlanSlot}
	vxlan6  = trackKey{true, vxlanSlot}
)

func TestPeerChoosesTheBest(t *testing.T) {
	now := time.Unix(1000, 0)
	p, _, _ := newTestPeer(now)
	for i, step := range []struct {
		key    trackKey
		works  bool
		v4, v6 mesh.PathKind
	}{
		{vxlan4, true, mesh.VXLAN, ""},
		{native4, true, mesh.Native, ""},
		{vxlan6, true, mesh.Native, mesh.VXLAN},
		{native4, false, mesh.VXLAN, mesh.VXLAN},
		{vxlan4, false, "", mesh.VXLAN},
		{native4, true, mesh.Native, mesh.VXLAN},
		{vxlan6, false, mesh.Native, ""},
	} {
		p.bring(step.key, step.works, now)
		p.plan(now)
		if use(p, false) != step.v4 || use(p, true) != step.v6 {
			t.Errorf("step %d: IPv4 %q, IPv6 %q; want %q, %q", i, use(p, false), use(p, true), step.v4, step.v6)
		}
		if p.plan(now) {
			t.Errorf("step %d: nothing changed, and it is reported as a change", i)
		}
	}
}

func TestPeerKeepsAPathOfTheSameKind(t *testing.T) {
	now := time.Unix(1000, 0)
	p := podPeer("10.244.2.0/24")
	p.begin(goodOffer(addr("10.0.0.1", 24), addr("192.168.1.11", 24)), goodOffer(addr("10.0.0.2", 24), addr("192.168.1.12", 24)), now)
	second := trackKey{false, 1}
	p.bring(second, true, now)
	if changed := p.bring(native4, true, now); len(changed) > 0 || p.using[0] != p.tracks[second] {
		t.Error("a path that works is left for one that is no better")
	}
	if p.bring(second, false, now); p.using[0] != p.tracks[native4] {
		t.Error("the other native path is not taken")
	}
}

// A new exchange of offers does not break what works.
func TestPeerNewSession(t *testing.T) {
	now := time.Unix(1000, 0)
	p, us, them := newTestPeer(now)
	p.bring(native4, true, now)
	old := p.sess
	them.Addrs = append(slices.Clone(them.Addrs), addr("10.9.9.9", 8))
	them.Secret = NewSecret()
	p.begin(us, them, now)
	if use(p, false) != mesh.Native || p.sess == old {
		t.Errorf("IPv4 is %q after new offers", use(p, false))
	}
	if p.sessionOf(old.id, now) != old || p.sessionOf(old.id, now.Add(2*keepOld)) != nil || p.sessionOf(p.sess.id, now) != p.sess {
		t.Error("the session before is to be kept for a while")
	}
	them.Addrs = []Address{addr("192.168.1.77", 24)} // it has moved
	p.begin(us, them, now)
	if use(p, false) != "" {
		t.Error("a path to an address that is gone")
	}
}

func TestPeerLosesItsAddress(t *testing.T) {
	now := time.Unix(1000, 0)
	p, us, _ := newTestPeer(now)
	p.bring(native4, true, now)
	p.addressesChanged(append(uplinksOf(us), mesh.Uplink{Link: "wlan0", Addr: netip.MustParseAddr("10.0.0.9")}), now)
	if p.choose(); p.using[0] == nil || !p.stale {
		t.Error("another address came, and the path is left, or nothing is offered")
	}
	renamed := uplinksOf(us)
	renamed[0].Link = "lan0"
	p.addressesChanged(renamed, now)
	if p.choose(); p.using[0] != nil {
		t.Error("the link is renamed, and the path stays on the old name")
	}
	if !strings.Contains(p.tracks[native4].why, "our address 192.168.1.11 is gone") {
		t.Errorf("why: %q", p.tracks[native4].why)
	}
	// Without the address nothing is probed: it would leave by another uplink.
	var out Orders
	p.orderProbes(now.Add(time.Minute), &out)
	for _, s := range out.Probes {
		if s.track.c.link == "eth0" {
			t.Errorf("%s is probed without our address", s.track.c)
		}
	}
	p.addressesChanged(uplinksOf(us), now.Add(2*time.Minute))
	out = Orders{}
	p.orderProbes(now.Add(2*time.Minute), &out)
	if !slices.ContainsFunc(out.Probes, func(s Send) bool { return s.track == p.tracks[native4] }) {
		t.Error("the address is back, and the candidate is not tried immediately")
	}
}

// Other addresses that come and go do not take VXLAN from the pair that works.
func TestPeerKeepsVXLANsPair(t *testing.T) {
	now := time.Unix(1000, 0)
	p, us, them := newTestPeer(now)
	p.bring(vxlan4, true, now)
	for _, more := range [][]Address{{addr("10.0.0.5", 24)}, {addr("172.16.0.5", 24), addr("192.168.9.5", 24)}, nil} {
		now = now.Add(time.Hour)
		us.Addrs = append(us.Addrs[:1:1], more...)
		round := p.roundFor(us)
		p.install(newSession(us, them, "A", "B", true), us, them, round, candidates(us, them, uplinksOf(us), true, round, true, true), now)
		p.choose()
		if w := p.tracks[vxlan4]; p.using[0] != w || w == nil || w.c.local != us.Addrs[0].Addr {
			t.Fatalf("with %v: VXLAN has %v", more, w)
		}
	}
	// One that does not work is tried on the others.
	us.trust.Trusted = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	us.Addrs = append(us.Addrs[:1:1], addr("10.0.0.5", 24))
	p.bring(vxlan4, false, now)
	seen := map[netip.Addr]bool{}
	for range 3 {
		round := p.roundFor(us)
		p.install(newSession(us, them, "A", "B", true), us, them, round, candidates(us, them, uplinksOf(us), true, round, true, true), now)
		seen[p.tracks[vxlan4].c.local] = true
	}
	if len(seen) != 2 {
		t.Errorf("tried from %v alone", seen)
	}
}

// Networks that the membership no longer trusts carry no VXLAN across routers; that on one link stays, and says nothing of trust.
func TestDistrust(t *testing.T) {
	now := time.Unix(1000, 0)
	p, _, _ := newTestPeer(now)
	us, them := trusting(goodOffer(addr("10.1.0.11", 24)), "10.0.0.0/8"), goodOffer(addr("10.2.0.12", 24))
	p.begin(us, them, now)
	p.bring(vxlan4, true, now)
	p.plan(now)
	if use(p, false) != mesh.VXLAN {
		t.Fatal("no path in a trusted network")
	}
	p.distrust(us.trust)
	if p.tracks[vxlan4] == nil {
		t.Error("the same trust ends the path")
	}
	p.distrust(mesh.Trust{})
	p.choose()
	p.plan(now)
	us.trust = mesh.Trust{}
	p.us = us
	if st := p.status(Off{}); st.Kind != "" || st.Untrusted != [2]netip.Addr{us.Addrs[0].Addr, them.Addrs[0].Addr} || !strings.Contains(st.Reason, "lan.trusted") {
		t.Errorf("status %+v", st)
	}
	p, _, _ = newTestPeer(now)
	p.distrust(mesh.Trust{})
	if p.tracks[vxlan4] == nil || p.status(Off{}).Untrusted[0].IsValid() {
		t.Error("VXLAN on one link depends on trust")
	}
}

// Where the peer's MAC does not arrive VXLAN on one link fails: status says that trust would help, and when it says so.
func TestRewrittenMAC(t *testing.T) {
	now := time.Unix(1000, 0)
	p, us, them := newTestPeer(now)
	for k := range p.tracks {
		p.bring(k, false, now)
	}
	pair := [2]netip.Addr{us.Addrs[0].Addr, them.Addrs[0].Addr}
	if st := p.status(Off{}); st.Untrusted != pair || !strings.Contains(st.Reason, "lost; something between 192.168.1.11 and 192.168.1.12 may put its own MAC") {
		t.Errorf("status %+v", st)
	}
	p.begin(trusting(us, "192.168.0.0/16"), them, now)
	for k := range p.tracks {
		p.bring(k, false, now)
	}
	if st := p.status(Off{}); st.Untrusted[0].IsValid() || strings.Contains(st.Reason, "trusted") {
		t.Errorf("trusted: status %+v", st)
	}
	for want, mac := range map[string]MAC{"have no MACs": {}, "have the same MAC": us.Addrs[0].MAC} {
		p, us, them := newTestPeer(now)
		them.Addrs[0].MAC = mac
		p.begin(us, them, now)
		if st := p.status(Off{}); st.Untrusted != pair || !strings.Contains(st.Reason, want) {
			t.Errorf("%s: status %+v", want, st)
		}
	}
}

func TestPeerOffersAreDamped(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPeer("A", "B")
	offers := 0
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(100 * time.Millisecond) {
		if p.wantsOffer(now) {
			offers++
			p.offerEnded(now, p.offered(now), errors.New("no such protocol"))
		}
	}
	if offers < 6 || offers > 120 {
		t.Errorf("%d offers in an hour to a peer that does not know them", offers)
	}
	p, _, _ = newTestPeer(now)
	if p.wantsOffer(now.Add(time.Second)) {
		t.Error("a new offer while the candidates are being proven")
	}
	p.bring(native4, true, now)
	if p.wantsOffer(now.Add(time.Hour)) {
		t.Error("a new offer although a path works")
	}
}

// TestPeerProof: what is said of both IP versions' paths is the lesser proof.
func TestPeerProof(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		forwarded [2]bool
		proof     string
	}{{[2]bool{true, true}, "forwarded"}, {[2]bool{true, false}, "gateway"}, {[2]bool{false, true}, "gateway"}} {
		p, _, _ := newTestPeer(now)
		p.bring(native4, true, now)
		p.bring(vxlan6, true, now)
		for v, end := range [2]string{"10.244.2.254", "fd00:2::fffe"} {
			if c.forwarded[v] {
				p.forwards[v].ours, p.forwards[v].theirs, p.using[v].tested = netip.MustParseAddr(end), netip.MustParseAddr(end), now
			}
		}
		if got := p.status(Off{}).Proof; got != c.proof {
			t.Errorf("forwarded probes %v: proof %q, want %q", c.forwarded, got, c.proof)
		}
	}
}

func TestPeerSaysWhy(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name    string
		change  func(*peer)
		ours    [2]string
		reasons []string
		kind    mesh.PathKind
	}{
		{"nothing yet", func(p *peer) { p.drop() }, [2]string{}, nil, ""},
		{"offer failed", func(p *peer) { p.drop(); p.offerErr = "no route" }, [2]string{}, []string{"no LAN path: no route"}, ""},
		{"encryption", func(*peer) {}, [2]string{"encryption: always", "encryption: always"}, []string{"no LAN path: encryption: always"}, ""},
		{"being probed", func(*peer) {}, [2]string{}, []string{"native: 192.168.1.12 on eth0: being probed", "vxlan to 192.168.1.12: being probed"}, ""},
		{"native", func(p *peer) { p.bring(native4, true, now); p.bring(vxlan6, true, now) }, [2]string{}, []string{"IPv6 pods: vxlan"}, mesh.Native},
		{"vxlan", func(p *peer) { p.bring(vxlan4, true, now); p.bring(native4, false, now) }, [2]string{}, []string{"native: 192.168.1.12 on eth0: lost"}, mesh.VXLAN},
		{"off here", func(*peer) {}, [2]string{"lan.native is false", ""}, []string{"native: lan.native is false"}, ""},
		{"off there", func(p *peer) { p.them.NoNative = "their reason" }, [2]string{}, []string{"native: the peer says: their reason"}, ""},
		{"no address there", func(p *peer) { p.them.Addrs = nil; clear(p.tracks) }, [2]string{}, []string{"the peer has no private address"}, ""},
		{"no address here", func(p *peer) { p.us.Addrs = nil; clear(p.tracks) }, [2]string{}, []string{"this node has no private address"}, ""},
		{"elsewhere", func(p *peer) { clear(p.tracks) }, [2]string{}, []string{"native: no LAN in common"}, ""},
		{"cloned machines", func(p *peer) {
			p.them.Addrs = slices.Clone(p.them.Addrs)
			p.them.Addrs[0].MAC = p.us.Addrs[0].MAC
			clear(p.tracks)
		}, [2]string{}, []string{"native: both have the MAC", "give one of them another"}, ""},
		{"other port", func(p *peer) { p.them.VXLANPort = 1; clear(p.tracks) }, [2]string{}, []string{"another port"}, ""},
	} {
		p, _, _ := newTestPeer(now)
		c.change(p)
		p.choose()
		st := p.status(Off{c.ours[0], c.ours[1]})
		if st.Kind != c.kind || len(c.reasons) == 0 && st.Reason != "" {
			t.Errorf("%s: %q, %q", c.name, st.Kind, st.Reason)
		}
		for _, r := range c.reasons {
			if !strings.Contains(st.Reason, r) {
				t.Errorf("%s: no %q in %q", c.name, r, st.Reason)
			}
		}
	}
}

// What a path failed of is said until it is proved, also after the next offers: doctor must not lose the cause in between.
func TestReasonOutlivesOffers(t *testing.T) {
	now := time.Unix(1000, 0)
	p, us, them := newTestPeer(now)
	for _, tr := range p.tracks {
		tr.fail(now, "probes of 1500 "+LostWhole)
	}
	p.install(newSession(us, them, "A", "B", true), us, them, 1, candidates(us, them, uplinksOf(us), true, 0, true, true), now)
	if st := p.status(Off{}); !strings.Contains(st.Reason, LostWhole) {
		t.Errorf("after new offers: %q", st.Reason)
	}
}

// Two exchanges that begin together: the same one counts on both sides.
func TestPeerOneExchangeCounts(t *testing.T) {
	now := time.Unix(1000, 0)
	low, high := newPeer("A", "B"), newPeer("B", "A") // as A sees B, and B sees A
	mine, hers := low.offered(now), high.offered(now)
	if _, ok := low.answers(); ok {
		t.Error("the lower ID answers although its own offer is under way")
	}
	ticket, ok := high.answers()
	if !ok || ticket != high.ticket || hers == high.ticket || mine != low.ticket {
		t.Error("the lower ID's exchange does not count on both sides")
	}
	// While the peer is being answered nothing of ours begins.
	p := newPeer("A", "B")
	if _, ok := p.answers(); !ok || p.wantsOffer(now) {
		t.Error("an own offer beside the answer to the peer's")
	}
}
