package host

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

// TestForwardedProbes: what a peer sends from its probe address, and nothing else, is taken behind all rules for forwarded packets, and
// leaves no neighbour behind; what is sent here leaves by the path in use, or by the one that is tried.
func TestForwardedProbes(t *testing.T) {
	t.Parallel()
	l := newLab(t, "ip link set dev lo up")
	var mac [6]byte
	l.in(l.lan, func() {
		run(t, "ip addr add 10.244.2.14/32 dev lan0\nip addr add 10.244.2.13/32 dev lan0")
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			t.Fatal(err)
		}
		mac = [6]byte(link.Attrs().HardwareAddr)
	})
	p, prober := lanPlan(1), netip.MustParseAddr("10.244.2.14")
	c := mesh.Candidate{Peer: "M0", Kind: mesh.Native, Link: "up0", Via: netip.MustParseAddr(lanHost4), MAC: mac, MTU: 1500, Probe: true, Accept: true, Use: true}
	paths := func(c mesh.Candidate) mesh.Paths {
		out := p.Paths([]mesh.Candidate{c})
		out.Probers = []netip.Addr{prober}
		return out
	}
	mustSetPaths(t, l.host, paths(c))
	mustSet(t, l.host, p.Host)
	ours := l.host.ProbeAddrs()
	if ours != [2]netip.Addr{netip.MustParseAddr("10.244.1.254"), netip.MustParseAddr("fd00:1::ffff:ffff:ffff:fffe")} {
		t.Fatalf("probe addresses %v", ours)
	}
	defer func() { l.host.port.close() }()
	type packet struct {
		payload string
		link    string
	}
	from := map[string]*net.UDPConn{"10.244.2.14": l.listen(l.lan, "10.244.2.14", mesh.ForwardFrom), "10.244.2.13": l.listen(l.lan, "10.244.2.13", mesh.ForwardFrom)}
	arrives := func(what, src string, want bool) {
		t.Helper()
		if err := send(from[src], what, ours[0].String(), mesh.ForwardTo); err != nil {
			t.Fatal(err)
		}
		var got []packet
		for start, limit := time.Now(), map[bool]time.Duration{true: deadline, false: 300 * time.Millisecond}[want]; len(got) == 0 && time.Since(start) < limit; time.Sleep(5 * time.Millisecond) { // sleep: between looks, until the limit
			l.host.TakeForwarded(func(b []byte, link string) { got = append(got, packet{string(b[28:]), link}) })
		}
		if ok := slices.Equal(got, []packet{{what, "up0"}}); ok != want || !want && len(got) > 0 {
			t.Errorf("%s: taken %+v\n%s", what, got, run(t, "nft list table inet edgemesh"))
		}
	}
	arrives("from the prober", "10.244.2.14", true)
	if n := run(t, "ip neigh show dev edgemesh-br"); strings.Contains(n, "10.244.1.254") {
		t.Errorf("neighbours: %s", n)
	}
	arrives("from a pod", "10.244.2.13", false)
	run(t, "iptables -I FORWARD -i up0 -j DROP")
	arrives("with a rule", "10.244.2.14", false)
	run(t, "iptables -D FORWARD -i up0 -j DROP\niptables -t nat -A POSTROUTING -o edgemesh-br -j MASQUERADE")
	arrives("translated", "10.244.2.14", true)
	run(t, "iptables -t nat -D POSTROUTING -o edgemesh-br -j MASQUERADE")

	run(t, "ip neigh flush dev edgemesh-br") // of what a pod sent there
	// What a rule answers that rejects a probe is taken, too, from whatever address.
	if err := l.host.SendForwarded([][]byte{udpPacket(netip.AddrPortFrom(ours[0], mesh.ForwardFrom), netip.MustParseAddrPort("10.244.2.13:5214"), "number and tag")}); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, deadline, "the rejection is taken", fair.True(func() (got bool) {
		l.host.TakeForwarded(func(b []byte, link string) {
			got = b[9] == 1 && b[20] == 3 && link == "up0" && strings.Contains(string(b), "number and tag")
		})
		return got
	}))
	l.in(l.lan, func() { run(t, "sysctl -qw net.ipv4.icmp_ratelimit=0") })
	for range 100 { // more than are logged
		_ = l.host.SendForwarded([][]byte{udpPacket(netip.AddrPortFrom(ours[0], mesh.ForwardFrom), netip.MustParseAddrPort("10.244.2.13:5214"), "one of many")})
	}
	many := 0
	fair.Eventually(t, deadline, "some of the rejections are logged", fair.True(func() bool {
		l.host.TakeForwarded(func([]byte, string) { many++ })
		return many >= 15
	}))
	if n := run(t, "ip neigh show dev edgemesh-br"); strings.Contains(n, "10.244.1.254") {
		t.Errorf("neighbours after a rejection: %s", n)
	}

	leads := func(want ...string) {
		t.Helper()
		wantContains(t, "the peer's probe address", run(t, "ip route get 10.244.2.14 from 10.244.1.254 iif edgemesh-br"), want...)
	}
	leads("via "+lanHost4, "table 5210")
	c.Use, c.Aside = false, prober
	mustSetPaths(t, l.host, paths(c))
	leads("via "+lanHost4, "table 5224")
	wantContains(t, "a pod's packet", run(t, "ip route get 10.244.2.14 from 10.244.1.5 iif edgemesh-br"), "dev edgemesh-tun")
	w := paths(c)
	w.Probes = []mesh.ProbeRoute{{Target: prober, Slot: mesh.ProbeSlots, Hop: mesh.Hop{Link: TUNName}}}
	mustSetPaths(t, l.host, w)
	leads("dev edgemesh-tun", "table 5224")
	wantUnchanged(t, l.host, p.Host)
	run(t, "ip link set edgemesh-fwd nomaster\nip rule del iif edgemesh-br from 10.244.1.254\nnft flush chain inet edgemesh forwarded")
	mustSet(t, l.host, p.Host)
	wantUnchanged(t, l.host, p.Host)
	if l.host.SendForwarded([][]byte{make([]byte, 60)}) == nil {
		t.Error("a port that was not plugged in still stands")
	}
	time.Sleep(portEvery) // sleep: a new port is not tried before
	if l.host.ProbeAddrs() != ours || l.host.SendForwarded([][]byte{make([]byte, 60)}) != nil {
		t.Error("no new port")
	}
	arrives("repaired", "10.244.2.14", true)
	none := p.Host
	none.LAN = mesh.LAN{}
	mustSet(t, l.host, none)
	if l.host.ProbeAddrs() != [2]netip.Addr{} || strings.Contains(run(t, "ip -br link"), "edgemesh-fwd") {
		t.Error("a port that nothing needs")
	}
	mustSet(t, l.host, p.Host)
	time.Sleep(portEvery) // sleep: until the next look
	l.host.ProbeAddrs()
	wantContains(t, "the port", run(t, "ip link show edgemesh-fwd"), "master edgemesh-br")
	if err := l.host.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := run(t, "ip rule\nnft list tables"); strings.Contains(left, "5224") || strings.Contains(left, "edgemesh") {
		t.Errorf("left behind: %s", left)
	}
}

// TestSent: what pods and the host send to others' blocks is noted, also under a Service's address or port, no probe, and nothing else that others send.
func TestSent(t *testing.T) {
	t.Parallel()
	l := newLab(t, `
nft add table inet proxy
nft add chain inet proxy pre {type nat hook prerouting priority -100 ; }
nft add rule inet proxy pre ip daddr 10.96.0.1 dnat ip to 10.244.3.5
nft add rule inet proxy pre ip6 daddr fd96::1 dnat ip6 to fd00:3::5
nft add rule inet proxy pre ip daddr 192.168.1.2 udp dport 30080 dnat ip to 10.244.8.5
iptables-nft -t nat -A PREROUTING -d 10.96.0.2 -j DNAT --to-destination 10.244.4.5
ip6tables-nft -t nat -A PREROUTING -d fd96::2 -j DNAT --to-destination fd00:4::5`)
	outside := l.listen(l.lan, lanHost4, 0)
	from := map[string]*net.UDPConn{podA4: l.listen(l.podA, podA4, 0), podA6: l.listen(l.podA, podA6, 0)}
	to := map[string][]string{podA4: {far4, "10.96.0.1", "10.96.0.2"}, podA6: {far6, "fd96::1", "fd96::2"}}
	host, probes := l.listen(l.node, nodeLAN4, 0), l.listen(l.node, gateway4, int(dual().LAN.ProbePort))
	host6 := l.listen(l.node, nodeLAN6, 0)
	want := []string{"10.244.2.0/24", "10.244.3.0/24", "10.244.4.0/24", "10.244.5.0/24", "10.244.8.0/24", "fd00:2::/64", "fd00:3::/64", "fd00:4::/64", "fd00:5::/64"}
	fair.Eventually(t, deadline, "what pods send is noted", func() error {
		_ = send(outside, "by no pod", "10.244.6.5", serverPort)
		_ = send(outside, "to a node's port", nodeLAN4, 30080)
		_ = send(host, "by the host", "10.244.5.5", serverPort)
		_ = send(host6, "by the host", "fd00:5::5", serverPort)
		_ = send(probes, "a probe", "10.244.7.1", int(dual().LAN.ProbePort))
		for pod, c := range from {
			for _, a := range to[pod] {
				_ = send(c, "by a pod", a, serverPort)
			}
		}
		counts, err := l.host.Traffic()
		if err != nil {
			return err
		}
		var got []string
		for in := range counts {
			if in.Out && in.Block.Bits() != 28 {
				got = append(got, in.Block.String())
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v\n%s", got, want, run(t, "nft list table inet edgemesh"))
		}
		return nil
	})
}
