package lan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/lan/decide"
	"edgemesh/agent/lan/lantest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/inet"
)

// is reports whether a packet of IPv4 is of a kind.
func is(kind string, b []byte) bool {
	known := b[9] == 17 && b[20] == b[22] && b[21] == b[23]
	switch kind {
	case "TCP":
		return b[9] == 6
	case "UDP":
		return b[9] == 17
	case "new UDP":
		return b[9] == 17 && !known
	case "known UDP":
		return known
	case "ICMP":
		return b[9] == 1
	}
	return true
}

// traffic has packets of pods come in at n from m for a while.
func traffic(n, m *lantest.Node) {
	go func() {
		for i := range uint64(200) {
			n.Kernel.SetTraffic(map[mesh.Inlet]mesh.Count{{Block: m.Member.PodCIDRs[0], Link: "eth0"}: {Packets: i}})
			time.Sleep(time.Second) // sleep: in a bubble
		}
	}()
}

// moves counts how often the path from n to m changes within d.
func moves(n, m *lantest.Node, d time.Duration) (count int) {
	last := n.Kind(m)
	for range d / (200 * time.Millisecond) {
		time.Sleep(200 * time.Millisecond) // sleep: in a bubble
		if k := n.Kind(m); k != last {
			last, count = k, count+1
		}
	}
	return count
}

// TestForwardedProbes: what a rule drops that gateway probes do not meet. Each end leaves the path for its own direction, for the next
// one that passes; it stays there as long as the rule does, and comes back after it.
func TestForwardedProbes(t *testing.T) {
	const native, vxlan, tunnel = "eth0", "vx", "tun"
	for _, c := range []struct {
		kind, drops string // which packets from n0 to n1, on which interfaces
		off         decide.Off
		path        mesh.PathKind
		cut         bool // no path passes
	}{
		{"all", native, decide.Off{}, mesh.VXLAN, false},
		{"TCP", native, decide.Off{}, mesh.VXLAN, false},
		{"UDP", native, decide.Off{}, mesh.VXLAN, false},
		{"new UDP", native, decide.Off{}, mesh.VXLAN, false},
		{"known UDP", native, decide.Off{}, mesh.VXLAN, false},
		{"ICMP", native, decide.Off{}, mesh.VXLAN, false},
		{"all", native, onlyNative, "", false},
		{"TCP", native + vxlan, decide.Off{}, "", false},
		{"all", native + vxlan + tunnel, decide.Off{}, mesh.Native, true},
		{"UDP", native + tunnel, onlyNative, mesh.Native, true},
		{"all", vxlan, decide.Off{}, mesh.Native, false},
		{"all", tunnel, decide.Off{}, mesh.Native, false},
	} {
		for _, before := range []bool{false, true} {
			for _, busy := range []bool{false, true} {
				if busy && before || !busy && c.kind != "all" {
					continue
				}
				t.Run(fmt.Sprintf("%s on %s, vxlan %q, before %t, traffic %t", c.kind, c.drops, c.off.VXLAN, before, busy), func(t *testing.T) {
					onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
						drops := before
						l.Forward = func(from, _ *lantest.Node, link string, b []byte) bool {
							return !drops || from != n[0] || !strings.Contains(c.drops, link) || !is(c.kind, b)
						}
						start := time.Now()
						l.Meet(c.off)
						if !before {
							becomes(t, n[0], n[1], mesh.Native, 700*time.Millisecond)
							if time.Sleep(time.Minute); n[0].Kind(n[1]) != mesh.Native {
								t.Fatalf("%q without a fault", n[0].Kind(n[1]))
							}
							if busy {
								traffic(n[0], n[1])
								time.Sleep(5 * time.Second)
							}
							drops, start = true, time.Now()
						}
						limit := 5 * time.Second
						if !busy && !before {
							limit = 45 * time.Second // one kind in 10 s
						}
						if c.cut {
							for st := (decide.Status{}); len(st.Cut) == 0; st, _ = n[0].Status(n[1].Member.PeerID) {
								if time.Sleep(10 * time.Millisecond); time.Since(start) > max(limit, 10*time.Second) {
									t.Fatalf("not named: %s", n[0].Why(n[1]))
								}
							}
						} else {
							time.Sleep(limit)
						}
						if k := n[0].Kind(n[1]); k != c.path {
							t.Fatalf("%q, want %q: %s", k, c.path, n[0].Why(n[1]))
						}
						if got := moves(n[0], n[1], 10*time.Minute); got != 0 || n[0].Kind(n[1]) != c.path {
							t.Errorf("%d moves within ten minutes, now %q", got, n[0].Kind(n[1]))
						}
						if n[1].Kind(n[0]) != mesh.Native {
							t.Errorf("the other direction takes %q: %s", n[1].Kind(n[0]), n[1].Why(n[0]))
						}
						drops = false
						becomes(t, n[0], n[1], mesh.Native, 45*time.Second)
						time.Sleep(time.Minute)
						if st, _ := n[0].Status(n[1].Member.PeerID); st.Kind != mesh.Native || len(st.Cut) > 0 || st.Proof != "forwarded" || st.Reason != "" {
							t.Errorf("without the fault: %+v", st)
						}
					})
				})
			}
		}
	}
}

// TestForwardedKindAfterKind: a kind that no path passes is named as long as none does, and the others are looked after all the same.
func TestForwardedKindAfterKind(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		more := false
		l.Forward = func(from, _ *lantest.Node, link string, b []byte) bool {
			return from != n[0] || !is("ICMP", b) && !(more && link == "eth0" && is("TCP", b))
		}
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, 10*time.Second)
		for range 300 {
			time.Sleep(time.Second)
			if st, _ := n[0].Status(n[1].Member.PeerID); len(st.Cut) == 0 || st.Kind != mesh.Native {
				t.Fatalf("a path by %q cuts %v, want ICMP named and native", st.Kind, st.Cut)
			}
		}
		traffic(n[0], n[1])
		time.Sleep(5 * time.Second)
		more = true
		becomes(t, n[0], n[1], mesh.VXLAN, 5*time.Second)
		time.Sleep(200 * time.Second) // until the traffic ends
	})
}

// TestForwardedRejected: who answers a probe in place of letting it pass is named.
func TestForwardedRejected(t *testing.T) {
	for _, c := range []struct{ name, answers string }{
		{"ICMP", "10.244.1.1, which answers with ICMP type 3, code 13"}, {"RST", "a rule that answers with a TCP reset"},
		{"forged ICMP", ""},
	} {
		onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
			silent := false
			l.Forward = func(from, to *lantest.Node, _ string, b []byte) bool {
				if from != n[0] || c.name == "RST" && !is("TCP", b) {
					return true
				}
				if silent {
					return false
				}
				src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
				if c.name == "forged ICMP" {
					b = slices.Clone(b)
					b[map[bool]int{false: 35, true: 50}[is("TCP", b)]]++ // of the tag
				}
				answer := inet.Packet(to.Gateway(), src, inet.ProtoICMP, append([]byte{3, 13, 0, 0, 0, 0, 0, 0}, b[:min(len(b), 500)]...))
				if c.name == "RST" {
					tcp := append([]byte{0, 0, 0, 0, 0, 0, 0, 0}, b[24:28]...) // the probe's number, and one more
					tcp[11]++
					answer = inet.Packet(dst, src, inet.ProtoTCP, append(tcp, 5<<4, inet.RST|inet.ACK, 0, 0, 0, 0, 0, 0))
				}
				from.Catch(answer, "eth0")
				return false
			}
			l.Meet(decide.Off{})
			time.Sleep(10 * time.Second)
			st, _ := n[0].Status(n[1].Member.PeerID)
			if st.Answers != c.answers || st.Kind != mesh.Native || !strings.Contains(st.Reason, c.answers) {
				t.Errorf("%s: path %q, answers %q: %s", c.name, st.Kind, st.Answers, st.Reason)
			}
			if st, _ := n[1].Status(n[0].Member.PeerID); st.Answers != "" || len(st.Cut) > 0 {
				t.Errorf("%s: the other direction: %+v", c.name, st)
			}
			silent = true
			time.Sleep(2 * time.Minute)
			if st, _ := n[0].Status(n[1].Member.PeerID); st.Answers != "" || len(st.Cut) == 0 {
				t.Errorf("%s: with a rule that drops: %+v", c.name, st)
			}
			l.Forward = nil
			time.Sleep(2 * time.Minute)
			if st, _ := n[0].Status(n[1].Member.PeerID); st.Answers != "" || len(st.Cut) > 0 {
				t.Errorf("%s: without the rule: %+v", c.name, st)
			}
		})
	}
}

// TestForwardedSent: on an idle path a rule of the sender drops what leaves, so that nothing comes in at either end. Packets that pods send towards
// the peer count as traffic all the same.
func TestForwardedSent(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		drops := false
		l.Forward = func(from, _ *lantest.Node, link string, b []byte) bool {
			return !drops || from != n[0] || link != "eth0" || !is("TCP", b)
		}
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		time.Sleep(2 * time.Minute)
		drops = true
		n[0].Kernel.SetTraffic(map[mesh.Inlet]mesh.Count{{Block: n[1].Member.PodCIDRs[0], Out: true}: {}})
		becomes(t, n[0], n[1], mesh.VXLAN, 5*time.Second)
		if r := n[0].Received(); len(r) > 1 || r[mesh.Native] > 0 {
			t.Errorf("what was sent counts as received: %v", r)
		}
	})
}

// TestForwardedLoss: a LAN that loses packets is no rule.
func TestForwardedLoss(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		r := rand.New(rand.NewPCG(1, 2))
		l.Forward = func(*lantest.Node, *lantest.Node, string, []byte) bool { return r.IntN(10) > 0 }
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, 2*time.Second)
		if got := moves(n[0], n[1], 10*time.Minute); got != 0 {
			t.Errorf("%d moves", got)
		}
	})
}

// TestForwardedByOneAlone: where one end cannot, gateway probes are the proof, as between older releases.
func TestForwardedByOneAlone(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		n[1].Kernel.SetProbeAddrs([2]netip.Addr{})
		l.Forward = func(*lantest.Node, *lantest.Node, string, []byte) bool { t.Error("a forwarded probe"); return false }
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, 700*time.Millisecond)
		becomes(t, n[1], n[0], mesh.Native, 700*time.Millisecond)
		time.Sleep(time.Minute)
		if st, _ := n[0].Status(n[1].Member.PeerID); st.Proof != "gateway" || st.Kind != mesh.Native {
			t.Errorf("%+v", st)
		}
	})
}

// TestForwardedBackoff: a fault that comes and goes moves pods ever less often, and by its end the path is native again.
func TestForwardedBackoff(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		start := time.Now()
		fault := func() bool { d := time.Since(start); return d < 10*time.Minute && d%(25*time.Second) >= 19*time.Second }
		l.Forward = func(_, _ *lantest.Node, link string, _ []byte) bool { return link != "eth0" || !fault() }
		l.Meet(decide.Off{})
		traffic(n[0], n[1])
		if got := moves(n[0], n[1], 10*time.Minute); got == 0 || got > 16 {
			t.Errorf("%d moves", got)
		}
		becomes(t, n[0], n[1], mesh.Native, 6*time.Minute)
	})
}

// TestForwardedLarge: a path that loses large packets of one kind is left until it loses none.
func TestForwardedLarge(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Forward = func(_, _ *lantest.Node, link string, b []byte) bool {
			return link != "eth0" || len(b) < 1400 || !is("known UDP", b)
		}
		l.Meet(decide.Off{})
		traffic(n[0], n[1])
		time.Sleep(20 * time.Second)
		if got := moves(n[0], n[1], 10*time.Minute); got != 0 || n[0].Kind(n[1]) != mesh.VXLAN {
			t.Errorf("%d moves, now %q: %s", got, n[0].Kind(n[1]), n[0].Why(n[1]))
		}
		l.Forward = nil
		becomes(t, n[0], n[1], mesh.Native, 45*time.Second)
	})
}

// TestForwardedIdle: without traffic one small probe of each kind in turn, every 10 s.
func TestForwardedIdle(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Meet(decide.Off{})
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		time.Sleep(2 * time.Minute) // a path that came up counts as one with traffic
		kinds, bytes := map[string]int{}, 0
		l.Forward = func(from, _ *lantest.Node, _ string, b []byte) bool {
			for _, kind := range []string{"TCP", "new UDP", "known UDP", "ICMP"} {
				if from == n[0] && is(kind, b) {
					kinds[kind]++
					bytes += len(b)
				}
			}
			return true
		}
		time.Sleep(4 * time.Minute)
		for kind, got := range kinds {
			if got < 5 || got > 7 {
				t.Errorf("%d of %s", got, kind)
			}
		}
		if len(kinds) != 4 || bytes > 24*80 {
			t.Errorf("%v, %d bytes", kinds, bytes)
		}
	})
}

// TestForwardedPortGone: what is known of a path stays while an end has no port for a moment, and goes if it does not come back.
func TestForwardedPortGone(t *testing.T) {
	for _, end := range []int{0, 1} {
		onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
			l.Forward = func(_, _ *lantest.Node, link string, _ []byte) bool { return link != "eth0" }
			l.Meet(decide.Off{})
			becomes(t, n[0], n[1], mesh.VXLAN, 5*time.Second)
			time.Sleep(time.Minute)
			addrs := n[end].Kernel.ProbeAddrs()
			for range 3 {
				n[end].Kernel.SetProbeAddrs([2]netip.Addr{})
				if got := moves(n[0], n[1], 30*time.Second); got != 0 {
					t.Errorf("%d moves without a port of end %d", got, end)
				}
				n[end].Kernel.SetProbeAddrs(addrs)
				if got := moves(n[0], n[1], time.Minute); got != 0 {
					t.Errorf("%d moves with a port of end %d again", got, end)
				}
			}
			n[end].Kernel.SetProbeAddrs([2]netip.Addr{})
			becomes(t, n[0], n[1], mesh.Native, 6*time.Minute)
		})
	}
}

// TestForwardedRekey: new sessions, also half-made ones, are no loss.
func TestForwardedRekey(t *testing.T) {
	onLAN(t, 2, func(t *testing.T, l *lantest.LAN, n []*lantest.Node) {
		l.Meet(decide.Off{})
		traffic(n[0], n[1])
		becomes(t, n[0], n[1], mesh.Native, time.Second)
		done := time.Now().Add(5 * time.Minute)
		go func() {
			for i := 0; time.Now().Before(done); i++ {
				up := n[i%2].Uplink
				n[i%2].Kernel.SetUplinks(up, mesh.Uplink{Link: "eth9", Addr: netip.AddrFrom4([4]byte{172, 16, byte(i % 200), 1}), Bits: 24, MTU: 1500, MAC: up.MAC})
				n[i%2].UplinksChanged()
				time.Sleep(1700 * time.Millisecond)
			}
		}()
		if got := moves(n[0], n[1], 5*time.Minute) + moves(n[1], n[0], time.Second); got != 0 {
			t.Errorf("%d moves", got)
		}
	})
}
