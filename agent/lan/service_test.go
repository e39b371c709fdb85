package lan_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/agent/lan"
	"edgemesh/agent/lan/decide"
	"edgemesh/agent/lan/lantest"
	"edgemesh/internal/membership/mesh"
)

var onlyNative = decide.Off{VXLAN: "lan.vxlan is false"}

// onLAN runs f with n nodes of one LAN, in a bubble with a clock of its own.
func onLAN(t *testing.T, n int, f func(t *testing.T, l *lantest.LAN, nodes []*lantest.Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lantest.LAN{T: t}
		var nodes []*lantest.Node
		for range n {
			nodes = append(nodes, l.Add())
		}
		f(t, l, nodes)
	})
}

// until waits until ok, at most d by the bubble's clock, and reports how long that took.
func until(d time.Duration, ok func() bool) (time.Duration, bool) {
	start := time.Now()
	for !ok() {
		if time.Since(start) >= d {
			return time.Since(start), false
		}
		time.Sleep(time.Millisecond) // sleep: in a bubble
	}
	return time.Since(start), true
}

// becomes waits for a path.
func becomes(t *testing.T, from, to *lantest.Node, kind mesh.PathKind, within time.Duration) time.Duration {
	t.Helper()
	took, ok := until(within, func() bool { return from.Kind(to) == kind })
	if !ok {
		t.Fatalf("%s to %s: %q after %v, want %q (%s)", from.Member.Name, to.Member.Name, from.Kind(to), took, kind, from.Why(to))
	}
	return took
}

func TestNativeWithinASecond(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Meet(decide.Off{})
		for _, x := range [][2]*lantest.Node{{n[0], n[1]}, {n[1], n[0]}} {
			becomes(t, x[0], x[1], mesh.Native, time.Second)
			r := x[0].Kernel.Paths().Routes
			if len(r) != 1 || r[0].Via != x[1].Uplink.Addr || r[0].Block != x[1].Member.PodCIDRs[0] {
				t.Errorf("%s has routes %+v", x[0].Member.Name, r)
			}
		}
	})
}

// Two ends without traffic send the rare probes of an idle path, also where both had some: neither takes the other's word for its own.
func TestQuietAfterTraffic(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		var probes, bytes, offers atomic.Int64
		l.Broken = func(*lantest.Node, *lantest.Stream) { offers.Add(1) } // breaks none
		l.Pass = func(p *lantest.Probe) bool {
			probes.Add(1)
			bytes.Add(int64(len(p.Payload)))
			return true
		}
		l.Meet(decide.Off{})
		time.Sleep(2 * time.Minute)
		probes.Store(0)
		bytes.Store(0)
		time.Sleep(time.Minute)
		if n, b := probes.Load(), bytes.Load(); n > 60 || b > 30_000 { // two candidates, each end's and their answers
			t.Errorf("%d probes and answers of %d bytes in a minute without traffic", n, b)
		}
		if n := offers.Load(); n > 4 {
			t.Errorf("%d exchanges of offers for two nodes that stay where they are", n)
		}
	})
}

// What is on the path decides: a switch that isolates ports leaves VXLAN, and a filter of
// everything the tunnel. A path that is lost is left within two seconds, and comes back.
func TestPathsFollowTheNetwork(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		var native, all atomic.Bool
		l.Pass = func(p *lantest.Probe) bool { return !all.Load() && (!native.Load() || p.Slot == mesh.ProbeSlots-1) }
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		native.Store(true)
		becomes(t, n[0], n[1], mesh.VXLAN, 2*time.Second)
		all.Store(true)
		becomes(t, n[0], n[1], "", 2*time.Second)
		if s := n[0].Suspects(); len(s) == 0 || s[0] != n[1].Member.PeerID {
			t.Errorf("the tunnel was notified to suspect %v", s)
		}
		native.Store(false)
		all.Store(false)
		becomes(t, n[0], n[1], mesh.Native, time.Minute)
	})
}

// An uplink was down so shortly that the same addresses are found again. The kernel is
// given its paths again, and only then.
func TestUplinksAsBeforeButSuspect(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Meet(onlyNative)
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		time.Sleep(10 * time.Second)
		before := n[0].Kernel.Sets()
		n[0].UplinksChanged()
		if k := n[0].Kernel; k.Sets() != before {
			t.Errorf("paths were set %d times more though nothing has changed", k.Sets()-before)
		}
		n[0].Kernel.Suspect()
		n[0].UplinksChanged()
		if k := n[0].Kernel; k.Sets() != before+1 {
			t.Errorf("suspect paths were set %d times, want once", k.Sets()-before)
		}
	})
}

// Neighbours with global addresses alone are native where the membership trusts their network and nothing has lowered the hop
// limit of a probe; else the tunnel carries their packets, and status says what to do. Trust that is taken back ends the path.
func TestGlobalNeighbours(t *testing.T) {
	for name, c := range map[string]struct {
		trusted string
		hops    int
		want    mesh.PathKind
		why     string
	}{
		"trusted":         {"2a05:6:1::/48", 255, mesh.Native, ""},
		"behind a router": {"2a05:6:1::/48", 254, "", "no answer"},
		"not trusted":     {"2a05:6:2::/48", 255, "", "add a ULA to both, or list 2a05:6:1::/64 in the membership's lan.trusted"},
	} {
		onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
			l.Pass = func(p *lantest.Probe) bool { p.Hops -= 255 - c.hops; return true }
			plans := make([]mesh.Plan, 2)
			for i, x := range n {
				u := x.Uplink
				u.Addr, u.Bits = netip.MustParseAddr(fmt.Sprintf("2a05:6:1::%d", i+1)), 64
				x.Kernel.SetUplinks(u)
				x.UplinksChanged()
				plans[i] = x.Plan(n...)
				plans[i].Trust.Trusted = []netip.Prefix{netip.MustParsePrefix(c.trusted)}
				x.SetPlan(plans[i], decide.Off{})
			}
			for _, x := range n {
				x.UseAll()
			}
			if c.want != "" {
				becomes(t, n[0], n[1], c.want, 3*time.Second)
			}
			time.Sleep(5 * time.Second)
			for _, x := range [][2]*lantest.Node{{n[0], n[1]}, {n[1], n[0]}} {
				st, _ := x[0].Status(x[1].Member.PeerID)
				if st.Kind != c.want || !strings.Contains(st.Reason, c.why) || st.Global.On.IsValid() != strings.Contains(c.why, "ULA") {
					t.Errorf("%s: %s, reason %q, note of %v", name, st.Kind, st.Reason, st.Global)
				}
			}
			if c.want != "" {
				plans[0].Trust.Trusted = nil
				n[0].SetPlan(plans[0], decide.Off{})
				if k := n[0].Kernel.Paths(); len(k.Routes)+len(k.Probes)+len(k.Senders) > 0 {
					t.Errorf("left without trust: %+v", k)
				}
			}
		})
	}
}

// Many members find a node at the same time, whose kernel takes a while for each change.
// The kernel gets in few calls what all of them change, or those in use would be lost meanwhile.
func TestManyPeersTogether(t *testing.T) {
	const peers = 200
	onLAN(t, peers+1, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		var pass atomic.Bool
		l.Pass = func(*lantest.Probe) bool { return pass.Load() }
		node := n[0]
		node.SetPlan(node.Plan(n...), onlyNative)
		for _, m := range n[1:] {
			m.SetPlan(m.Plan(node), onlyNative)
			node.Used(m.Member.PeerID)
		}
		time.Sleep(time.Second) // offers are exchanged
		before := node.Kernel.Sets()
		node.Kernel.Slow(10 * time.Millisecond)
		pass.Store(true)
		time.Sleep(time.Second)
		node.Kernel.Slow(0)
		time.Sleep(time.Second)
		if sets := node.Kernel.Sets() - before; sets > 20 || node.Kernel.LetIn() != peers {
			t.Errorf("the kernel was set %d times; %d peers are let in, want %d", sets, node.Kernel.LetIn(), peers)
		}
		for _, m := range n[1:] {
			becomes(t, node, m, mesh.Native, 0)
			becomes(t, m, node, mesh.Native, 0)
		}
		time.Sleep(10 * time.Second)
		for _, m := range n[1:] {
			becomes(t, node, m, mesh.Native, 0)
		}
	})
}

// The peer's packets come in by another uplink than ours leave by, as ARP pleases; its
// pods' packets are let in there.
func TestAnotherUplink(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Pass = func(p *lantest.Probe) bool { p.Link = "eth1"; return true }
		l.Meet(onlyNative)
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		becomes(t, n[1], n[0], mesh.Native, time.Second)
		k := n[0].Kernel.Paths()
		if len(k.Senders) != 1 || !k.Senders[0].Pods || k.Senders[0].Link != "eth1" {
			t.Errorf("let in: %+v, want by eth1", k.Senders)
		}
		if len(k.Probes) != 1 || k.Probes[0].Link != "eth0" || len(k.Routes) != 1 || k.Routes[0].Link != "eth0" {
			t.Errorf("probes by %+v, routes by %+v; want eth0", k.Probes, k.Routes)
		}
	})
}

// A member that is removed, an opt-out and `encryption: always` end paths in use with the
// same call that brings the news.
func TestPathsEndWithThePlan(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(n []*lantest.Node, plan mesh.Plan)
		left int // of two
	}{
		"removed": {func(n []*lantest.Node, plan mesh.Plan) {
			plan.Nodes = plan.Nodes[1:]
			n[0].SetPlan(plan, onlyNative)
		}, 1},
		"opt-out": {func(n []*lantest.Node, plan mesh.Plan) {
			n[0].SetPlan(plan, decide.Off{Native: "lan.native is false", VXLAN: onlyNative.VXLAN})
		}, 0},
		"always": {func(n []*lantest.Node, plan mesh.Plan) {
			plan.Encrypted, plan.Host.LAN = true, mesh.LAN{}
			n[0].SetPlan(plan, decide.Off{Native: "encryption: always", VXLAN: "encryption: always"})
		}, 0},
		"another gateway": {func(n []*lantest.Node, plan mesh.Plan) {
			plan.Nodes[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.247.0.0/24")}
			n[0].SetPlan(plan, onlyNative)
		}, 1},
	} {
		onLAN(t, 3, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
			l.Meet(onlyNative)
			becomes(t, n[0], n[1], mesh.Native, time.Second)
			becomes(t, n[0], n[2], mesh.Native, time.Second)
			c.set(n, n[0].Plan(n...))
			k := n[0].Kernel
			if p := k.Paths(); len(p.Routes) != c.left || k.LetIn() != c.left || len(p.Probes) != c.left || len(p.Senders) != c.left {
				t.Errorf("%s: left %+v", name, p)
			}
			if name != "removed" {
				return
			}
			if _, ok := n[0].Status(n[1].Member.PeerID); ok {
				t.Error("removed: there is still a status")
			}
			mine, theirs := lantest.NewStream()
			defer mine.Reset()
			go func() { _ = decide.WriteOffer(mine, decide.Offer{Version: 1, Secret: make([]byte, 32), ProbePort: 1}) }()
			if err := n[0].Answer(n[1].Member.PeerID, theirs); err == nil {
				t.Error("removed: its offer is answered")
			}
		})
	}
}

// When VXLAN's outer packets get another IP version, its paths end and every peer is informed.
func TestOtherUnderlayOfVXLAN(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		off := decide.Off{Native: "lan.native is false"}
		l.Meet(off)
		becomes(t, n[0], n[1], mesh.VXLAN, time.Second)
		plan := n[0].Plan(n...)
		plan.Host.LAN.IPv6Underlay = true
		n[0].SetPlan(plan, off)
		if p := n[0].Kernel.Paths(); len(p.Routes)+len(p.VTEPs)+len(p.Probes) != 0 {
			t.Errorf("left: %+v", p)
		}
		becomes(t, n[1], n[0], "", 5*time.Second)
		if _, ok := until(5*time.Second, func() bool { return strings.Contains(n[1].Why(n[0]), "another port or IP version") }); !ok {
			t.Errorf("the peer says %q", n[1].Why(n[0]))
		}
	})
}

// Who has not been heard for a while is not let in, and when there is no connection
// either, nothing of it is left. A request that is sent again changes nothing.
func TestSilentPeerIsLetInNoMore(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		var silent atomic.Bool
		var last atomic.Pointer[[]byte]
		l.Pass = func(p *lantest.Probe) bool {
			if p.From == n[1] && !p.Answer && !silent.Load() {
				b := bytes.Clone(p.Payload)
				last.Store(&b)
			}
			return !silent.Load()
		}
		l.Meet(onlyNative)
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		silent.Store(true)
		for range 60 {
			time.Sleep(time.Second)
			n[0].Receive(*last.Load(), lan.Arrival{From: n[1].Gateway(), Link: "eth0"})
		}
		if p := n[0].Kernel.Paths(); n[0].Kernel.LetIn() != 0 || len(p.Probes) != 1 {
			t.Errorf("after a minute: %+v", p)
		}
		l.Disconnect(n[1])
		time.Sleep(20 * time.Minute) // offers are made again, and rarely
		if p := n[0].Kernel.Paths(); len(p.Probes) != 0 {
			t.Errorf("without a connection: %+v", p)
		}
		l.Connect(n[1])
		silent.Store(false)
		n[0].UseAll()
		becomes(t, n[0], n[1], mesh.Native, time.Minute)
	})
}

// The connection is lost between the initiator's taking the peer's offer and its
// confirmation. Both have the same session soon after: until then the peer would hold on
// to what it heard before.
func TestExchangeWithoutConfirmation(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		var opened atomic.Int32
		l.Broken = func(_ *lantest.Node, s *lantest.Stream) {
			if opened.Add(1) == 1 {
				s.Breaks = 2
			}
		}
		n[1].SetPlan(n[1].Plan(n[0]), onlyNative)
		n[0].SetPlan(n[0].Plan(n[1]), onlyNative)
		n[0].UseAll() // n1 begins nothing
		becomes(t, n[0], n[1], mesh.Native, 10*time.Second)
		if n := opened.Load(); n < 2 {
			t.Errorf("%d exchanges; one without its confirmation must be repeated", n)
		}
	})
}

// Two nodes begin at the same moment: both have the same session.
func TestBothBeginTogether(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Meet(onlyNative)
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		becomes(t, n[1], n[0], mesh.Native, time.Second)
	})
}

// Addresses that come and go: VXLAN stays on the pair that works.
func TestOfferKeepsVXLANsPair(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		off := decide.Off{Native: "lan.native is false"}
		l.Meet(off)
		becomes(t, n[0], n[1], mesh.VXLAN, time.Second)
		vtep := func() string { return fmt.Sprint(n[0].Kernel.Paths().VTEPs) }
		before := vtep()
		for i := range 5 {
			other := mesh.Uplink{Link: "wlan0", Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Bits: 24, MTU: 1500}
			n[0].Kernel.SetUplinks(slices.Concat([]mesh.Uplink{other}, []mesh.Uplink{n[0].Uplink})...)
			n[0].UplinksChanged()
			time.Sleep(5 * time.Second)
			if n[0].Kind(n[1]) != mesh.VXLAN || vtep() != before {
				t.Fatalf("with %v: %q by %s, before by %s", other.Addr, n[0].Kind(n[1]), vtep(), before)
			}
		}
	})
}
