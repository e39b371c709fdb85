package daemon

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/agent/lan/decide"
	"edgemesh/agent/lan/lantest"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/p2p"
)

// TestPortOfOtherGateways: a node that gets other blocks opens other sockets. What it announces is
// the port on which it listens then.
func TestPortOfOtherGateways(t *testing.T) {
	if nstest.Outside(t) {
		return
	}
	nstest.Enter(t)
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: probePort})
	if err != nil {
		t.Fatal(err)
	}
	of := func(block string) mesh.Plan {
		return mesh.Plan{Self: mesh.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix(block)}}}
	}
	log := slog.New(slog.DiscardHandler)
	force := &inForce{now: plan{Plan: of("10.244.1.0/24")}}
	l := newLANPaths(lanConfig{
		lan: config.LAN{Native: true}, standsBy: func() bool { return false }, host: host.New(host.Config{StateDir: t.TempDir(), Log: log}), log: log,
		peers: lanPeers{node: &p2p.Node{}, plan: force.current},
	})
	defer l.close()
	if p := l.complete(of("10.244.1.0/24")); p.Host.LAN.ProbePort == probePort || p.Host.LAN.ProbePort == 0 {
		t.Fatalf("port %d while another program has %d", p.Host.LAN.ProbePort, probePort)
	}
	taken.Close()
	p := l.complete(of("10.244.2.0/24"))
	l.setPlan(p)
	if got := l.current().ProbePort(); p.Host.LAN.ProbePort != got || got != probePort {
		t.Errorf("the plan has port %d, the service listens at %d; want %d for both", p.Host.LAN.ProbePort, got, probePort)
	}
}

// TestUnderlayOfVXLAN: IPv6 where there is nothing else. While a host boots, addresses come
// one after the other; later ones change nothing.
func TestUnderlayOfVXLAN(t *testing.T) {
	four, six := mesh.Uplink{Addr: netip.MustParseAddr("192.168.1.2")}, mesh.Uplink{Addr: netip.MustParseAddr("fd99::2")}
	type step struct {
		after   time.Duration // since the first
		uplinks []mesh.Uplink
		v6      bool
	}
	for name, steps := range map[string][]step{
		"IPv4":                            {{0, []mesh.Uplink{four}, false}, {time.Second, []mesh.Uplink{six}, false}},
		"both":                            {{0, []mesh.Uplink{four, six}, false}},
		"IPv6 alone":                      {{0, []mesh.Uplink{six}, true}, {time.Hour, []mesh.Uplink{six}, true}},
		"IPv6 alone, link comes up later": {{0, nil, false}, {time.Hour, []mesh.Uplink{six}, true}},
		"DHCP is slower":                  {{0, []mesh.Uplink{six}, true}, {10 * time.Second, []mesh.Uplink{four, six}, false}, {20 * time.Second, []mesh.Uplink{six}, false}},
		"a modem much later":              {{0, []mesh.Uplink{six}, true}, {time.Hour, []mesh.Uplink{four, six}, true}},
		"away for a moment":               {{0, []mesh.Uplink{six}, true}, {time.Second, nil, true}, {2 * time.Second, []mesh.Uplink{six}, true}},
	} {
		o, start, before := &outerVersion{}, time.Unix(1000, 0), false
		for i, s := range steps {
			changed := o.choose(s.uplinks, start.Add(s.after))
			if o.v6 != s.v6 || changed != (s.v6 != before) {
				t.Errorf("%s, step %d: IPv6 %v, changed %v; want IPv6 %v", name, i, o.v6, changed, s.v6)
			}
			before = s.v6
		}
	}
}

// The network that a note proposes to trust has both ends, and is one that the membership accepts.
func TestCommonNetwork(t *testing.T) {
	for _, x := range [][3]string{
		{"192.168.1.11", "192.168.2.11", "192.168.0.0/22"}, {"10.1.0.1", "10.200.0.1", "10.0.0.0/8"}, {"fd00:1::1", "fd00:2::1", "fd00::/30"},
		{"10.1.0.1", "192.168.0.1", ""}, {"172.16.0.1", "192.168.0.1", ""}, {"10.1.0.1", "fd00::1", ""},
	} {
		got, ok := common([2]netip.Addr{netip.MustParseAddr(x[0]), netip.MustParseAddr(x[1])})
		if ok != (x[2] != "") || ok && got.String() != x[2] {
			t.Errorf("%s and %s: %v %v, want %q", x[0], x[1], got, ok, x[2])
		}
	}
	if _, ok := common([2]netip.Addr{}); ok {
		t.Error("a network of nothing")
	}
}

// TestDroppedBy: each peer to which packets are dropped is named with who rejects them there.
func TestDroppedBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site := &lantest.LAN{T: t}
		n := []*lantest.Node{site.Add(), site.Add(), site.Add()}
		site.Forward = func(from, to *lantest.Node, _ string, b []byte) bool {
			if from == n[0] && to == n[1] {
				answer := append([]byte{3, 13, 0, 0, 0, 0, 0, 0}, b[:min(len(b), 500)]...)
				from.Catch(inet.Packet(to.Gateway(), netip.AddrFrom4([4]byte(b[12:16])), inet.ProtoICMP, answer), "eth0")
			}
			return from != n[0]
		}
		site.Meet(decide.Off{})
		time.Sleep(10 * time.Second) // sleep: in a bubble
		l := &lanPaths{service: n[0].Service, lanConfig: lanConfig{peers: lanPeers{plan: func() mesh.Plan { return n[0].Plan(n...) }}}}
		i := slices.IndexFunc(l.notes(), func(f findings.Finding) bool { return f.ID == "lan-forward" })
		if i < 0 {
			t.Fatalf("%+v", l.notes())
		}
		text := l.notes()[i].Text
		for _, want := range []string{
			"to n1 (UDP, TCP, ICMP and UDP of known connections, by 10.244.1.1, which answers",
			"n2 (UDP, TCP, ICMP and UDP of known connections, by a rule for forwarded packets",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q lacks %q", text, want)
			}
		}
	})
}
